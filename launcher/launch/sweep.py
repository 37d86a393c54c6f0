"""A sweep: runs that differ in a few arguments, planned together, and run one by one or side by side.

runs/<project>/<name>-sweep<N>/            sweep.json, and the output of each point's process: <point>.log
runs/<project>/<name>-sweep<N>-<point>/    the points' run folders, like any other run's

sweep.json  {"words": [...], "config_dir", "folder": where it was typed, "parallel",
             "points": [{"name", "differs": {"optim.lr": "1e-06"}, "words", "run", "needs", "status", "why"}]}
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path

from launcher.config.grammar import Point, points
from launcher.core.bounded_parse import parse_json
from launcher.core.files import read_file, write_atomic
from launcher.core.problems import Problem, Problems
from launcher.core.settings import adapter
from launcher.core.state import RunState, Status
from launcher.launch import provenance
from launcher.launch.follow import POLL_S
from launcher.launch.queue import Needs, Queue, QueuedRun, needs
from launcher.preflight.plan import problems as refusals
from launcher.preflight.plan import run_of
from launcher.runs import store
from launcher.runs.folder import Folder, Lock, holder
from launcher.runs.stop_requests import Handle, StopRequest, no_signals
from launcher.spec.run import Optim, RunSpec

FILE = "sweep.json"
LOOK_S = 0.5  # between two looks at the events of runs
NAME, BASE, VALUE = 60, 50, 24  # longest name of a point, of the sweep without its number, and of one value
Check = Callable[[RunSpec], list[Problem]]
OnCount = Callable[[int, int], None]
"""Gets how many points are planned, and how many there are."""


@dataclass(frozen=True)
class Planned:
    """A point before anything is started."""

    point: Point
    name: str
    """The overrides that differ, shortened to the name of a folder."""
    run: RunSpec | None
    problems: list[Problem]


@dataclass
class SweepEntry:
    """A point as sweep.json holds it."""

    name: str
    differs: dict[str, str]
    words: list[str]
    run: str
    """Name of its run's folder, beside the sweep's."""
    needs: Needs
    status: Status = "waiting"
    """How its process ended last; what its run's folder says counts more where a sweep was killed."""
    why: str = ""


@dataclass
class Sweep:
    path: Path
    words: list[str]
    config_dir: str | None
    folder: str
    """Working folder of the command: relative paths in the overrides start there."""
    parallel: int | None
    points: list[SweepEntry] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    def run_of(self, entry: SweepEntry) -> Folder:
        return Folder(self.path.parent / entry.run)

    def log_of(self, entry: SweepEntry) -> Path:
        return self.path / f"{entry.name}.log"

    def write(self) -> None:
        node = {name: value for name, value in asdict(self).items() if name != "path"}
        write_atomic(self.path / FILE, json.dumps(node, indent=1) + "\n")


def plan(
    overrides: Sequence[str],
    config_dir: Path | None,
    check: Check = refusals,
    watch: OnCount = lambda done, all_points: None,
) -> list[Planned]:
    """Every point, resolved and checked. Raises `Problems` where the overrides make no points."""
    all_points = points(overrides)
    names, problems_by_run, planned = names_of(all_points), dict[str, list[Problem]](), list[Planned]()
    for name, point in zip(names, all_points, strict=True):
        watch(len(planned), len(all_points))
        try:
            run = run_of(point.overrides, config_dir)
        except Problems as invalid:
            planned.append(Planned(point, name, None, invalid.problems))
            continue
        key = repr(replace(run, seed=0, optim=replace(run.optim, lr=Optim.lr)))  # neither matters to any check
        if key not in problems_by_run:
            problems_by_run[key] = check(run)
        planned.append(Planned(point, name, run, problems_by_run[key]))
    return planned


