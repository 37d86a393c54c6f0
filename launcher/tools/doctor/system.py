"""The system's limits, the name by which processes of this machine find each other, and the folders that runs write to:
in each a real file is written, synced and locked."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from launcher.core import machine
from launcher.core.check_result import CheckResult, from_problems
from launcher.core.problems import OnMessage, Problems, error_message
from launcher.data.rows import store as data_store
from launcher.hubs import huggingface
from launcher.models import store
from launcher.sandbox import confine
from launcher.tools.doctor.loading import VISIBLE

GIB, GB = 1 << 30, 1e9
LITTLE_SHARED, LITTLE_BYTES = GIB, int(10 * GB)  # of shared memory; of a disk, which is less than many checkpoints
FEW_FILES, FILES = 128, 1024
SHARED_MEMORY = Path("/dev/shm")


def check_system() -> list[CheckResult]:
    host = check_hostname(socket.gethostname())
    visible = check_visible_devices(os.environ.get(VISIBLE), len(machine.query_gpus().found))
    return [*visible, check_shared_memory(SHARED_MEMORY), _open_files(), *_cores(), _sandbox(), host]


def check_visible_devices(value: str | None, count: int) -> list[CheckResult]:
    """GPUs that CUDA_VISIBLE_DEVICES names and that are not there: CUDA ignores everything from the first on."""
    words = [part.strip() for part in (value or "").split(",")]
    absent = [word for word in words if int(word) >= count] if all(map(str.isdigit, words)) else []
    if not absent:
        return []
    fix = f"use {VISIBLE}={','.join(map(str, range(count)))}" if count else f"unset {VISIBLE}"
    return [CheckResult("FAIL", VISIBLE, f"names {', '.join(absent)}; this machine has {count}", fix)]


def check_shared_memory(mount: Path) -> CheckResult:
    """Processes of one machine exchange tensors through /dev/shm; a container often has 64 MB of it."""
    size = shutil.disk_usage(mount)
    message = f"{size.free / GIB:.1f} GB free of {size.total / GIB:.1f} GB"
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


# ---- folders


def check_folders(root: Path, say: OnMessage) -> Iterator[CheckResult]:
    """A result on each folder that a run in `root` writes to. A disk that hangs is the one that was said last."""
    folders: list[tuple[str, Callable[[], Path], str]] = [
        ("run root", root.absolute, "--root DIR (trainer.run_root)"),
        ("data store", data_store, "RLRUN_DATA=DIR"),
        ("model store", store.root, "RLRUN_MODELS=DIR"),
        ("hub cache", huggingface.cache, "HF_HOME=DIR"),
        ("temporary", lambda: Path(tempfile.gettempdir()), "TMPDIR=DIR"),
    ]
    for purpose, locate, by in folders:
        try:
            path = locate().absolute()
        except Problems as problems:
            yield from from_problems(problems.problems)
        except (OSError, RuntimeError) as error:  # no folder for temporary files; the home of an unknown user
            yield CheckResult("FAIL", purpose, error_message(error), f"set {by}")
        else:
            say(f"writing to {path}")
            yield check_folder(purpose, path, by)


def check_folder(purpose: str, path: Path, by: str) -> CheckResult:
    """The result on one folder, or on the nearest folder above it that is there. `by` is what chooses another one."""
    existing = path
    try:
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        trouble, free = _write_to(existing), machine.free_disk_bytes(path)
    except OSError as error:
        fix = f"use a folder with some room that can be written ({by})"
        return CheckResult("FAIL", purpose, f"{existing}: {error_message(error)}", fix)
    message = f"{path}: {free / GB:.1f} GB free{'' if path.exists() else ' (not made yet)'}"
    if trouble:
        return CheckResult("WARN", purpose, f"{message}; {trouble}", f"use a local disk ({by})")
    if free < LITTLE_BYTES:
        return CheckResult("WARN", purpose, f"{message}, which is little", f"use another disk ({by})")
    return CheckResult("OK", purpose, message)


def _write_to(folder: Path) -> str:
    """Write a file as runs do. Returns why a lock does not keep a second process from writing the same run there, or
    "". Raises `OSError` where writing fails."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".rlrun-doctor-") as file:
        file.write(bytes(1 << 16))
        file.flush()
        os.fsync(file.fileno())
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            with Path(file.name).open("rb") as other:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ""
        except OSError as error:
            return f"locks do not work there ({error_message(error)})"
    return "locks hold nobody off there"
