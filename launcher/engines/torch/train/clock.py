"""Timings of a step, and the machine's resources that it takes."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Clock:
    """Seconds spent under each name since `start`."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def pop_timings(self) -> dict[str, float]:
        """`timing_s/<name>` of everything measured since the last call."""
        timings = {f"timing_s/{name}": value for name, value in self.seconds.items()}
        self.seconds.clear()
        return timings


def perf_metrics(tokens: int, seconds: float, cpu: float, device: torch.device, processes: int) -> dict[str, float]:
    """verl's perf metrics; `tokens` are those of all `processes`, `cpu` the processor seconds of this one."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = kilobytes * (1 if sys.platform == "darwin" else 1024)
    metrics = {
        "perf/total_num_tokens": float(tokens),
        "perf/time_per_step": seconds,
        "perf/throughput": tokens / seconds / processes,
        "perf/cpu_s": cpu,
        "perf/cpu_memory_used_gb": memory / 2**30,
    }
    if device.type == "cuda":
        metrics["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated(device) / 2**30
        metrics["perf/max_memory_reserved_gb"] = torch.cuda.max_memory_reserved(device) / 2**30
        metrics["perf/gpu_memory_total_gb"] = torch.cuda.get_device_properties(device).total_memory / 2**30
    return metrics
