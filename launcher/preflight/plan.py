"""Plans a run: what would start, and everything that can be known to fail before it does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.config.defaults import REASONS
from launcher.config.diff import Changed, differing
from launcher.config.origins import Origin, origins_of
from launcher.config.recipe import run_request
from launcher.config.resolve import Resolution, resolve_request
from launcher.core import activity
from launcher.core.check_result import CheckResult, any_failed, from_problems
from launcher.core.problems import Problem, Problems
from launcher.preflight.checks import CHECKS, lengths, memory, model, reward, rows, run_checks, steps, text
from launcher.preflight.checks.context import Context, Steps, folder_of
from launcher.preflight.fit import fit_settings
from launcher.runs import store
from launcher.spec.data import Row
from launcher.spec.engine import Process
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

RUNS = Path("runs")
"""The default folder of runs, where a run is looked up by its name."""


@dataclass(frozen=True)
class Page:
    """A run with the results of all checks. `run` is None where the arguments are invalid; the results say why."""

    run: RunSpec | None
    results: list[CheckResult]
    steps: Steps | None = None
    folder: Path | None = None
    processes: tuple[Process, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    """The name of the chosen config file of each group."""
    differs: list[Changed] = field(default_factory=list)
    """Values that are not their classes' defaults."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    memory: dict[str, Any] | None = None
    """Phases and their parts, and the limit, in bytes."""
    notes: tuple[str, ...] = ()
    """Values of a recipe that only its shell knows, and what replaces them here."""
    first: Sequence[Row] = ()
    """The first training rows; none where the model or the data has problems."""

    @property
    def ok(self) -> bool:
        return not any_failed(self.results)


def page_node(page: Page) -> dict[str, Any]:
    """A plan as a JSON object."""
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
    """The first rows as tokens, each with whether it has a loss."""
    return lengths.as_tokens(page.run, page.first) if page.run and page.first else []


@activity.reported("reading the settings")
def plan(
    overrides: Sequence[str], config_dir: Path | None = None, *, recipe: str | None = None, here: bool = False
) -> Page:
    """The run of `recipe` and `overrides`, with all checks. `here`: it is to start on this machine, so what is missing
    is a failure; otherwise that is a warning if GPUs are asked for, as the plan may be for another machine."""
    try:
        request = run_request(overrides, config_dir, recipe)
    except Problems as error:
        return Page(None, from_problems(error.problems))
    resolved = resolve_request(request, _find_policy_of_run)
    request, interpreted = resolved.request, [CheckResult("OK", one.typed.text, one.message) for one in resolved.taken]
    if resolved.problems or not (run := resolved.run):
        return Page(None, [*interpreted, *from_problems([*resolved.problems, *_further_problems(resolved, here=here)])])
    choices = {group: path.stem for path, group in resolved.files if group}
    context = fit_settings(Context(run, here or run.hardware.is_cpu), resolved.given)
    run = context.asked
    checked = page(context)
    results = [*interpreted, *checked.results]
    return replace(checked, results=results, choices=choices, origins=origins_of(run, resolved), notes=request.notes)


def _find_policy_of_run(name: str) -> str:
    """The folder of the run that `model=NAME` may mean; empty where there is none, or more than one."""
    try:
        folder = store.named(name, RUNS) if RUNS.is_dir() else None
    except Problems:
        return ""
    return str(folder.path) if folder else ""


def page(context: Context) -> Page:
    """The run with the results of all checks."""
    run = context.asked
    folder = folder_of(run)
    processes = run.engine.plan(run, folder).processes
    memory_node = memory.to_node(context.run, memory.limit(run.taken)) if not context.model_problems else None
    return Page(run, list(run_checks(context)), context.steps, folder, processes,
                differs=differing(run), memory=memory_node,
                first=() if context.model_problems else context.train.rows[: lengths.SHOWN])  # fmt: skip


@dataclass(frozen=True)
class Ready:
    """A run that may start here: no check failed."""

    run: RunSpec
    warnings: list[CheckResult]
    given: Collection[str] = frozenset(REASONS)
    """Settings that arguments or config files set."""
    notes: tuple[str, ...] = ()
    """How arguments in another spelling were interpreted."""


def ready(run: RunSpec) -> Ready:
    """Raises `Problems` with everything that would fail here."""
    return Ready(run, _warnings(run_checks(Context(run, here=not run.cluster.queues))))


@activity.reported("reading the settings")
def ready_from(overrides: Sequence[str], config_dir: Path | None = None, recipe: str | None = None) -> Ready:
    """The run of `recipe` and these arguments. Raises `Problems` with all invalid arguments and all that would fail
    here."""
    request = run_request(overrides, config_dir, recipe)
    resolved = resolve_request(request, _find_policy_of_run)
    if resolved.problems or not resolved.run:
        raise Problems([*resolved.problems, *_further_problems(resolved, here=True)])
    context = fit_settings(Context(resolved.run, here=not resolved.run.cluster.queues), resolved.given)
    warnings = _warnings(run_checks(context))
    return Ready(context.asked, warnings, resolved.given, tuple(one.line for one in resolved.taken))


def run_of(overrides: Sequence[str], config_dir: Path | None = None) -> RunSpec:
    """The run of these arguments, fitted to its rows and to memory. Raises `Problems`."""
    resolved = resolve_request(run_request(overrides, config_dir), _find_policy_of_run)
    if resolved.problems or not resolved.run:
        raise Problems(resolved.problems)
    return fit_settings(Context(resolved.run, here=False), resolved.given).asked


def _further_problems(resolved: Resolution, *, here: bool) -> list[Problem]:
    """What would fail in the run without its invalid arguments, so that one mistake does not hide another."""
    if not resolved.run:
        return []
    here = (here and not resolved.run.cluster.queues) or resolved.run.hardware.is_cpu
    context = fit_settings(Context(resolved.run, here), resolved.given)
    unknown_groups = resolved.ignored.names if resolved.ignored else set()
    checks = [check for check, groups in CHECKS.items() if groups is not None and not unknown_groups & {*groups}]
    others = _failures(result for check in checks for result in check(context))
    return [one for one in others
            if not (resolved.ignored and resolved.ignored.explains(one)) and one not in resolved.problems]  # fmt: skip


def problems(run: RunSpec, *, here: bool = True) -> list[Problem]:
    """Everything that would fail; `here` as for a plan."""
    return _failures(run_checks(Context(run, here or run.hardware.is_cpu)))


def check_fetched(run: RunSpec) -> list[CheckResult]:
    """The warnings on fetched models and data. Raises `Problems` where any check fails."""
    context = Context(run, here=True)
    checks = (model.check, text.check, rows.check, reward.check, steps.check, memory.check)
    return _warnings(result for check in checks for result in check(context))


def _warnings(checked: Iterable[CheckResult]) -> list[CheckResult]:
    """The warnings among results. Raises `Problems` with the failures."""
    results = list(checked)
    if failures := _failures(results):
        raise Problems(failures)
    return [result for result in results if result.level == "WARN"]


def _failures(results: Iterable[CheckResult]) -> list[Problem]:
    failed = (result for result in results if result.level == "FAIL")
    return list(dict.fromkeys(Problem(result.subject, result.message, result.fix) for result in failed))
