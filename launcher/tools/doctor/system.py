"""The system's limits, its clock, and which secrets are set."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil

from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.sandbox import confine

GB = 1 << 30
LITTLE_MEMORY, LITTLE_SHARED = 2 * GB, GB
FEW_FILES, FILES, FILES_FOR_RAY = 128, 1024, 8192
FEW_PROCESSES = 1024
SYNC = "run timedatectl set-ntp true, or chronyd"
WATCH_S, MOST_DRIFT = 0.2, 0.02
_UNSYNCED, _ERROR = 0x40, 5
_LONG = ctypes.sizeof(ctypes.c_long)
_STATUS = 5 * _LONG  # after `modes` (an int, padded) and the longs offset, freq, maxerror, esterror


def check(*, for_ray: bool = False) -> list[CheckResult]:
    found = [_memory(), _swap(), _shared(Path("/dev/shm")), _open_files(for_ray), _processes(), _cores(), _locked()]
    return [*(result for result in found if result), _sandbox(), _clock()]


def _memory() -> CheckResult:
    free, whole, hard = machine.free_memory_bytes(), machine.memory_bytes(), int(psutil.virtual_memory().total)
    message = f"{free / GB:.1f} GB free of {whole / GB:.1f} GB"
    if whole < hard:
        message += f", which is this container's share of {hard / GB:.1f} GB"
    if free < LITTLE_MEMORY:
        return CheckResult("WARN", "memory", message, "end other programs")
    return CheckResult("OK", "memory", message)


def _swap() -> CheckResult | None:
    swap = psutil.swap_memory()
    if swap.total and swap.used > swap.total / 2:
        message = f"{swap.used / GB:.1f} of {swap.total / GB:.1f} GB in use: what runs here has outgrown the memory"
        return CheckResult("WARN", "swap", message, "end other programs")
    return None


def _shared(mount: Path) -> CheckResult | None:
    """Through /dev/shm processes of one machine hand tensors to each other; a container often has 64 MB of it."""
    if sys.platform != "linux":
        return None
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
    wanted = FILES_FOR_RAY if for_ray else FILES
    message = f"a process may have {_limit(soft)} open at once"
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return CheckResult("OK", "open files", message)
    able = hard == resource.RLIM_INFINITY or hard >= wanted
    higher = f"use ulimit -n {wanted}" + ("" if able else " as root, or limits.conf")
    return CheckResult("FAIL" if soft < FEW_FILES else "WARN", "open files", message, higher)


def _processes() -> CheckResult | None:
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
    message = f"at most {' and '.join(low)}, threads among them"
    return CheckResult("WARN", "processes", message, f"use a limit of {FEW_PROCESSES} or more")


def _cores() -> CheckResult:
    cores, quota = machine.cpu_count(), _quota()
    message = f"{cores} for this process"
    if quota is not None and quota < cores:
        message += f", limited to the time of {quota:g}"
        return CheckResult("WARN", "cores", message, f"use engine.num_threads={max(int(quota), 1)}")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > cores:
        return CheckResult("WARN", "cores", f"{message}, and OMP_NUM_THREADS={threads}", f"set OMP_NUM_THREADS={cores}")
    load = os.getloadavg()[0]
    if load > 2 * cores:
        busy = f"{message}; {load:.0f} processes compete for them (load of the last minute)"
        return CheckResult("WARN", "cores", busy, "wait, or end other programs")
    return CheckResult("OK", "cores", message)


def _quota() -> float | None:
    """How many cores' time the container may use; None where nothing limits it."""
    with suppress(OSError, ValueError):  # `max`: no limit
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(most) / int(period)
    return None


