"""A command watched from outside: CPU seconds and memory of its process tree, while it runs (Linux)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.02
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Watched:
    start: float  # CPU seconds of the tree when its first step was written down
    peak: float  # MiB, up to the last step
    others: float  # share of the machine that other work took meanwhile


def tree(pid: int) -> list[int]:
    """The process and its descendants. One that has just ended has none."""
    try:
        found = [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").open()]
    except OSError:
        return [pid]
    return [pid, *(below for line in found for child in line.split() for below in tree(int(child)))]


def cpu_seconds(pid: int) -> float:
    """Of the whole tree, children that have ended included."""
    ticks = 0
    for process in tree(pid):
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, after_name[11:15]))  # utime, stime, cutime, cstime
    return ticks / TICK


def machine_seconds() -> float:
    """CPU seconds that this machine has spent on anything since it was started."""
    user, nice, system, _idle, _waiting, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(rest)) / TICK


def peak_mib(pid: int) -> float:
    """The most memory that each process of the tree ever had resident, added up."""
    total = 0
    for process in tree(pid):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total / 1024


def watch(command: Sequence[str], log: Path, mark: bytes, steps: int, output: Path) -> Watched:
    """Run the command to its end; `log` is where it writes a line with `mark` for every step."""
    seen, start, peak, others = 0, 0.0, 0.0, 0.0
    began, busy = time.monotonic(), machine_seconds()
    with (
        output.open("wb") as out,
        subprocess.Popen(
            command, env={**os.environ, **QUIET}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        ) as process,
    ):
        while process.poll() is None:
            done = sum(mark in line for line in log.read_bytes().split(b"\n")[:-1]) if log.exists() else 0
            if done > seen:
                spent = cpu_seconds(process.pid)
                start, peak, seen = start or spent, max(peak, peak_mib(process.pid)), done
                others = (machine_seconds() - busy - spent) / (time.monotonic() - began) / (os.cpu_count() or 1)
            if seen < steps:
                time.sleep(POLL_S)
            else:
                process.wait()
    if process.returncode or seen < steps:
        sys.exit(
            f"{' '.join(command)}\nended with {process.returncode} after {seen} steps:\n{output.read_text()[-3000:]}"
        )
    return Watched(start, peak, max(others, 0.0))
