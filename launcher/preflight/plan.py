"""A plan: what would run, and everything that can be known to fail before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.config import guard
from launcher.config.diff import Changed, differing
from launcher.config.origins import Origin, origins_of
from launcher.config.recipe import asked
from launcher.config.resolve import merged, resolve
from launcher.core.check_result import CheckResult, any_failed, from_problems
from launcher.core.problems import Problems
from launcher.data.hub import Hub
from launcher.hubs import huggingface
from launcher.models import store
from launcher.models.pretrained import Pretrained
from launcher.preflight import memory
from launcher.preflight.checks import disk, history, model, place, rows, steps
from launcher.preflight.checks.steps import Steps
from launcher.rewards.model import RewardModel
from launcher.spec.engine import Process
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node


@dataclass(frozen=True)
class Page:
    """One run, judged. Without a run the words make none, and the results say why."""

    run: RunSpec | None
    results: list[CheckResult]
    steps: Steps | None = None
    folder: Path | None = None
    processes: tuple[Process, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    """Of each group, the name of its file."""
    differs: list[Changed] = field(default_factory=list)
    """Values that are not their classes' defaults."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    memory: dict[str, Any] | None = None
    """Phases and their parts, limit and advice, in bytes."""
    notes: tuple[str, ...] = ()
    """What only a running shell knows of a recipe, and what stands for it here."""

    @property
    def ok(self) -> bool:
        return not any_failed(self.results)


@dataclass
class _Judged:
    results: list[CheckResult] = field(default_factory=list)
    steps: Steps | None = None


def plan(
    words: Sequence[str], config_dir: Path | None = None, *, recipe: str | None = None, here: bool = False
) -> Page:
    """What `words` would do, those of a `recipe` before them. `here`: the run is to start on this machine, so what it
    lacks is a failure; otherwise that is a warning wherever GPUs are asked for, as people plan for other machines than
    their own."""
    try:
        by = asked(words, config_dir, recipe)
        run = resolve(by.texts, by.config_dir)
    except Problems as problems:
        return Page(None, from_problems(problems.problems))
    files = merged(by.texts, by.config_dir).files
    choices = {place: path.stem for path, place in files if place}
    return replace(page(run, here=here), choices=choices, origins=origins_of(run, by), notes=by.notes)


def page(run: RunSpec, *, here: bool = False) -> Page:
    """The run with every result on it."""
    found = _judge(run, here=here or run.hardware.is_cpu)
    folder = place.folder_of(run)
    processes = run.engine.plan(run, folder).processes
    of_memory = memory.to_node(run, memory.limit(run.taken)) if not run.model.problems() else None
    return Page(run, found.results, found.steps, folder, processes, differs=differing(run), memory=of_memory)


@dataclass(frozen=True)
class Ready:
    """A run that may start here: nothing that can be known speaks against it."""

    run: RunSpec
    warnings: list[CheckResult]


def ready(run: RunSpec) -> Ready:
    """Raises `Problems` with all that would fail here."""
    return Ready(run, _or_raise(_judge(run, here=not run.cluster.queues).results))


def problems(run: RunSpec, *, here: bool = True) -> list[str]:
    """All that would fail, one line each; `here` as for a plan."""
    return _failing(_judge(run, here=here or run.hardware.is_cpu).results)


def refuse_rows(run: RunSpec) -> list[CheckResult]:
    """The warnings on a run's rows alone, once models and data have been fetched. Raises `Problems`, too."""
    return _or_raise(_rows(run)[0])


def _or_raise(results: Sequence[CheckResult]) -> list[CheckResult]:
    if lines := _failing(results):
        raise Problems(lines)
    return [result for result in results if result.level == "WARN"]


def _failing(results: Sequence[CheckResult]) -> list[str]:
    return list(dict.fromkeys(result.line for result in results if result.level == "FAIL"))


def _judge(run: RunSpec, here: bool) -> _Judged:
    if not run.model.problems():
        run = _as_it_lies(run)
    of_model, of_reward, of_data = run.model.problems(), run.reward.problems(), run.data.problems()
    of_folder, said = place.folder(run), [*of_data, *of_model, *of_reward]
    found = _Judged([*from_problems([*said, *guard.kept(to_node(run), said)]), *of_folder])
    if not of_model:
        found.results += model.check(run, here)
    for leaf in run.reward.leaves():
        if isinstance(leaf, RewardModel) and not of_reward:
            found.results += model.fetched(leaf, "reward.path")
    if not (of_data or of_reward):
        found.results += _rows_where_they_lie(run, found, here, counted=not of_model)
    if found.steps is None:
        found.steps = steps.steps_of(run, None, None)
        found.results += steps.check(run, found.steps)
    if not of_model:
        found.results += memory.check(run, memory.limit(run.taken))
    found.results += [*place.hardware(run, here), *(place.around(run, here) if not of_reward else [])]
    if not any_failed(of_folder):
        found.results += [*disk.check(run, found.steps, here), *_time(run, found.steps)]
    found.results += place.versions()
    return found


def _as_it_lies(run: RunSpec) -> RunSpec:
    """The run with the folder of its model, where a hub's model has been downloaded before."""
    asked = run.model
    if not isinstance(asked, Pretrained) or not asked.on_hub or asked.trust_remote_code:
        return run
    folder = store.find(asked.path, asked.revision)
    return replace(run, model=replace(asked, path=str(folder))) if folder else run


def _rows_where_they_lie(run: RunSpec, found: _Judged, here: bool, counted: bool) -> list[CheckResult]:
    lying = run.data.local(run.algorithm.data)
    if lying is None:
        return [_unprepared(run, here)]
    results, found.steps = _rows(replace(run, data=lying), counted)
    return results


def _unprepared(run: RunSpec, here: bool) -> CheckResult:
    """Data of a hub that does not lie here: its rows are not looked at."""
    what = f"rlrun data prepare {run.data.repo}" if isinstance(run.data, Hub) else "rlrun data prepare"
    if huggingface.offline():
        message = "is not prepared yet, and HF_HUB_OFFLINE forbids to fetch it"
        return CheckResult(place.level_of(here), "data", message, f"{what} with a network would do")
    return CheckResult("WARN", "data", "is not looked at, as it is fetched and prepared first", f"{what} does it now")


def _rows(run: RunSpec, counted: bool = True) -> tuple[list[CheckResult], Steps]:
    """`counted`: the model can be asked for its tokens."""
    found = rows.found(run, counted)
    made = steps.steps_of(run, found.rows, found.val_rows)
    return [*found.results, *steps.check(run, made)], made


def _time(run: RunSpec, counted: Steps) -> Iterator[CheckResult]:
    known = history.earlier(run)
    if known is None or counted.steps is None:
        return
    seconds = known.seconds_per_step * counted.steps
    yield CheckResult(
        "OK", "time", f"about {_duration(seconds)}, as {known.name} took {known.seconds_per_step:.3g} s a step"
    )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