def _locked() -> CheckResult | None:
    """InfiniBand registers memory that is locked; a low limit ends NCCL with `cannot allocate memory`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if not Path("/sys/class/infiniband").is_dir() or soft == resource.RLIM_INFINITY:
        return None
    message = f"{soft // 1024} KB may be locked; InfiniBand needs more"
    fix = "use ulimit -l unlimited (--ulimit memlock=-1 for a container)"
    return CheckResult("WARN", "locked memory", message, fix)


def _sandbox() -> CheckResult:
    absent = confine.missing()
    if absent:
        message = f"this system lacks {', and '.join(absent)}; reward=code cannot run answers safely"
        return CheckResult("WARN", "sandbox", message, "use a newer kernel, or a container whose profile allows it")
    return CheckResult("OK", "sandbox", f"Landlock {confine.landlock_version()} and seccomp, for reward=code")


def _limit(value: int) -> str:
    return "any number of files" if value == resource.RLIM_INFINITY else f"{value} files"


def _clock() -> CheckResult:
    wall, steady = time.time(), time.monotonic()
    time.sleep(WATCH_S)
    spans = time.time() - wall, time.monotonic() - steady
    return check_clock(time.time(), *spans, Path(__file__).stat().st_mtime, _synced())


def check_clock(now: float, wall_s: float, steady_s: float, installed: float, synced: bool | None) -> CheckResult:
    """`now`: the clock; `installed`: when rlrun was installed; `wall_s`, `steady_s`: the same span on the clock and
    on the monotonic one; `synced`: None where the system does not report it."""
    shown = datetime.fromtimestamp(now).astimezone().isoformat(timespec="seconds")
    if now < installed - 60:
        return CheckResult("FAIL", "clock", f"is wrong: {shown} is before rlrun was installed", SYNC)
    if abs(wall_s - steady_s) > MOST_DRIFT:
        return CheckResult("WARN", "clock", f"jumped by {wall_s - steady_s:+.2f} s while it was checked", SYNC)
    if synced is False:
        return CheckResult("WARN", "clock", f"{shown}; no time server keeps it", SYNC)
    return CheckResult("OK", "clock", shown + (", kept by a time server" if synced else ""))


def _synced() -> bool | None:
    """Whether the kernel's clock is synchronised (adjtimex(2), read only)."""
    if sys.platform != "linux":
        return None
    timex = ctypes.create_string_buffer(256)  # struct timex, `modes` 0 only reads
    state = ctypes.CDLL(None).adjtimex(timex)
    status = ctypes.c_int.from_buffer(timex, _STATUS).value
    return None if state < 0 else state != _ERROR and not status & _UNSYNCED


SECRETS = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MODELSCOPE_API_TOKEN", "WANDB_API_KEY", "SWANLAB_API_KEY",
    "MLFLOW_TRACKING_TOKEN", "RAY_AUTH_TOKEN",
)  # fmt: skip
SECRET_FILES = (
    ("HF_TOKEN_PATH", "{HF_HOME}/token"),
    ("", "~/.modelscope/credentials/cookies"),
    ("", "~/.modelscope/credentials/git_token"),
    ("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"),
    ("NETRC", "~/.netrc"),
)
"""The variable that names a file, where there is one, and its usual path."""


def check_secrets(environment: Mapping[str, str] = os.environ) -> list[CheckResult]:
    """Which secrets are set, by name only: never a value, its length or a part of it."""
    present = [name for name in SECRETS if environment.get(name)]
    wrong = [_misshapen(name, environment[name]) for name in SECRETS if name in environment]
    open_to_others = list[CheckResult]()
    for path in _files(environment):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # none, or not readable
        present.append(str(path))
        if mode & 0o077:
            message = f"{path} can be read by other users of this machine"
            open_to_others.append(CheckResult("WARN", "secrets", message, f"run chmod 600 {path}"))
    names = ", ".join(present) or "none: only public repositories can be downloaded"
    return [CheckResult("OK", "secrets", names), *(result for result in wrong if result), *open_to_others]


def _misshapen(name: str, value: str) -> CheckResult | None:
    if not value:
        return CheckResult("WARN", name, "is set, and empty", f"unset {name}, or set it to the token")
    if value != value.strip() or value.strip("'\"") != value:
        message = "has spaces, a line end or quotes around the token, which are sent to the server"
        return CheckResult("WARN", name, message, "set it to the bare token")
    return None


def _files(environment: Mapping[str, str]) -> list[Path]:
    home = environment.get("HOME") or "/"
    hub = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    named = [environment.get(name) or usual.replace("{HF_HOME}", hub) for name, usual in SECRET_FILES]
    return [Path(home + path[1:] if path.startswith("~/") else path) for path in named]
