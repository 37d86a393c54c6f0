"""Where processes run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field

from launcher.core.events import Event, Usage
from launcher.core.problems import Problem
from launcher.core.settings import NonNegative, settings
from launcher.spec.engine import Plan
from launcher.spec.hardware import Hardware

MOMENTS_S = 1.0  # within which the others follow a process that failed
FEW = 8  # processes that are looked at as often as was asked
KILLED = (9, 11, 7)  # by the system or its own memory (SIGKILL, SIGSEGV, SIGBUS), never for another's sake


@dataclass(frozen=True)
class Stack:
    """Where a process stands now."""

    rank: int
    host: str
    pid: int
    state: str
    """As Linux tells it: R runs, S sleeps, T was stopped, D waits for a disk, Z and X have ended; empty: unknown."""
    text: str
    """The stacks of its threads as Python writes them, the main one last; empty where it did not answer."""


@dataclass(frozen=True)
class Failure:
    """A process that did not end with 0."""

    rank: int
    code: int
    """Negative: the signal that killed it."""
    at: float
    """Seconds of a clock that all of them share."""


def first_failure(found: Sequence[Failure]) -> Failure | None:
    """The one that the others follow from: the soonest, and of those that ended within moments one that was killed, as
    the others then end because they cannot reach it."""
    soonest = min((failure.at for failure in found), default=0.0)
    near = [failure for failure in found if failure.at - soonest <= MOMENTS_S]
    return min(near, key=lambda failure: (-failure.code not in KILLED, failure.at, failure.rank), default=None)


class Job(Protocol):
    """Processes that were started together and end together."""

    def lines(self) -> list[str]:
        """What rank 0 has written since the last call, whole lines only."""

    def exit_code(self) -> int | None:
        """None while any process runs; then 0, or the first failure (negative: the signal that killed it)."""

    def failed_rank(self) -> int | None:
        """Which process failed first, as `first_failure` says."""

    def poll_events(self) -> list[Event]:
        """What the cluster itself tells since the last call: that it waits for nodes, or why it starts nothing."""

    def lost_resources(self) -> str:
        """What of the cluster is gone, such as "node 10.0.0.2 is gone"; empty while all is there."""

    def stacks(self, wait_s: float) -> list[Stack]:
        """Where each process stands. Blocks for at most `wait_s`, and disturbs none."""

    def usage(self) -> list[Usage]:
        """What each process uses, as far as it was found out since the last call. Never waits."""

    def stop(self, number: int) -> None:
        """Ask all processes to save and end."""

    def kill(self) -> None:
        """End all processes at once."""


class Queued(Protocol):
    """A run that another system starts in its time, as `rlrun train --resume` of its folder."""

    @property
    def name(self) -> str:
        """Such as `slurm job 12`."""

    @property
    def log(self) -> Path:
        """What it says beside the run's own logs."""

    def queue_status(self) -> str:
        """`pending (Resources)`, `running on node-1`; empty once it has left. Raises `Problems`, which may pass."""

    @property
    def stopped(self) -> bool:
        """Whether somebody has asked it to end."""

    def stop(self, now: bool) -> None:
        """Ask it to save and end; `now`: not to save."""


@settings
class Cluster(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/cluster/<name>.yaml."""

    stall_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    """Times a usual step (or loading, validation, checkpoint) that may pass in silence before the process that stands
    still is named; large values suit runs whose steps differ much in length."""
    stall_grace_s: NonNegative = 8.0
    """Seconds beyond that, so that a short pause is no news."""
    usage_s: NonNegative = 15.0
    """Seconds between two looks at what each process uses of its GPU, processor and memory; 0 never looks. They grow
    with the number of processes beyond 8, so that the events of a large run do not drown in it."""

    def usage_pause_s(self, plan: Plan) -> float:
        """What `usage_s` is for as many processes."""
        return self.usage_s * max(1.0, len(plan.processes) / FEW)

    def problems(self, hardware: Hardware) -> list[str]:
        """Why it cannot give this hardware: one line each."""
        return []

    @property
    def remote_address(self) -> str | None:
        """Address of a cluster whose machines may be others than this one; None where the run is on this one."""
        return None

    def each_node(self, hardware: Hardware) -> Mapping[str, float]:
        """What each node has to have free, as Ray counts it."""
        return {"GPU": float(hardware.n_gpus_per_node)}

    def missing_requirements(self, hardware: Hardware) -> list[Problem]:
        """What is missing right now, such as a port that is in use."""
        return []

    @property
    def queues(self) -> bool:
        """Whether a run is to be handed over with `submit`, and not started from here."""
        return False

    def submit(self, name: str, folder: Path, hardware: Hardware) -> Queued:
        """Hand over the run `name` (project/experiment), whose folder is ready."""
        raise NotImplementedError(f"{type(self).__name__} has no queue")

    @abstractmethod
    def start(self, plan: Plan, logs: Path, lock: int) -> Job:
        """Start the plan's processes, each writing `logs/rank-<rank>.log`.

        `lock` is the run's open lock file: the processes hold it too, so the run stays locked while one lives.
        """
