"""The system's limits, and which secrets are set."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.sandbox import confine

GB = 1 << 30
LITTLE_MEMORY, LITTLE_SHARED = 2 * GB, GB
FEW_FILES, FILES, FILES_FOR_RAY = 128, 1024, 8192
SHARED_MEMORY = Path("/dev/shm")


def check(*, for_ray: bool = False) -> list[CheckResult]:
    return [_memory(), check_shared_memory(SHARED_MEMORY), _open_files(for_ray), check_cores(), _sandbox()]


def _memory() -> CheckResult:
    free, whole = machine.free_memory_bytes(), machine.memory_bytes()
    message = f"{free / GB:.1f} GB free of {whole / GB:.1f} GB"
    if free < LITTLE_MEMORY:
        return CheckResult("WARN", "memory", message, "end other programs")
    return CheckResult("OK", "memory", message)


def check_shared_memory(mount: Path) -> CheckResult:
    """By /dev/shm processes of one machine hand tensors to each other; a container often has 64 MB of it."""
    fix = "start the container with --shm-size=8g"
    try:
        size = shutil.disk_usage(mount)
    except OSError:
        return CheckResult("WARN", str(mount), "does not exist; NCCL and Ray use it", fix)
    message = f"{size.free / GB:.1f} GB free of {size.total / GB:.1f} GB"
    if size.free < LITTLE_SHARED:
        return CheckResult("WARN", str(mount), f"{message}; NCCL, Ray and data loaders need more", fix)
    return CheckResult("OK", str(mount), message)


def _open_files(for_ray: bool) -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_FOR_RAY if for_ray else FILES  # Ray holds a connection to each worker
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return CheckResult("OK", "open files", "enough for a process")
    able = hard == resource.RLIM_INFINITY or hard >= wanted
    fix = f"use ulimit -n {wanted}" + ("" if able else " as root, or limits.conf")
    level: Literal["WARN", "FAIL"] = "FAIL" if soft < FEW_FILES else "WARN"
    return CheckResult(level, "open files", f"a process may have {soft} files open at once", fix)


def check_cores() -> CheckResult:
    cores, quota = machine.cpu_count(), _quota()
    message = f"{cores} for this process"
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if quota is not None and quota < cores:
        fix = f"use engine.num_threads={max(int(quota), 1)}"
        return CheckResult("WARN", "cores", f"{message}, limited to the time of {quota:g}", fix)
    if threads.isdigit() and int(threads) > cores:
        return CheckResult("WARN", "cores", f"{message}, and OMP_NUM_THREADS={threads}", f"set OMP_NUM_THREADS={cores}")
    if (load := os.getloadavg()[0]) > 2 * cores:
        busy = f"{message}; {load:.0f} processes compete for them (load of the last minute)"
        return CheckResult("WARN", "cores", busy, "wait, or end other programs")
    return CheckResult("OK", "cores", message)


def _quota() -> float | None:
    """How many cores' time the container may use; None where nothing limits it."""
    with suppress(OSError, ValueError):  # `max`: no limit
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(most) / int(period)
    return None


def _sandbox() -> CheckResult:
    if absent := confine.missing():
        message = f"this system lacks {', and '.join(absent)}; reward=code cannot run answers safely"
        return CheckResult("WARN", "sandbox", message, "use a newer kernel, or a container whose profile allows it")
    return CheckResult("OK", "sandbox", f"Landlock {confine.landlock_version()} and seccomp, for reward=code")


SECRETS = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MODELSCOPE_API_TOKEN", "WANDB_API_KEY", "SWANLAB_API_KEY",
    "MLFLOW_TRACKING_TOKEN", "RAY_AUTH_TOKEN",
)  # fmt: skip


def check_secrets(environment: Mapping[str, str] = os.environ) -> list[CheckResult]:
    """Which secrets are set, by name only: never a value, its length or a part of it."""
    names = ", ".join(name for name in SECRETS if environment.get(name))
    found = [CheckResult("OK", "secrets", names or "no variable: only public repositories can be downloaded")]
    for name in (name for name in SECRETS if name in environment):
        value = environment[name]
        if not value:
            found.append(CheckResult("WARN", name, "is set, and empty", f"unset {name}, or set it to the token"))
        elif value != value.strip() or value.strip("'\"") != value:
            message = "has spaces, a line end or quotes around the token, which are sent to the server"
            found.append(CheckResult("WARN", name, message, "set it to the bare token"))
    return found
