"""What processes of this machine use, looked at by a thread of its own: a disk or a driver that does not answer holds
up nobody else."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from launcher.clusters.local.gpu_use import GpuUse, driver
from launcher.core import machine
from launcher.core.events import Usage


class Meter:
    """Looks every `every_s` seconds, never where that is 0, until it is closed."""

    def __init__(self, pids: Mapping[int, int], gpus: Mapping[int, str], folder: Path, every_s: float) -> None:
        """`pids` of each rank; `gpus` as `gpu_of` names them; `folder` is on the disk whose free bytes matter."""
        self._pids, self._gpus, self._folder, self._every_s = pids, gpus, folder, every_s
        self._found: queue.SimpleQueue[Usage] = queue.SimpleQueue()
        self._over = threading.Event()
        if every_s:
            threading.Thread(target=self._work, name="usage", daemon=True).start()

    def take(self) -> list[Usage]:
        """What was found since the last call."""
        return [self._found.get() for _ in range(self._found.qsize())]

    def close(self) -> None:
        self._over.set()

    def _work(self) -> None:
        used, then = dict.fromkeys(self._pids, 0.0), time.monotonic()
        psutil.cpu_percent()  # of the time since it was asked last
        with driver() if any(self._gpus.values()) else nullcontext(lambda _: GpuUse()) as gpu:
            while not self._over.wait(self._every_s):
                now = time.monotonic()
                blank = self._of_machine()
                for rank, seconds, memory in self._of_processes():
                    cpu = 100 * max(seconds - used[rank], 0.0) / (now - then)
                    used[rank] = seconds
                    of_gpu = asdict(gpu(self._gpus[rank]))
                    self._found.put(replace(blank, rank=rank, cpu_percent=round(cpu, 1), memory_bytes=memory, **of_gpu))
                then = now

    def _of_machine(self) -> Usage:
        """What is the same for all ranks."""
        try:
            free = machine.free_disk_bytes(self._folder)
        except OSError:
            free = None
        return Usage(
            rank=0, host=socket.gethostname(), cpu_percent=0.0, memory_bytes=0,
            machine_cpu_percent=psutil.cpu_percent(), machine_memory_bytes=machine.used_memory_bytes(),
            machine_memory_total_bytes=machine.memory_bytes(), disk_free_bytes=free,
        )  # fmt: skip

    def _of_processes(self) -> list[tuple[int, float, int]]:
        """Rank, seconds of CPU since it began, and resident bytes of each that lives, with all that it has started."""
        every = {process.pid: process for process in psutil.process_iter(["ppid"])}  # one look at them for all ranks
        below = defaultdict[int, list[psutil.Process]](list)
        for process in every.values():
            below[process.info["ppid"]].append(process)
        found = []
        for rank, pid in self._pids.items():
            family = [every[pid]] if pid in every else []
            for process in family:  # it grows meanwhile
                family += below[process.pid]
            if used := [one for one in map(_used, family) if one]:
                found.append((rank, sum(seconds for seconds, _ in used), sum(resident for _, resident in used)))
        return found


def _used(process: psutil.Process) -> tuple[float, int] | None:
    """Seconds of CPU, its own and of its children that have ended, and resident bytes; None where it has ended."""
    try:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return sum(process.cpu_times()[:4]), process.memory_info().rss
    except psutil.Error:
        return None
