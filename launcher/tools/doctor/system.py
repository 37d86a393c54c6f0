"""What the system lets a process have: memory, /dev/shm, open files, processes, cores."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from launcher.core import machine
from launcher.core.check_result import Verdict
from launcher.rewards.worker import sandbox

GB = 1 << 30
LITTLE_MEMORY, LITTLE_SHARED = 2 * GB, GB
FEW_FILES, FILES, FILES_FOR_RAY = 128, 1024, 8192
FEW_PROCESSES = 1024


def verdicts(*, for_ray: bool = False) -> list[Verdict]:
    found = [_memory(), _swap(), _shared(Path("/dev/shm")), _open_files(for_ray), _processes(), _cores(), _locked()]
    return [*(verdict for verdict in found if verdict), _sandbox()]


def _memory() -> Verdict:
    free, whole, hard = machine.free_memory_bytes(), machine.memory_bytes(), int(psutil.virtual_memory().total)
    says = f"{free / GB:.1f} GB free of {whole / GB:.1f} GB"
    if whole < hard:
        says += f", which is this container's share of {hard / GB:.1f} GB"
    if free < LITTLE_MEMORY:
        return Verdict("WARN", "memory", says, "ending what else runs here would do")
    return Verdict("OK", "memory", says)


def _swap() -> Verdict | None:
    swap = psutil.swap_memory()
    if swap.total and swap.used > swap.total / 2:
        says = f"{swap.used / GB:.1f} of {swap.total / GB:.1f} GB in use: what runs here has outgrown the memory"
        return Verdict("WARN", "swap", says, "ending what else runs here would do")
    return None


def _shared(mount: Path) -> Verdict | None:
    """Through /dev/shm processes of one machine hand tensors to each other; a container often has 64 MB of it."""
    if sys.platform != "linux":
        return None
    try:
        size = shutil.disk_usage(mount)
    except OSError:
        return Verdict(
            "WARN", str(mount), "is not there; NCCL and Ray use it", "a container with --shm-size=8g would do"
        )
    says = f"{size.free / GB:.1f} GB free of {size.total / GB:.1f} GB"
    if size.free < LITTLE_SHARED:
        return Verdict("WARN", str(mount), f"{says}; NCCL, Ray and data loaders need more", "--shm-size=8g would do")
    return Verdict("OK", str(mount), says)


def _open_files(for_ray: bool) -> Verdict:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_FOR_RAY if for_ray else FILES
    says = f"a process may have {_limit(soft)} open at once"
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Verdict("OK", "open files", says)
    able = hard == resource.RLIM_INFINITY or hard >= wanted
    higher = f"ulimit -n {wanted}" + ("" if able else " by root, or in limits.conf,")
    return Verdict("FAIL" if soft < FEW_FILES else "WARN", "open files", says, f"{higher} would do")


def _processes() -> Verdict | None:
    """Threads count, too; vLLM and Ray start hundreds."""
    limits = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid():
        limits.append(("ulimit -u", soft))
    with suppress(OSError, ValueError):  # `max`: no limit
        limits.append(("the container's pids.max", int(Path("/sys/fs/cgroup/pids.max").read_text())))
    low = [f"{most} ({by})" for by, most in limits if most < FEW_PROCESSES]
    if not low:
        return None
    says = f"at most {' and '.join(low)}, threads among them"
    return Verdict("WARN", "processes", says, f"a limit of {FEW_PROCESSES} or more would do")


def _cores() -> Verdict:
    cores, quota = machine.cpu_count(), _quota()
    says = f"{cores} for this process"
    if quota is not None and quota < cores:
        says += f", but time of {quota:g} only"
        return Verdict("WARN", "cores", says, f"engine.num_threads={max(int(quota), 1)} would do")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > cores:
        return Verdict("WARN", "cores", f"{says}, and OMP_NUM_THREADS={threads}", f"OMP_NUM_THREADS={cores} would do")
    load = os.getloadavg()[0]
    if load > 2 * cores:
        busy = f"{says}; {load:.0f} processes want them (load of the last minute)"
        return Verdict("WARN", "cores", busy, "waiting, or ending what else runs here, would do")
    return Verdict("OK", "cores", says)


def _quota() -> float | None:
    """How many cores' time the container may use; None where nothing limits it."""
    with suppress(OSError, ValueError):  # `max`: no limit
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(most) / int(period)
    return None


def _locked() -> Verdict | None:
    """InfiniBand registers memory that is locked; a low limit ends NCCL with `cannot allocate memory`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if not Path("/sys/class/infiniband").is_dir() or soft == resource.RLIM_INFINITY:
        return None
    says = f"{soft // 1024} KB may be locked; InfiniBand needs more"
    return Verdict("WARN", "locked memory", says, "ulimit -l unlimited (--ulimit memlock=-1 for a container) would do")


def _sandbox() -> Verdict:
    lacks = sandbox.missing()
    if lacks:
        says = f"this system lacks {', and '.join(lacks)}; reward=code cannot run answers safely"
        return Verdict("WARN", "sandbox", says, "a newer kernel, or a container whose profile allows it, would do")
    return Verdict("OK", "sandbox", f"Landlock {sandbox.landlock_version()} and seccomp, for reward=code")


def _limit(value: int) -> str:
    return "any number of files" if value == resource.RLIM_INFINITY else f"{value} files"
