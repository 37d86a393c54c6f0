"""Resource usage of processes on this machine, measured in a thread of its own: a disk or GPU driver that hangs delays
nothing else."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pynvml

from launcher.core import machine
from launcher.core.events import Usage

VISIBLE = "CUDA_VISIBLE_DEVICES"
GpuUsage = Mapping[str, Any]
"""The `gpu_` fields of `events.Usage`; None where the driver does not report one, as utilization of a MIG slice."""


class Meter:
    """Measures every `every_s` seconds (0: never) until it is closed."""

    def __init__(self, pids: Mapping[int, int], gpus: Mapping[int, str], folder: Path, every_s: float) -> None:
        """`pids` and `gpus` (as `gpu_of` names them) by rank; `folder` is on the disk whose free bytes are reported."""
        self._pids, self._gpus, self._folder, self._every_s = pids, gpus, folder, every_s
        self._measured: queue.SimpleQueue[Usage] = queue.SimpleQueue()
        self._closed = threading.Event()
        if every_s:
            threading.Thread(target=self._work, name="usage", daemon=True).start()

    def take(self) -> list[Usage]:
        """The measurements since the last call."""
        return [self._measured.get() for _ in range(self._measured.qsize())]

    def close(self) -> None:
        self._closed.set()

    def _work(self) -> None:
        cpu_seconds = {rank: seconds for rank, (seconds, _) in self._process_usage().items()}
        previous = time.monotonic()
        psutil.cpu_percent()  # counts from the call before
        while not self._closed.wait(self._every_s):
            now, shared = time.monotonic(), self._machine_usage()
            for rank, (seconds, memory) in self._process_usage().items():
                cpu = round(100 * max(seconds - cpu_seconds.get(rank, 0.0), 0.0) / (now - previous), 1)
                cpu_seconds[rank] = seconds
                of_gpu = gpu_usage(self._gpus[rank])
                self._measured.put(replace(shared, rank=rank, cpu_percent=cpu, memory_bytes=memory, **of_gpu))
            previous = now

    def _machine_usage(self) -> Usage:
        """The fields that all ranks share."""
        try:
            free = machine.free_disk_bytes(self._folder)
        except OSError:
            free = None
        return Usage(
            rank=0, host=socket.gethostname(), cpu_percent=0.0, memory_bytes=0,
            machine_cpu_percent=psutil.cpu_percent(), machine_memory_bytes=machine.used_memory_bytes(),
            machine_memory_total_bytes=machine.memory_bytes(), disk_free_bytes=free,
        )  # fmt: skip

    def _process_usage(self) -> dict[int, tuple[float, int]]:
        """CPU seconds since its start, and resident bytes, of each rank that lives, with all its descendants."""
        processes = {process.pid: process for process in psutil.process_iter(["ppid"])}  # one listing for all ranks
        children = defaultdict[int, list[psutil.Process]](list)
        for process in processes.values():
            children[process.info["ppid"]].append(process)
        usage_by_rank = {}
        for rank, pid in self._pids.items():
            family = [processes[pid]] if pid in processes else []
            for process in family:  # grows meanwhile
                family += children[process.pid]
            if usages := [one for one in map(_usage_of, family) if one]:
                usage_by_rank[rank] = sum(seconds for seconds, _ in usages), sum(resident for _, resident in usages)
        return usage_by_rank


def _usage_of(process: psutil.Process) -> tuple[float, int] | None:
    """CPU seconds, including those of children that have ended, and resident bytes; None if it has ended."""
    try:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return sum(process.cpu_times()[:4]), process.memory_info().rss
    except psutil.Error:
        return None


def gpu_of(env: Mapping[str, str]) -> str:
    """Index or UUID of the GPU that a process of this environment computes on; empty if there is none."""
    local = int(env.get("LOCAL_RANK", "0"))
    if (visible := env.get(VISIBLE)) is None:
        return str(local)
    names = [name.strip() for name in visible.split(",")]
    return names[local] if local < len(names) else ""


@cache
def _has_driver() -> bool:
    """Whether there is a driver. NVML is loaded once, which takes longer than a query."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def gpu_usage(name: str) -> GpuUsage:
    """The usage of the GPU of this index or UUID; empty where there is no such GPU, or no driver."""
    if not name or not _has_driver():
        return {}
    by_index = name.isdecimal()
    find = pynvml.nvmlDeviceGetHandleByIndex if by_index else pynvml.nvmlDeviceGetHandleByUUID
    gpu = _query(find, int(name) if by_index else name)
    if gpu is None:
        return {}
    rates, memory = _query(pynvml.nvmlDeviceGetUtilizationRates, gpu), _query(pynvml.nvmlDeviceGetMemoryInfo, gpu)
    celsius = _query(pynvml.nvmlDeviceGetTemperature, gpu, pynvml.NVML_TEMPERATURE_GPU)
    milliwatts = _query(pynvml.nvmlDeviceGetPowerUsage, gpu)
    return {
        "gpu_percent": rates and float(rates.gpu),
        "gpu_memory_bytes": memory and int(memory.used),
        "gpu_memory_total_bytes": memory and int(memory.total),
        "gpu_celsius": None if celsius is None else float(celsius),
        "gpu_watts": None if milliwatts is None else milliwatts / 1000,
    }


def _query(call: Callable[..., Any], *args: Any) -> Any:
    """The result of an NVML call; None where the driver returns an error."""
    try:
        return call(*args)
    except pynvml.NVMLError:
        return None