def problems(planned: Sequence[Planned]) -> list[Problem]:
    """Every problem once; its `where` begins with the overrides of the points that have it, unless all have it."""
    holders: dict[Problem, list[Point]] = {}
    for plan in planned:
        for problem in dict.fromkeys(plan.problems):
            holders.setdefault(problem, []).append(plan.point)
    all_points = [plan.point for plan in planned]
    return [
        replace(problem, where=": ".join(filter(None, (label, problem.where))))
        for problem, affected in holders.items()
        for label in _labels(affected, all_points)
    ]


def _labels(subset: Sequence[Point], all_points: Sequence[Point]) -> list[str]:
    """One label of the overrides that `subset` and no other points share; each point's own where there are none."""
    common = {key: value for key, value in subset[0].differs.items() if all(p.differs[key] == value for p in subset)}
    same = [point for point in all_points if common.items() <= point.differs.items()]
    return [Point((), common).label] if len(same) == len(subset) else [point.label for point in subset]


def names_of(every: Sequence[Point]) -> list[str]:
    """A unique name for each point, `lr_1e-06-seed_0`; where those are too long or alike, each begins with a number."""
    names = ["-".join(_part(key, value) for key, value in point.differs.items()) or "only" for point in every]
    if max(map(len, names)) <= NAME and len({name.lower() for name in names}) == len(names):
        return names
    return [f"{number}-{name}"[:NAME].rstrip("-.") for number, name in enumerate(names, start=1)]


def _part(key: str, value: str) -> str:
    """`lr_1e-06`; the choice of a config group is named by its value alone."""
    return _safe(value) if "." not in key and key != "seed" else f"{key.rpartition('.')[2]}_{_safe(value)}"


