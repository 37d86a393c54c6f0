"""Why an attempt failed, from the exit codes and logs of its processes, and whether it may be restarted."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.core.events import Crashed
from launcher.core.files import open_file
from launcher.spec.engine import marked_events

TAIL_BYTES, TAIL_LINES = 2**18, 60  # of a process's log


@dataclass(frozen=True)
class Cause:
    """A kind of fault, and how often it is retried."""

    name: str
    most: int | None = None
    """Most restarts for it in a row; None: `trainer.max_restarts`."""
    marks: str = ""
    """Pattern of the last output of a process that fails by it."""
    fix: str = ""
    """What to do about it."""


NODE = Cause("node")
KILLED = Cause("killed")
CONNECTION = Cause(
    "connection",
    marks=r"[Cc]onnection (closed|reset|refused|lost)|[Bb]roken pipe|NCCL error|nccl(Remote|System|Internal|Unhandled)"
    r"|collective operation timeout|[Tt]imed out waiting \d+ms|gloo.*[Tt]imeout|Dist(Network|Store|Backend)Error",
)
MEMORY = Cause(
    "memory", 1, r"OutOfMemoryError|MemoryError|[Cc]an(no|')t allocate memory|not enough memory|bad_alloc",
    "use a smaller trainer.micro_batch_size_per_gpu, or fewer processes",
)  # fmt: skip
GPU_MEMORY = Cause(
    "gpu memory", 1, r"(CUDA|HIP) out of memory|torch(\.cuda)?\.OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED",
    "use a smaller trainer.micro_batch_size_per_gpu",
)  # fmt: skip
GPU = Cause("gpu", marks=r"uncorrectable ECC|unspecified launch failure|fallen off the bus|GPU is lost")
DISK = Cause("disk", 0, r"No space left on device|Disk quota exceeded", "free space on the disk")
NUMBERS = Cause("numbers", 0)  # not retried: it would happen again
CONFIGURATION = Cause("configuration", 0)
CODE = Cause("code", 0)
MARKED = (GPU_MEMORY, MEMORY, DISK, GPU, CONNECTION)  # searched in this order
KILLS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that leave no time to log a reason; a process that aborts (SIGABRT) usually logged one."""


@dataclass(frozen=True)
class ProcessExit:
    """The exit code and the last output of one process."""

    rank: int
    code: int | None
    """Its exit code, -N for signal N; None where only its output is known."""
    crash: Crashed | None = None
    last: Sequence[str] = ()
    """The last lines of its log, without events."""


@dataclass(frozen=True)
class FailureDiagnosis:
    cause: Cause
    rank: int | None
    """The process that failed; None for a lost node."""
    why: str
    crash: Crashed | None = None


def diagnose(failed: ProcessExit | None, others: Iterable[ProcessExit], lost: str, oom_kills: int) -> FailureDiagnosis:
    """The cause; where the first failure is a lost connection, the cause of the process at its other end.

    `oom_kills` is how many processes the kernel has killed on this machine since they began, for lack of memory.
    """
    if lost or failed is None:
        cause = MEMORY if re.search(MEMORY.marks, lost) else NODE
        return FailureDiagnosis(cause, None, lost or "its processes are gone")
    cause = _cause_of(failed, oom_kills)
    if cause is CONNECTION:
        for other in others:
            other_cause = _cause_of(other, 0) if other.crash or other.last else CONNECTION
            if other_cause not in (CONNECTION, CODE) or (other_cause is CODE and other.crash):
                failed, cause = other, other_cause
                break
    return FailureDiagnosis(cause, failed.rank, f"rank {failed.rank}: {_message(failed, cause)}", failed.crash)


def _cause_of(left: ProcessExit, oom_kills: int) -> Cause:
    crash, code = left.crash, left.code or 0
    if crash and crash.user_error:
        return NUMBERS if crash.cause == "numbers" else CONFIGURATION
    if crash is None and -code in KILLS:
        return MEMORY if code == -signal.SIGKILL and oom_kills else KILLED
    text = "\n".join(crash.lines if crash else left.last)
    default = KILLED if code < 0 and not crash else CONFIGURATION if code == 2 else CODE
    return next((cause for cause in MARKED if re.search(cause.marks, text)), default)


def _message(left: ProcessExit, cause: Cause) -> str:
    if left.crash:
        return "; ".join(left.crash.lines)
    marks = [line.strip() for line in left.last if cause.marks and re.search(cause.marks, line)]
    last = f": {marks[-1]}" if marks else ""
    if left.code is None or left.code >= 0:
        return f"ended with exit code {left.code}{last}" if left.code is not None else marks[-1]
    name = signal.Signals(-left.code).name
    if cause is MEMORY:
        return f"killed by {name}, as the machine's memory ran out{last}"
    guess = ", often because memory ran out" if name == "SIGKILL" else ""
    return f"killed by {name}{guess}{last}"


def read_exit(rank: int, code: int | None, log: Path) -> ProcessExit:
    """What the end of a process's log says."""
    try:
        with open_file(log) as file:
            begin = max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0)
            file.seek(begin)
            lines = file.read().decode("utf-8", "replace").split("\n")[1 if begin else 0 :]  # the first line may be cut
    except OSError:
        return ProcessExit(rank, code)
    crash, last = None, list[str]()
    for line in lines:
        events = list(marked_events(line))
        crash = next((event for event in events if isinstance(event, Crashed)), crash)
        last += [] if events or not line.strip() else [line]
    return ProcessExit(rank, code, crash, last[-TAIL_LINES:])
