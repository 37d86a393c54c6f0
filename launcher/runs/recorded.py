"""A run's results, for programs: its state, and tables of its metrics, samples and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.core.bounded_parse import parse_yaml
from launcher.core.events import Sample, Step, events_of
from launcher.core.files import read_file
from launcher.core.state import RunState
from launcher.runs import kept_checkpoints, store
from launcher.runs.folder import Folder
from launcher.runs.kept_checkpoints import Kept


@dataclass(frozen=True)
class RecordedRun:
    """A run as its folder records it. Tables are lists of rows: `pandas.DataFrame(run.metrics())`."""

    folder: Folder
    state: RunState
    """Its status, step, held-out results (first, best, last), and why it ended."""

    @classmethod
    def read(cls, folder: Folder) -> RecordedRun:
        """The run in a folder, as it is now."""
        return cls(folder, store.see(folder).state)

    @property
    def name(self) -> str:
        """project/experiment."""
        return self.folder.name

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting, as in spec.yaml. Raises OSError or ValueError where it cannot be read."""
        settings: dict[str, Any] = parse_yaml(read_file(self.folder.spec))
        return settings

    def metrics(self) -> list[dict[str, float]]:
        """A row for each step, in order: `step`, `at` (Unix seconds) and each metric that was measured in it."""
        steps = (event for event in events_of(self.folder.events) if isinstance(event, Step))
        return [{"step": event.step, "at": event.at, **event.metrics} for event in steps]

    def samples(self) -> list[dict[str, Any]]:
        """A row for each logged answer to a held-out prompt: step, data_source, prompt, response, ground_truth, score,
        and episodes, its turns where there is an environment.
        `trainer.log_val_generations` says how many there are for each validation."""
        samples = (event for event in events_of(self.folder.events) if isinstance(event, Sample))
        return [{name: value for name, value in asdict(event).items() if name != "at"} for event in samples]

    def checkpoints(self) -> list[Kept]:
        """The checkpoints that it kept, the newest first, hashed and compared with their manifests."""
        return kept_checkpoints.kept(self.folder)


def find(name: str, root: str | Path = "runs") -> RecordedRun:
    """The run that a folder's path, `project/experiment` or a unique experiment's name means. Raises `Problems`."""
    return RecordedRun.read(store.find(name, Path(root)))


def every(root: str | Path = "runs") -> Iterator[RecordedRun]:
    """All runs below `root`, the one that wrote last first."""
    for run in store.every(Path(root)):
        yield RecordedRun(run.folder, run.state)
