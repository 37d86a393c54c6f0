"""The interface of a tracker, the run that it shows, and its state in the run's folder.

runs/<project>/<experiment>/trackers/NAME.json    {"id", "row", "seq", "shift", "state": what the tracker keeps}
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from launcher.core.bounded_parse import parse_json, parse_yaml
from launcher.core.events import How
from launcher.core.files import open_file, read_file, write_atomic
from launcher.core.problems import Problem, Problems
from launcher.trackers.feed import FeedPosition, TrackedStep

CLASSES = {
    "tensorboard": "tensorboard:TensorBoard",
    "wandb": "wandb:WandB",
    "trackio": "trackio:Trackio",
    "mlflow": "mlflow:MLflow",
    "swanlab": "swanlab:SwanLab",
    "file": "jsonl:JsonLines",
}
"""`module:class` in this package by the names of `spec.trackers.TRACKERS`; a module imports its library."""


@dataclass(frozen=True)
class TrackedRun:
    """The run, as a tracker gets it."""

    folder: Path
    id: str
    """Twelve hex digits, the same for the life of the run."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The settings by their dotted names."""

    @property
    def project(self) -> str:
        return self.folder.absolute().parent.name

    @property
    def experiment(self) -> str:
        return self.folder.absolute().name


class Tracker:
    """Shows a run elsewhere. Any call may raise anything: it is repeated later.

    `open` and `log` return nothing or raise; after either has raised, the tracker is opened again.
    """

    where = ""
    """Address or path where the run is shown; known once the tracker is open."""
    state: Mapping[str, Any] = {}
    """The tracker's own state after the last logged step, which is remembered with the position."""

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> int | None:
        """Connect, and continue from the remembered `state`. Returns the row up to which everything has arrived, -1 for
        none; None where that cannot be known, and the remembered position counts."""
        raise NotImplementedError

    def log(self, steps: Sequence[TrackedStep]) -> None:
        """Send `steps`, whose rows increase."""
        raise NotImplementedError

    def close(self, how: How | None) -> None:
        """Disconnect. `how` the run ended; None where that is not known."""
        raise NotImplementedError


def make_tracker(name: str) -> Tracker:
    """The tracker of that name. Raises `ImportError` where its library is missing."""
    module, _, cls = CLASSES[name].partition(":")
    tracker: Tracker = getattr(import_module(f"launcher.trackers.{module}"), cls)()
    return tracker


# ---- what is remembered


@dataclass(frozen=True)
class Remembered:
    """What is remembered of a tracker: the run's id, the position up to which it got the log, and its own state."""

    id: str
    position: FeedPosition = field(default_factory=FeedPosition)
    state: Mapping[str, Any] = field(default_factory=dict)


def state_file(folder: Path, name: str) -> Path:
    return folder / "trackers" / f"{name}.json"


def read_state(folder: Path, name: str) -> Remembered:
    """What is remembered, if anything. Raises `Problems` where the file is damaged: nothing may be sent twice."""
    file = state_file(folder, name)
    try:
        node = parse_json(read_file(file))
        position = FeedPosition(*(int(node[key]) for key in ("seq", "row", "shift")))
        return Remembered(str(node["id"]), position, dict(node["state"]))
    except FileNotFoundError:
        return Remembered(run_id(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "delete it to send the whole run again"
        raise Problems(Problem(str(file), "holds no position of a tracker", fix, "bad-file")) from error


def write_state(folder: Path, name: str, remembered: Remembered) -> None:
    node = {"id": remembered.id, **asdict(remembered.position), "state": dict(remembered.state)}
    write_atomic(state_file(folder, name), json.dumps(node) + "\n")


def run_id(folder: Path) -> str:
    """A new id for a run: 12 hex digits of a hash over its folder and its first event, so that another run of the same
    name has another one."""
    try:
        with open_file(folder / "events.jsonl") as log:
            first = log.readline(2**16)
    except OSError:
        first = b""
    return hashlib.sha256(os.fsencode(folder.absolute()) + b"\0" + first).hexdigest()[:12]


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """One process at a time sends a run to a tracker. Raises `Problems` where another one does."""
    file = state_file(folder, name)
    if file.parent.is_symlink():
        raise Problems(Problem(str(file.parent), "is a link", "replace it by a folder", "not-permitted"))
    file.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(file.with_name(f".{name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        got = f"another process sends this run to {name}"
        raise Problems(Problem(str(folder), got, "wait until that has ended", "in-use")) from error
    try:
        yield
    finally:
        os.close(descriptor)


# ---- the run


def tracked_run(folder: Path, run_id: str) -> TrackedRun:
    """The run in `folder`. Raises `Problems` where its settings cannot be read."""
    try:
        config = dict(_flat(parse_yaml(read_file(folder / "spec.yaml"))))
    except (OSError, ValueError) as error:
        raise Problems(
            Problem(str(folder / "spec.yaml"), "cannot be read", "use a run's folder", "bad-file")
        ) from error
    return TrackedRun(folder, run_id, config)


def _flat(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(node, dict):
        yield place, node
        return
    for key, value in node.items():
        yield from _flat(value, f"{place}.{key}" if place else str(key))
