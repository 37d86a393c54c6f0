"""Plans a run: what would start, and everything that can be known to fail before it does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
    taken: tuple[str, ...] = ()
    """How arguments in another spelling were interpreted."""
    given: Collection[str] = frozenset(REASONS)
    """Settings that arguments or config files set."""
    invalid: Sequence[Problem] = ()
    """What is wrong with the arguments, where the run is None."""

    @property
    def ok(self) -> bool:
        return not any_failed(self.results)

    @property
    def warnings(self) -> list[CheckResult]:
        return [result for result in self.results if result.level == "WARN"]

    def accepted(self) -> Page:
        """This page. Raises `Problems` with everything that would fail."""
        if problems := self.invalid or _failures(self.results):
            raise Problems(problems)
        return self


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
        resolved = _resolve(overrides, config_dir, recipe)
    except Problems as error:
        return Page(None, from_problems(error.problems), invalid=error.problems)
    interpreted = [CheckResult("OK", one.typed.text, one.message) for one in resolved.taken]
    if not resolved.run or resolved.problems:
        problems = _all_problems(resolved, here=here)
        return Page(None, [*interpreted, *from_problems(problems)], invalid=problems)
    context = fit_settings(_context(resolved.run, here=here), resolved.given)
    run, folder, known = context.asked, folder_of(context.asked), not context.model_problems
    return Page(
        run, [*interpreted, *run_checks(context)], context.steps, folder, run.engine.plan(run, folder).processes,
        choices={group: path.stem for path, group in resolved.files if group}, differs=differing(run),
        origins=origins_of(run, resolved),
        memory=memory.to_node(context.run, memory.limit(run.taken)) if known else None,
        notes=resolved.request.notes, first=context.train.rows[: lengths.SHOWN] if known else (),
        taken=tuple(one.line for one in resolved.taken), given=resolved.given,
    )  # fmt: skip


def ready_from(overrides: Sequence[str], config_dir: Path | None = None, recipe: str | None = None) -> Page:
    """The plan of a run that may start here. Raises `Problems` with all invalid arguments and all that would fail."""
    return plan(overrides, config_dir, recipe=recipe, here=True).accepted()


def ready(run: RunSpec) -> Page:
    """Raises `Problems` with everything that would fail here."""
    return Page(run, list(run_checks(_context(run, here=True)))).accepted()


def run_of(overrides: Sequence[str], config_dir: Path | None = None) -> RunSpec:
    """The run of these arguments, fitted to its rows and to memory. Raises `Problems`."""
    resolved = _resolve(overrides, config_dir)
    if not resolved.run or resolved.problems:
        raise Problems(resolved.problems)
    return fit_settings(_context(resolved.run, here=False), resolved.given).asked


def problems(run: RunSpec, *, here: bool = True) -> list[Problem]:
    """Everything that would fail; `here` as for a plan."""
    return _failures(run_checks(_context(run, here=here)))


def check_fetched(run: RunSpec) -> list[CheckResult]:
    """The warnings on fetched models and data. Raises `Problems` where any check fails."""
    context = Context(run, here=True)
    checks = (model.check, text.check, rows.check, reward.check, steps.check, memory.check)
    return Page(run, [result for check in checks for result in check(context)]).accepted().warnings


def _resolve(overrides: Sequence[str], config_dir: Path | None, recipe: str | None = None) -> Resolution:
    return resolve_request(run_request(overrides, config_dir, recipe), _find_policy_of_run)


def _find_policy_of_run(name: str) -> str:
    """The folder of the run that `model=NAME` may mean; empty where there is none, or more than one."""
    try:
        folder = store.named(name, RUNS) if RUNS.is_dir() else None
    except Problems:
        return ""
    return str(folder.path) if folder else ""


def _context(run: RunSpec, *, here: bool) -> Context:
    return Context(run, (here or run.hardware.is_cpu) and not run.cluster.queues)


def _all_problems(resolved: Resolution, *, here: bool) -> list[Problem]:
    """What is wrong with the arguments, and what would fail in the run without the invalid ones, so that one mistake
    does not hide another."""
    if not resolved.run:
        return resolved.problems
    context, ignored = fit_settings(_context(resolved.run, here=here), resolved.given), resolved.ignored
    unknown_groups = ignored.names if ignored else set()
    checks = [check for check, groups in CHECKS.items() if groups is not None and not unknown_groups & {*groups}]
    others = _failures(result for check in checks for result in check(context))
    further = [one for one in others if one not in resolved.problems and not (ignored and ignored.explains(one))]
    return [*resolved.problems, *further]


def _failures(results: Iterable[CheckResult]) -> list[Problem]:
    failed = (result for result in results if result.level == "FAIL")
    return list(dict.fromkeys(Problem(result.subject, result.message, result.fix) for result in failed))
