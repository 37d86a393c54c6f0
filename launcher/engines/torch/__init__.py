"""Our own engine: torch and transformers. This file says how to start it and loads neither."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from launcher.events import Event, from_line
from launcher.settings import Count, settings
from launcher.spec.engine import Engine, Plan, Process
from launcher.spec.run import RunSpec
from launcher.spec.sampler import Sampler

MARK = "@rlrun "
"""Begins the lines of rank 0 that are events; all others are talk, and only kept."""


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
        argv = (sys.executable, "-m", "launcher.engines.torch.worker", str(folder), str(start))
        return Plan(
            tuple(
                Process(rank, argv, {"RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank)})
                for rank in range(processes)
            )
        )

    def read(self, line: str) -> Iterator[Event]:
        if line.startswith(MARK) and (event := from_line(line.removeprefix(MARK))):
            yield event
