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
LITTLE_SHARED = GB
FEW_FILES, FILES, FILES_FOR_RAY = 128, 1024, 8192
SHARED_MEMORY = Path("/dev/shm")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def check(*, for_ray: bool = False) -> list[CheckResult]:
    hidden = check_visible_devices(os.environ.get(VISIBLE), len(machine.query_gpus().found))
    return [*hidden, check_shared_memory(SHARED_MEMORY), _open_files(for_ray), *_cores(), _sandbox()]


def check_visible_devices(value: str | None, count: int) -> list[CheckResult]:
    """GPUs that CUDA_VISIBLE_DEVICES hides: CUDA ignores everything from the first unknown entry on."""
    words = [part.strip() for part in (value or "").split(",")]
    absent = [word for word in words if int(word) >= count] if all(map(str.isdigit, words)) else []
    if value is not None and count and words in ([""], ["-1"]):
        return [CheckResult("WARN", VISIBLE, f"hides all GPUs, which are {count}", f"unset {VISIBLE}")]
    if not absent:
        return []
    fix = f"use {VISIBLE}={','.join(map(str, range(count)))}" if count else f"unset {VISIBLE}"
    return [CheckResult("FAIL", VISIBLE, f"names {', '.join(absent)}; this machine has {count}", fix)]


def check_shared_memory(mount: Path) -> CheckResult:
    """Processes of one machine exchange tensors through /dev/shm; a container often has 64 MB of it."""
    size = shutil.disk_usage(mount)
    message = f"{size.free / GB:.1f} GB free of {size.total / GB:.1f} GB"
    if size.free < LITTLE_SHARED:
        fix = "start the container with --shm-size=8g"
        return CheckResult("WARN", str(mount), f"{message}; NCCL, Ray and data loaders need more", fix)
    return CheckResult("OK", str(mount), message)


def _open_files(for_ray: bool) -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_FOR_RAY if for_ray else FILES  # Ray holds a connection to each worker
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return CheckResult("OK", "open files", "enough for a process")
    able = hard == resource.RLIM_INFINITY or hard >= needed
    fix = f"use ulimit -n {needed}" + ("" if able else " as root, or limits.conf")
    level: Literal["WARN", "FAIL"] = "FAIL" if soft < FEW_FILES else "WARN"
    return CheckResult(level, "open files", f"a process may have {soft} files open at once", fix)


def _cores() -> list[CheckResult]:
    """A warning where the container's CPU quota is less than its cores."""
    with suppress(OSError, ValueError):  # `max`: no limit
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        quota, cores = int(limit) / int(period), machine.cpu_count()
        if quota < cores:
            message, fix = f"{cores}, limited to the time of {quota:g}", f"use engine.num_threads={max(int(quota), 1)}"
            return [CheckResult("WARN", "cores", message, fix)]
    return []


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
    results = [CheckResult("OK", "secrets", names or "no variable: only public repositories can be downloaded")]
    for name in (name for name in SECRETS if name in environment):
        value = environment[name]
        if not value:
            results.append(CheckResult("WARN", name, "is set, and empty", f"unset {name}, or set it to the token"))
        elif value != value.strip() or value.strip("'\"") != value:
            message = "has spaces, a line end or quotes around the token, which are sent to the server"
            results.append(CheckResult("WARN", name, message, "set it to the bare token"))
    return results
