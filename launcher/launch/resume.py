"""Back to the newest checkpoint that verifies: how a run goes on, whoever asks for it."""

from __future__ import annotations

from launcher.core.checkpoints import Checkpoint
from launcher.core.events import Alert, Event
from launcher.core.problems import Problem, Problems
from launcher.launch import provenance as locks
from launcher.runs.folder import Folder
from launcher.spec.run import RunSpec


def unchanged(run: RunSpec, folder: Folder) -> None:
    """Raises `Problems` where the data or the model is not what the run began with."""
    recorded = locks.read(folder)
    if run.data.fingerprint() != recorded.get("data"):
        got = "is not what the run began with (its sha256 differs)"
        raise Problems(Problem("data", got, "use the original data", "changed"))
    if needs_initial_weights(run, folder) and not locks.same_files(
        recorded.get("model"), locks.model_origin(run.model)
    ):
        got = "is not what the run began with (its files differ)"
        raise Problems(Problem("model", got, "use the original model", "changed"))


def needs_initial_weights(run: RunSpec, folder: Folder) -> bool:
    """Whether it needs the model that it began with, beside what is in its checkpoints."""
    return "reference" in run.algorithm.needs or not run.engine.checkpoints(folder.path).newest_first()


def newest(run: RunSpec, folder: Folder) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to go on from, None for the beginning, and the faults of newer ones. Raises `Problems` where none
    verifies."""
    checkpoints = run.engine.checkpoints(folder.path)
    checkpoints.tidy()
    found, faults = checkpoints.newest_verified()
    if faults and found is None:
        raise Problems([*faults, Problem(folder.name, "no checkpoint verifies", "start a new run", "bad-file")])
    return found, faults


def step_of(checkpoint: Checkpoint | None) -> int:
    return checkpoint.step if checkpoint else 0


def rollback_to(checkpoint: Checkpoint | None, faults: list[str], run: RunSpec, folder: Folder) -> list[Event]:
    """Set aside the checkpoints that are newer than `checkpoint`, because of their `faults`; an alert for each."""
    step = step_of(checkpoint)
    run.engine.checkpoints(folder.path).set_aside_after(step)
    went_on = f"went on from {checkpoint.name if checkpoint else 'the beginning'}"
    return [Alert(step=step, text=f"checkpoints/{fault}; {went_on}") for fault in faults]
