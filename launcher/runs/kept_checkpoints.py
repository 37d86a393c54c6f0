"""A run's checkpoints, as a user asks for them: which there are, and which is best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from yaml import YAMLError

from launcher.core import checkpoints
from launcher.core.bounded_parse import parse_yaml
from launcher.core.events import Saved, Step, events_of
from launcher.core.files import read_file
from launcher.core.metrics import grade, held_out_score, main_score, validation
from launcher.core.problems import Problem, Problems
from launcher.runs.folder import Folder


@dataclass(frozen=True)
class Kept:
    """One checkpoint."""

    step: int
    path: Path
    at: float
    """When it was written, in Unix seconds."""
    bytes: int
    faults: tuple[Problem, ...] | None
    """What is wrong with it; None where it was not verified."""
    metrics: Mapping[str, float]
    """Metrics of its validation, and the step's score in training."""
    judged: tuple[str, float] | None
    """Name and value of the metric that ranks it; None where its step was not validated."""
    newest: bool = False
    """The newest that verifies: the one that training goes on from."""
    best: bool = False
    """The best that verifies."""

    @property
    def node(self) -> dict[str, Any]:
        name, score = self.judged or (None, None)
        faults = None if self.faults is None else list(map(str, self.faults))
        node = {**asdict(self), "path": self.path, "faults": faults, "verified": None if faults is None else not faults}
        del node["judged"]
        return {**node, "judged_by": name, "score": score}


def kept(folder: Folder, *, verify: bool = True) -> list[Kept]:
    """All checkpoints, the newest first. With `verify` false nothing is hashed, and newest and best are those that
    would be if all verify."""
    ranking_metric = own_metric(folder)
    listed = _list_checkpoints(folder, ranking_metric, verify)
    intact = [one for one in listed if not one.faults]
    grades = {one.step: grade(validation(one.metrics), ranking_metric) for one in intact}
    ranked = sorted((value, step) for step, value in grades.items() if value is not None)
    newest, best = intact[0].step if intact else None, ranked[-1][1] if ranked else None
    return [replace(one, newest=one.step == newest, best=one.step == best) for one in listed]


def best(folder: Folder) -> Kept:
    """The best checkpoint that verifies. Raises `Problems` where there is none."""
    candidates = kept(folder)
    chosen = next((one for one in candidates if one.best), None)
    if chosen is None:
        all_faults = [fault for one in candidates for fault in one.faults or ()]
        faults = [replace(fault, where=f"{folder.name}/checkpoints/{fault.where}") for fault in all_faults]
        measured = any(validation(one.metrics) for one in candidates)
        why = f"no checkpoint that verifies has {own_metric(folder) or 'a score'}" if measured else "none was validated"
        fix = "use a trainer.test_freq that divides trainer.save_freq"
        raise Problems([Problem(folder.name, why, fix, "not-found"), *faults])
    return chosen


def newest(folder: Folder) -> Kept:
    """The newest checkpoint that verifies. Raises `Problems` where there is none."""
    path, faults = checkpoints.newest_verified(folder.checkpoints)
    if path is None:
        got, fix = "has no checkpoint that verifies", "use a run that saved one"
        raise Problems([Problem(folder.name, got, fix, "not-found"), *faults])
    return _verified_checkpoint(folder, checkpoints.step_of(path))


def of_step(folder: Folder, step: int, option: str = "--step") -> Kept:
    """The checkpoint of a step, as `option` asks. Raises `Problems` where there is none or it does not verify."""
    path_by_step = {checkpoints.step_of(path): path for path in checkpoints.newest_first(folder.checkpoints)}
    if step not in path_by_step:
        fix = f"it has {', '.join(map(str, reversed(path_by_step))) or 'none'}"
        raise Problems(Problem(option, f"{folder.name} has no checkpoint of step {step}", fix, "not-found"))
    if faults := checkpoints.faults(path_by_step[step]):
        got = f"the checkpoint of step {step} does not verify"
        raise Problems([Problem(option, got, "use another", "bad-file"), *faults])
    return _verified_checkpoint(folder, step)


def _verified_checkpoint(folder: Folder, step: int) -> Kept:
    listed = _list_checkpoints(folder, own_metric(folder), verify=False)
    return next(replace(one, faults=()) for one in listed if one.step == step)


def own_metric(folder: Folder) -> str | None:
    """The metric by which the run itself ranks its checkpoints, `trainer.best_metric`."""
    metric = stored_setting(folder, "trainer", "best_metric")
    return metric if isinstance(metric, str) else None


def stored_setting(folder: Folder, group: str, name: str) -> Any:
    """A value of the run's spec.yaml, of any version; None where it has none."""
    try:
        return parse_yaml(read_file(folder.spec))[group][name]
    except (OSError, ValueError, YAMLError, KeyError, TypeError):
        return None


def _list_checkpoints(folder: Folder, metric: str | None, verify: bool) -> list[Kept]:
    steps: dict[int, Mapping[str, float]] = {}
    saved_at: dict[int, float] = {}
    for event in events_of(folder.events):
        if isinstance(event, Step):
            steps[event.step] = event.metrics
        elif isinstance(event, Saved):
            saved_at[event.step] = event.at
    listed = []
    for path in checkpoints.newest_first(folder.checkpoints):
        step = checkpoints.step_of(path)
        measured = validation(checkpoints.validated(path) or steps.get(step, {}))
        score = main_score(steps.get(step, {}))
        files = [file.stat() for file in path.rglob("*") if file.is_file()]
        written = max((file.st_mtime for file in files), default=path.stat().st_mtime)
        listed.append(
            Kept(
                step=step, path=path, at=saved_at.get(step, written), bytes=sum(file.st_size for file in files),
                faults=tuple(checkpoints.faults(path)) if verify else None,
                metrics={**measured, **dict([score] if score else [])}, judged=held_out_score(measured, metric),
            )
        )  # fmt: skip
    return listed
