"""What is in use of a process's GPU, as its driver tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class GpuUse:
    """As `events.Usage` has it; None where the driver does not tell, as for a part of a GPU (MIG) its share of time."""

    gpu_percent: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    gpu_celsius: float | None = None
    gpu_watts: float | None = None


def gpu_of(env: Mapping[str, str]) -> str:
    """Index or UUID of the GPU that a process of this environment computes on; empty where there is none."""
    local = int(env.get("LOCAL_RANK", "0"))
    visible = env.get(VISIBLE)
    if visible is None:
        return str(local)
    names = [name.strip() for name in visible.split(",")]
    return names[local] if local < len(names) else ""


@contextmanager
def driver() -> Iterator[Callable[[str], GpuUse]]:
    """What is in use of a GPU by its name; loaded once, as that takes longer than any question."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield lambda _: GpuUse()
        return
    try:
        yield _use
    finally:
        pynvml.nvmlShutdown()


def _use(name: str) -> GpuUse:
    find = pynvml.nvmlDeviceGetHandleByIndex if name.isdecimal() else pynvml.nvmlDeviceGetHandleByUUID
    gpu = _ask_driver(find, int(name) if name.isdecimal() else name)
    if gpu is None:
        return GpuUse()
    rates, memory = (
        _ask_driver(pynvml.nvmlDeviceGetUtilizationRates, gpu),
        _ask_driver(pynvml.nvmlDeviceGetMemoryInfo, gpu),
    )
    heat = _ask_driver(pynvml.nvmlDeviceGetTemperature, gpu, pynvml.NVML_TEMPERATURE_GPU)
    milliwatts = _ask_driver(pynvml.nvmlDeviceGetPowerUsage, gpu)
    return GpuUse(
        None if rates is None else float(rates.gpu),
        None if memory is None else int(memory.used),
        None if memory is None else int(memory.total),
        None if heat is None else float(heat),
        None if milliwatts is None else milliwatts / 1000,
    )


def _ask_driver(ask: Callable[..., Any], *words: Any) -> Any:
    """None where the driver does not tell."""
    try:
        return ask(*words)
    except pynvml.NVMLError:
        return None
