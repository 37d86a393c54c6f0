"""Interface of clusters: where the processes of a run start."""

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

MOMENTS_S = 1.0  # other processes end within this time after the one that failed
FEW = 8  # processes up to which usage is measured every `usage_s`; with more, less often
KILLED = (9, 11, 7)  # SIGKILL, SIGSEGV, SIGBUS: signals that never follow from another process's failure


@dataclass(frozen=True)
class Stack:
    """The current stack of a process."""

    rank: int
    host: str
    pid: int
    state: str
    """Process state in Linux: R running, S sleeping, T stopped, D waiting for a disk, Z and X ended; empty if
    unknown."""
    text: str
    """The stacks of its threads as Python formats them, the main one last; empty where it did not answer."""


@dataclass(frozen=True)
class Failure:
    """A process with an exit code other than 0."""

    rank: int
    code: int
    """Negative: the signal that killed it."""
    at: float
    """Seconds on a clock shared by all processes."""


def first_failure(found: Sequence[Failure]) -> Failure | None:
    """The root failure: the earliest one or, within MOMENTS_S of it, one that was killed by a signal of KILLED, as the
    others then fail because they cannot reach it."""
    soonest = min((failure.at for failure in found), default=0.0)
    simultaneous = [failure for failure in found if failure.at - soonest <= MOMENTS_S]
    return min(simultaneous, key=lambda failure: (-failure.code not in KILLED, failure.at, failure.rank), default=None)


class Job(Protocol):
    """Processes that were started together and end together."""

    def lines(self) -> list[str]:
        """Whole lines that rank 0 has written since the last call."""

    def exit_code(self) -> int | None:
        """None while any process runs; then 0, or the first failure's code (negative: the signal that killed it)."""

    def failed_rank(self) -> int | None:
        """Rank of the `first_failure`."""

    def poll_events(self) -> list[Event]:
        """Events of the cluster itself since the last call, such as waiting for nodes."""
        return []

    def lost_resources(self) -> str:
        """Resources that the cluster has lost, such as "node 10.0.0.2 is gone"; empty if none."""
        return ""

    def stacks(self, wait_s: float) -> list[Stack]:
        """The stack of each process, where the cluster can tell. Blocks for at most `wait_s`; the processes go on
        running."""
        return []

    def usage(self) -> list[Usage]:
        """Resource usage of each process, measured since the last call. Never blocks."""
        return []

    def stop(self, number: int) -> None:
        """Ask all processes to save and end."""

    def kill(self) -> None:
        """End all processes at once."""


@settings
class Cluster(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/cluster/<name>.yaml."""

    stall_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    """A step (or loading, validation, checkpoint) that takes longer than this many times the usual duration is reported
    as stalled, with the stalled process; use large values where the durations of steps differ much."""
    stall_grace_s: NonNegative = 8.0
    """Seconds added to that limit, so that short pauses are not reported."""
    usage_s: NonNegative = 15.0
    """Seconds between two measurements of each process's GPU, CPU and memory usage; 0 disables them. The interval grows
    with the number of processes beyond 8, to limit the size of the event log."""

    def usage_pause_s(self, plan: Plan) -> float:
        """`usage_s`, scaled to the number of processes of the plan."""
        return self.usage_s * max(1.0, len(plan.processes) / FEW)

    def problems(self, hardware: Hardware) -> list[Problem]:
        """Why it cannot provide this hardware."""
        return []

    @property
    def remote_address(self) -> str | None:
        """Address of a cluster of other machines; None where the run is on this one."""
        return None

    def each_node(self, hardware: Hardware) -> Mapping[str, float]:
        """Resources that each node has to have free, by Ray's names."""
        return {"GPU": float(hardware.n_gpus_per_node)}

    def missing_requirements(self, hardware: Hardware) -> list[Problem]:
        """What is missing at this moment, such as a port that is in use."""
        return []

    @property
    def queues(self) -> bool:
        """Whether a run is queued with `submit` instead of started at once."""
        return False

    def submit(self, name: str, folder: Path, hardware: Hardware) -> str:
        """Hand over the run `name` (project/experiment), whose folder is ready, to be started later as by `rlrun train
        --resume`. Returns what the queue calls it, such as `slurm job 12`."""
        raise NotImplementedError(f"{type(self).__name__} has no queue")

    @abstractmethod
    def start(self, plan: Plan, logs: Path, lock: int) -> Job:
        """Start the plan's processes, each writing `logs/rank-<rank>.log`.

        `lock` is the run's open lock file: the processes hold it too, so the run stays locked while one lives.
        """
