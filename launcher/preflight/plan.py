"""A plan: what would run, and everything that can be known to fail before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.config.defaults import REASONS
from launcher.config.diff import Changed, differing
from launcher.config.origins import Origin, origins_of
from launcher.config.recipe import run_request
from launcher.config.request import RunRequest
from launcher.config.resolve import Resolution, resolve_request
from launcher.core import activity
from launcher.core.check_result import CheckResult, any_failed, from_problems
from launcher.core.problems import Problem, Problems, shortened
from launcher.preflight.checks import CHECKS, lengths, memory, model, reward, rows, run_checks, steps, text
from launcher.preflight.checks.context import Context, Steps, folder_of
from launcher.preflight.fit import fit_settings
from launcher.runs import store
from launcher.spec.data import Row
from launcher.spec.engine import Process
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

RUNS = Path("runs")
"""Where a run is looked for by its name alone, as runs are put there unless a setting says otherwise."""


@dataclass(frozen=True)
class Page:
    """One run with the results of all checks. Without a run the arguments make none, and the results say why."""

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
    """Phases and their parts, and the limit, in bytes."""
    notes: tuple[str, ...] = ()
    """Values of a recipe that only its shell knows, and what stands for them here."""
    first: Sequence[Row] = ()
    """Of the training rows; none where the model or the data has problems."""

    @property
    def ok(self) -> bool:
        return not any_failed(self.results)


def page_node(page: Page) -> dict[str, Any]:
    """A plan as JSON has it."""
    return {
        "ok": page.ok,
        "results": [asdict(result) for result in page.results],
        "run": to_node(page.run) if page.run else None,
        "choices": dict(page.choices),
        "differs": [{**asdict(value), "origin": str(page.origins.get(value.name, ""))} for value in page.differs],
        "folder": str(page.folder) if page.folder else None,
        "arithmetic": asdict(page.steps) if page.steps else None,
        "memory": page.memory,
        "processes": [asdict(process) for process in page.processes],
    }


def first_rows(page: Page) -> list[list[dict[str, Any]]]:
    """The first rows as tokens, and which of those have a loss."""
    return lengths.as_tokens(page.run, page.first) if page.run and page.first else []


@activity.reported("reading the settings")
def plan(
    overrides: Sequence[str], config_dir: Path | None = None, *, recipe: str | None = None, here: bool = False
) -> Page:
    """The run of `recipe` and `overrides`, checked. `here`: it is to start on this machine, so what is missing here is
    a failure; otherwise that is a warning wherever GPUs are asked for, as people plan for other machines, too."""
    try:
        by = run_request(overrides, config_dir, recipe)
    except Problems as error:
        return Page(None, from_problems(error.problems))
    found = resolve_request(by, _policy_of_run)
    by, taken = found.request, [CheckResult("OK", one.typed.text, one.message) for one in found.taken]
    if found.problems or not (run := found.run):
        return Page(None, [*taken, *from_problems([*found.problems, *_others(found, here=here)])])
    choices = {place: path.stem for path, place in found.files if place}
    context = fit_settings(Context(run, here or run.hardware.is_cpu), found.given)
    run = context.asked
    made = _page(context)
    results = [*taken, *made.results, *_given_twice(by)]
    return replace(made, results=results, choices=choices, origins=origins_of(run, found), notes=by.notes)


def _policy_of_run(name: str) -> str:
    """The folder of a run that `model=NAME` may mean; empty where there is none, or are several."""
    try:
        found = store.named(name, RUNS) if RUNS.is_dir() else None
    except Problems:
        return ""
    return str(found.path) if found else ""


def page(run: RunSpec, *, here: bool = False) -> Page:
    """The run with the results of all checks."""
    return _page(Context(run, here or run.hardware.is_cpu))


def _page(context: Context) -> Page:
    run = context.asked
    folder = folder_of(run)
    processes = run.engine.plan(run, folder).processes
    of_memory = memory.to_node(context.run, memory.limit(run.taken)) if not context.model_problems else None
    return Page(run, list(run_checks(context)), context.steps, folder, processes,
                differs=differing(run), memory=of_memory,
                first=() if context.model_problems else context.train.rows[: lengths.SHOWN])  # fmt: skip


@dataclass(frozen=True)
class Ready:
    """A run that may start here: no check failed."""

    run: RunSpec
    warnings: list[CheckResult]
    given: Collection[str] = frozenset(REASONS)
    """Settings that arguments or config files set."""
    notes: tuple[str, ...] = ()
    """What arguments in another spelling were taken as."""


def ready(run: RunSpec) -> Ready:
    """Raises `Problems` with everything that would fail here."""
    return Ready(run, _warnings(run_checks(Context(run, here=not run.cluster.queues))))


@activity.reported("reading the settings")
def ready_from(overrides: Sequence[str], config_dir: Path | None = None, recipe: str | None = None) -> Ready:
    """The run of `recipe` and these arguments. Raises `Problems` with everything that is wrong with them and would fail
    here."""
    by = run_request(overrides, config_dir, recipe)
    found = resolve_request(by, _policy_of_run)
    if found.problems or not found.run:
        raise Problems([*found.problems, *_others(found, here=True)])
    context = fit_settings(Context(found.run, here=not found.run.cluster.queues), found.given)
    warnings = [*_given_twice(found.request), *_warnings(run_checks(context))]
    return Ready(context.asked, warnings, found.given, tuple(one.line for one in found.taken))


def _given_twice(by: RunRequest) -> list[CheckResult]:
    """A warning for each setting that was typed with two values, in whatever spelling; of a file, arguments take the
    place."""
    typed = dict[str, dict[str, str]]()  # setting -> value -> as it was typed
    for word in by.overrides:
        if word.source == "command line":
            key, _, value = word.text.lstrip("+").partition("=")
            typed.setdefault(key, {})[value] = word.where.removeprefix("command line: ")
    found = []
    for key, values in typed.items():
        if len(values) > 1:
            same = all(text.lstrip("+").partition("=")[0] == key for text in values.values())
            shown = shortened(", ".join(values if same else values.values()), 200)
            found.append(CheckResult("WARN", key, f"is given {len(values)} times: {shown}", "give it once"))
    return found


def run_of(overrides: Sequence[str], config_dir: Path | None = None) -> RunSpec:
    """The run of these arguments with all that is fitted to its rows and memory. Raises `Problems`."""
    found = resolve_request(run_request(overrides, config_dir), _policy_of_run)
    if found.problems or not found.run:
        raise Problems(found.problems)
    return fit_settings(Context(found.run, here=False), found.given).asked


def _others(found: Resolution, *, here: bool) -> list[Problem]:
    """What would fail of the run that is left without the wrong arguments: one mistake must not hide another."""
    if not found.run:
        return []
    here = (here and not found.run.cluster.queues) or found.run.hardware.is_cpu
    context = fit_settings(Context(found.run, here), found.given)
    unsure = found.ignored.names if found.ignored else set()
    checks = [check for check, groups in CHECKS.items() if groups is not None and not unsure & {*groups}]
    others = _failures(result for check in checks for result in check(context))
    return [each for each in others
            if not (found.ignored and found.ignored.explains(each)) and each not in found.problems]  # fmt: skip


def problems(run: RunSpec, *, here: bool = True) -> list[Problem]:
    """Everything that would fail; `here` as for a plan."""
    return _failures(run_checks(Context(run, here or run.hardware.is_cpu)))


def check_fetched(run: RunSpec) -> list[CheckResult]:
    """The warnings on what has been fetched, models and data. Raises `Problems` where any check fails."""
    context = Context(run, here=True)
    looks = (model.check, text.check, rows.check, reward.check, steps.check, memory.check)
    return _warnings(result for look in looks for result in look(context))


def _warnings(checked: Iterable[CheckResult]) -> list[CheckResult]:
    """Raises `Problems` with what failed."""
    results = list(checked)
    if found := _failures(results):
        raise Problems(found)
    return [result for result in results if result.level == "WARN"]


def _failures(results: Iterable[CheckResult]) -> list[Problem]:
    failed = (result for result in results if result.level == "FAIL")
    return list(dict.fromkeys(Problem(result.subject, result.message, result.fix) for result in failed))