def _safe(value: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", value.replace("+", "")).strip("-.")
    return plain[:VALUE].rstrip("-.") or "x"


def begin(overrides: Sequence[str], config_dir: Path | None, planned: Sequence[Planned], parallel: int | None) -> Sweep:
    """A new sweep's folder and record. Raises `Problems` where a point has one."""
    if errors := problems(planned):
        raise Problems(errors)
    runs = [(each, each.run) for each in planned if each.run]
    trainer, labels = runs[0][1].trainer, {run.label for _, run in runs}
    base = (trainer.experiment_name or (labels.pop() if len(labels) == 1 else "sweep"))[:BASE]
    path = _new_folder(Path(trainer.run_root).expanduser().absolute() / trainer.project_name, base)
    sweep = Sweep(path, list(overrides), str(config_dir.absolute()) if config_dir else None, str(Path.cwd()), parallel)
    sweep.points = [
        SweepEntry(each.name, dict(each.point.differs), _with_name(each.point.overrides, f"{path.name}-{each.name}"),
              f"{path.name}-{each.name}", needs(run))
        for each, run in runs
    ]  # fmt: skip
    sweep.write()
    return sweep


def _with_name(overrides: Sequence[str], name: str) -> list[str]:
    others = [word for word in overrides if word.lstrip("+").partition("=")[0] != "trainer.experiment_name"]
    return [*others, f"trainer.experiment_name={name}"]


def _new_folder(project: Path, base: str) -> Path:
    """A new folder; two sweeps that begin at once get different ones."""
    project.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in count(1):
        path = project / f"{base}-sweep{number}"
        if not any(project.glob(f"{path.name}-*")):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                return path
    raise AssertionError("count never ends")


def find(name: str, root: Path) -> Path | None:
    """The folder of the sweep meant by a path, `project/sweep`, or a sweep's name; None where there is none.

    Raises `Problems` where several have that name.
    """
    folder = store.named(name, root, FILE)
    return folder.path if folder else None


def read(path: Path) -> Sweep:
    """Raises `Problems` where sweep.json is damaged."""
    file = path / FILE
    try:
        sweep = adapter(Sweep).validate_python({**parse_json(read_file(file)), "path": path})
        if any(Path(name).name != name for entry in sweep.points for name in (entry.run, entry.name)):
            raise ValueError("a point is damaged")
    except (OSError, ValueError, TypeError) as error:
        raise provenance.unreadable(file, error, "start a new sweep") from error
    return sweep


# ---- running it


@dataclass
class View:
    """A point as it stands now."""

    entry: SweepEntry
    folder: Folder
    state: RunState = field(default_factory=RunState)


OnViews = Callable[[Sequence[View], list[tuple[str, str]]], None]
"""Gets all points, and the lines that they printed since, each with its point's name."""


def drive(sweep: Sweep, show: OnViews, handle: Handle = no_signals) -> int:
    """Run every point that is not done. Returns 0 when all are, 128 + the signal that stopped it, 2 when all that
    failed have an invalid configuration, else 1. Raises `Problems` where it runs already, or its folder is gone.
    """
    if not Path(sweep.folder).is_dir():
        raise Problems(
            Problem(sweep.name, f"was started in {sweep.folder}, which is gone", "start a new sweep", "not-found")
        )
    with Lock(Folder(sweep.path)) as lock:
        queue = Queue(sweep.parallel, [lock.descriptor])
        request = StopRequest(queue, Folder(sweep.path))
        with handle(request):
            _drive(sweep, queue, request, show)
    if request:
        return 128 + request.first
    codes = {run.exit_code for run in queue.runs} - {0}
    return 0 if not codes else 2 if codes == {2} else 1


def _drive(sweep: Sweep, queue: Queue, request: StopRequest, show: OnViews) -> None:
    points_now, looked_at = views(sweep), 0.0
    runs = [
        (view, _make_queued(sweep, view), store.RunReader(view.folder.events))
        for view in points_now if view.state.status != "finished"
    ]  # fmt: skip
    queue.runs = [run for _, run, _ in runs]
    sweep.write()
    while not queue.is_done:
        changed = queue.advance()
        looks = bool(changed) or time.monotonic() - looked_at >= LOOK_S
        looked_at = time.monotonic() if looks else looked_at
        for view, run, reader in runs:
            if run in changed:
                view.entry.status, view.entry.why = _status(run, sweep.log_of(view.entry), request)
            if run in changed or (looks and run.is_running):
                view.state = _read_state(view.folder, run, reader)
        if changed:
            with suppress(OSError):  # a full disk: the state of each run is in its own folder
                sweep.write()
        show(points_now, [(view.entry.name, line) for view, run, _ in runs for line in run.new_lines])
        request.look()
        time.sleep(POLL_S)


def _read_state(folder: Folder, run: QueuedRun, reader: store.RunReader) -> RunState:
    return reader.look() if run.exit_code is None else store.see(folder, reader).state


def _make_queued(sweep: Sweep, view: View) -> QueuedRun:
    """The process that begins a point, or resumes it; until then the point waits."""
    view.entry.status, view.entry.why = "waiting", ""
    config = ["--config-dir", sweep.config_dir] if sweep.config_dir else []
    resumes = view.folder.spec.is_file() and view.folder.has_results()
    words = ["--resume", str(view.folder.path)] if resumes else [*config, *view.entry.words]
    return QueuedRun(words, sweep.log_of(view.entry), sweep.folder, view.entry.needs)


def _status(run: QueuedRun, log: Path, request: StopRequest) -> tuple[Status, str]:
    """The status of a point that began or ended, and why."""
    code = run.exit_code
    if code is None:
        return "running", ""
    if code == 0:
        return "finished", ""
    if request or code > 128:
        return "stopped", ""
    ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return "failed", (run.problem if code > 0 else "") or f"{ended}; its log is {log}"


def views(sweep: Sweep) -> list[View]:
    """Every point with the state of its run, which counts more: a sweep that was killed could not record it."""
    is_driven = holder(Folder(sweep.path)) is not None
    points_now = []
    for entry in sweep.points:
        view = View(entry, sweep.run_of(entry))
        if view.folder.spec.is_file():
            view.state = store.see(view.folder).state
        if view.state.status in ("running", "finished") or (entry.status == "running" and not is_driven):
            entry.status, entry.why = view.state.status, view.state.why
        points_now.append(view)
    return points_now
