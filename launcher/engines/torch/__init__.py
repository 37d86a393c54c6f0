"""Our own engine: torch and transformers. This file says how to start it and loads neither."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from launcher.events import Alert, Event, from_line
from launcher.problems import shown
from launcher.settings import Count, settings
from launcher.spec.engine import Engine, Plan, Process
from launcher.spec.run import RunSpec
from launcher.spec.sampler import Sampler

MARK = "@rlrun "
"""Begins an event on a line of rank 0; lines without it are talk, and only kept."""


@settings
class TorchSampler(Sampler):
    """Samples from the model under training itself, without a second copy of the weights."""


@settings
class Torch(Engine):
    """Data-parallel training: each process holds the whole model."""

    num_threads: Count = 0
    """CPU threads of each process; 0 shares the machine's cores. One is fastest for very small models."""

    runs = frozenset({"SFT", "GRPO"})

    def plan(self, run: RunSpec, folder: Path, start: int = 0) -> Plan:
        processes = run.hardware.processes
        argv = (sys.executable, "-P", "-m", "launcher.engines.torch.worker", str(folder), str(start))
        return Plan(
            tuple(
                Process(rank, argv, {"RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank)})
                for rank in range(processes)
            )
        )

    def read(self, line: str) -> Iterator[Event]:
        _, mark, text = line.partition(MARK)  # talk may stand before it: what a reward prints need not end its line
        if not mark:
            return
        try:
            event = from_line(text)
        except (ValueError, KeyError, TypeError, AttributeError):
            event = Alert(step=0, text=f"rank 0 told what cannot be read: {shown(text)}")
        if event:
            yield event
