"""Where processes run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

from launcher.spec.engine import Plan
from launcher.spec.hardware import Hardware


class Job(Protocol):
    """Processes that were started together and end together."""

    def lines(self) -> list[str]:
        """What rank 0 has written since the last call, whole lines only."""

    def exit_code(self) -> int | None:
        """None while any process runs; then 0, or the first failure (negative: the signal that killed it)."""

    def failed_rank(self) -> int | None:
        """Which process failed first."""

    def stop(self, number: int) -> None:
        """Ask all processes to save and end."""

    def kill(self) -> None:
        """End all processes at once."""


class Cluster(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/cluster/<name>.yaml."""

    def problems(self, hardware: Hardware) -> list[str]:
        """Why it cannot give this hardware: one line each."""
        return []

    def lacks(self, hardware: Hardware) -> list[str]:
        """What is not there right now, such as a port that somebody has taken: one line each."""
        return []

    @abstractmethod
    def start(self, plan: Plan, logs: Path, lock: int) -> Job:
        """Start the plan's processes, each writing `logs/rank-<rank>.log`.

        `lock` is the run's open lock file: the processes hold it too, so the run stays locked while one lives.
        """
