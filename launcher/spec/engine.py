"""What runs a RunSpec: it says which processes to start, and what their lines mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

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
    def read(self, line: str) -> Iterator[Event]:
        """The events that one line of rank 0 tells. Pure."""
