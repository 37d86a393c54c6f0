"""The system's limits, and the name by which processes of this machine find each other."""

from __future__ import annotations

import resource
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Literal

from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.core.problems import error_message
from launcher.sandbox import confine

GB = 1 << 30
LITTLE_SHARED = GB
FEW_FILES, FILES = 128, 1024
SHARED_MEMORY = Path("/dev/shm")


def check() -> list[CheckResult]:
    host = check_hostname(socket.gethostname())
    return [check_shared_memory(SHARED_MEMORY), _open_files(), *_cores(), _sandbox(), host]


def check_shared_memory(mount: Path) -> CheckResult:
    """Processes of one machine exchange tensors through /dev/shm; a container often has 64 MB of it."""
    size = shutil.disk_usage(mount)
    message = f"{size.free / GB:.1f} GB free of {size.total / GB:.1f} GB"
    if size.free < LITTLE_SHARED:
        fix = "start the container with --shm-size=8g"
        return CheckResult("WARN", str(mount), f"{message}; NCCL, Ray and data loaders need more", fix)
    return CheckResult("OK", str(mount), message)


def _open_files() -> CheckResult:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        return CheckResult("OK", "open files", "enough for a process")
    fix = f"use ulimit -n {FILES}, as root where that is refused"
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


def check_hostname(name: str) -> CheckResult:
    """gloo and NCCL use the address of the machine's own name by default."""
    try:
        addresses = sorted({str(address[0]) for *_, address in socket.getaddrinfo(name, None)})
    except (OSError, UnicodeError) as error:
        fix = f"add the line `{machine.LOOPBACK} {name}` to /etc/hosts, or set GLOO_SOCKET_IFNAME=lo"
        return CheckResult("WARN", "hostname", f"{name} cannot be resolved: {error_message(error)}", fix)
    return CheckResult("OK", "hostname", f"{name} is {', '.join(addresses)}")
