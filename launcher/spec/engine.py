"""What runs a RunSpec: it says which processes to start, and what their lines mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from launcher.core.checkpoints import Checkpoint, CheckpointFolder
from launcher.core.events import Event

if TYPE_CHECKING:
    from launcher.spec.memory import Memory
    from launcher.spec.reward import Reward
    from launcher.spec.run import RunSpec


@dataclass(frozen=True)
class Process:
    """One process to start. Its standard output is kept as `rank-<rank>.log`."""

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    node: int = 0
    """Which of the plan's machines it runs on."""


@dataclass(frozen=True)
class Plan:
    """All processes of a run; rank 0 is the one that tells what happens, and on the first node."""

    processes: tuple[Process, ...]
    nnodes: int = 1
    """Machines that they are spread over, each with as many."""
    gpus: int = 0
    """Of each process."""
    resources: Literal["reserve", "attach"] = "reserve"
    """`reserve`: the cluster reserves CPUs and GPUs for each process. `attach`: the processes bring up a cluster of
    their own on the machines, so nothing is reserved for them."""


class EventReader(Protocol):
    """Makes events of what the processes of one attempt write. It may keep state between lines."""

    def feed(self, line: str) -> Iterable[Event]:
        """The events that the next line brings. Pure but for its own state."""

    def files(self) -> Sequence[Path]:
        """Files beside rank 0's output whose lines are to be fed, too, as they grow; they need not exist yet."""


class Checkpoints(Protocol):
    """A run's checkpoints on disk, in whatever layout its engine writes them."""

    def newest_first(self) -> Sequence[Checkpoint]:
        """All that look like checkpoints; none is verified."""

    def newest_verified(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest without a fault, and the faults of those that are newer."""

    def faults(self, checkpoint: Checkpoint) -> list[str]:
        """What is wrong with it, a line for each file."""

    def validated(self, checkpoint: Checkpoint) -> Mapping[str, float]:
        """What a validation measured of it; nothing where none did."""

    def policy(self, checkpoint: Checkpoint) -> Path:
        """The folder with its policy in Hugging Face's layout: what is exported."""

    def set_aside_after(self, step: int) -> None:
        """Let those later than `step` count no more; their files stay."""

    def tidy(self) -> None:
        """Remove what a kill left half-written. Only the run's one writer may call it."""


class Engine(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/engine/<name>.yaml."""

    runs: ClassVar[frozenset[str]]
    """Names of the algorithm classes it can run."""

    def problems(self, run: RunSpec) -> list[str]:
        """Why it cannot run this: one line each."""
        if any(cls.__name__ in self.runs for cls in type(run.algorithm).__mro__):
            return []
        name = type(run.algorithm).__name__
        return [f"algorithm: {type(self).__name__} does not run {name}; it runs {', '.join(sorted(self.runs))}"]

    def reward(self, run: RunSpec) -> Reward:
        """The run's reward, ready to be asked here and now: where it has a network, that is loaded."""
        return run.reward

    def cores(self) -> int:
        """CPU cores that each of its processes computes on; 0 is its share of all of them."""
        return 0

    def memory(self, run: RunSpec) -> Memory | None:
        """What the fullest of its processes holds in each phase; None where that cannot be known."""
        return None

    @abstractmethod
    def plan(self, run: RunSpec, folder: Path, start: int = 0) -> Plan:
        """The processes that train `run` in its run folder, going on after step `start`. Pure."""

    @abstractmethod
    def reader(self) -> EventReader:
        """Reads what the processes of one attempt report."""

    def checkpoints(self, folder: Path) -> Checkpoints:
        """Those of the run in `folder`; by default as `core.checkpoints` describes."""
        return CheckpointFolder(folder / "checkpoints")
