"""Where processes of this machine stand: what Linux tells of them, and the stacks that their Python writes when asked.

A process that wants to be asked catches SIGUSR1 and writes its stacks to a file that it was given open (`STACK`), as
`faulthandler.register` does: that works in whatever it is busy with, also within C code that never comes back.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.spec.cluster import Stack

STACK = "RLRUN_STACK"  # names the descriptor of that file
STILL = "TtZX"  # states in which nothing answers
SETTLED_S = 0.03  # in which an answer grows no more


def stacks(processes: Mapping[int, subprocess.Popen[bytes]], files: Mapping[int, Path], wait_s: float) -> list[Stack]:
    """Of each rank's process; blocks until all that can answer have, for at most `wait_s`."""
    give_up = time.monotonic() + wait_s
    asked = [rank for rank, process in processes.items() if _ask(process, files[rank])]
    before: dict[int, int] = {}
    while asked and time.monotonic() < give_up:
        time.sleep(SETTLED_S)
        sizes = {rank: files[rank].stat().st_size for rank in asked}
        if sizes == before and all(sizes.values()):
            break
        before = sizes
    host = socket.gethostname()
    texts = {rank: files[rank].read_text(encoding="utf-8", errors="replace") for rank in asked}
    return [Stack(rank, host, process.pid, _state(process), texts.get(rank, "")) for rank, process in processes.items()]


def _ask(process: subprocess.Popen[bytes], file: Path) -> bool:
    """Whether it was asked: a process that does not catch the signal would end by it."""
    if _state(process) in (*STILL, "") or not _catches(process.pid, signal.SIGUSR1):
        return False
    os.truncate(file, 0)
    process.send_signal(signal.SIGUSR1)
    return True


def _state(process: subprocess.Popen[bytes]) -> str:
    """As `Stack` has it; the number of one that has ended may be another's by now, so that is asked first."""
    if process.poll() is not None:
        return "X"
    try:
        told = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return told.rpartition(")")[2].split()[0]


def _catches(pid: int, number: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)
