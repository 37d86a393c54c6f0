"""What runs a RunSpec: it says which processes to start, and what their lines mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from launcher.core.events import Event
from launcher.core.problems import Problem

if TYPE_CHECKING:
    from launcher.spec.algorithm import Algorithm, Kind, Need
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

    computes: ClassVar[frozenset[Need]] = frozenset()
    """What it can compute for an algorithm before the update."""
    reads: ClassVar[frozenset[Kind]] = frozenset()
    """Kinds of rows that it can train on."""

    def supports(self, algorithm: Algorithm) -> list[Problem]:
        """Why it cannot train with this algorithm; empty where it can.

        Judged by what the algorithm needs, takes and defines, not by its name: a class of one's own is as good as ours.
        """
        name, engine, found = type(algorithm).__name__, type(self).__name__, list[Problem]()
        if lacking := sorted(algorithm.needs - self.computes):
            got = f"{name} needs {', '.join(lacking)}, which {engine} does not compute"
            found.append(Problem("algorithm", got, _one_of("one that needs only", self.computes), "not-supported"))
        if algorithm.data not in self.reads:
            got = f"{name} learns from {algorithm.data}, which {engine} does not read"
            found.append(Problem("algorithm", got, _one_of("one that learns from", self.reads), "not-supported"))
        if "critic" in algorithm.needs and not algorithm.has_value_loss:
            got = f"{name} needs a critic and defines no value_loss"
            found.append(Problem("algorithm", got, "define value_loss in it", "not-supported"))
        return found

    def problems(self, run: RunSpec) -> list[str]:
        """Why it cannot run this: one line each."""
        return [str(problem) for problem in self.supports(run.algorithm)]

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


def _one_of(what: str, known: Iterable[str]) -> str:
    return f"use {what} {', '.join(sorted(known)) or 'nothing'}"
