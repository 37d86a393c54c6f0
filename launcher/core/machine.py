"""What this machine has: cores, memory, disk, GPUs. Loads no torch."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import pynvml

LOOPBACK = "127.0.0.1"
_GROUP = Path("/sys/fs/cgroup")  # of this container; version 2


@dataclass(frozen=True)
class Gpu:
    """One GPU, as its driver reports it."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Gpus:
    """The GPUs of this machine, regardless of CUDA_VISIBLE_DEVICES."""

    driver: str = ""
    cuda: str = ""
    """The newest CUDA that the driver runs, as 12.8."""
    found: tuple[Gpu, ...] = ()
    trouble: str = ""
    """Why the driver could not be queried; empty where it could, or where there is no driver."""


MOST_THREADS = 4096


def cpu_count() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def interface_of_addresses() -> dict[str, str]:
    """The name of the network interface of each IP address of this machine."""
    internet, interfaces = (socket.AF_INET, socket.AF_INET6), psutil.net_if_addrs().items()
    return {one.address: name for name, addresses in interfaces for one in addresses if one.family in internet}


def own_address() -> str:
    """Address of the network interface by which this machine reaches others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    addresses = (ip for ip in interface_of_addresses() if ":" not in ip and ip != LOOPBACK)
    return next(addresses, LOOPBACK)


def loopback() -> str:
    """`lo`, the network interface of `LOOPBACK`; empty where this system names it otherwise."""
    return "lo" if os.path.exists("/sys/class/net/lo") else ""


def free_ports(count: int, host: str = "") -> list[int]:
    """`count` different ports that are free now on the address `host`; empty: on every address of this machine."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def check_listening(address: str, seconds: float) -> None:
    """Raises `OSError` where nothing listens at HOST:PORT, `ValueError` where `address` is malformed."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), seconds).close()


def has_open(pid: int, path: Path) -> bool:
    """Whether the process has the file open, as far as this user may see."""
    try:
        return any(os.path.samefile(file.path, path) for file in psutil.Process(pid).open_files())
    except (psutil.Error, OSError, ValueError, TypeError, OverflowError):  # no pid, ended, another user's, or no file
        return False


def shell_exit_code(code: int) -> int:
    """A shell's exit code for a process: 128 + the signal that killed it, which Python gives as -signal."""
    return 128 - code if code < 0 else code


def run_exit_handlers() -> None:
    """Run this process's exit handlers and flush its output, before it ends at once."""
    atexit._run_exitfuncs()
    logging.shutdown()
    with suppress(OSError, ValueError):  # a closed pipe
        sys.stdout.flush()
        sys.stderr.flush()


def memory_bytes() -> int:
    """Total memory of this machine, or the limit of its container if that is lower."""
    total = int(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):  # `max`: no limit
        total = min(total, int((_GROUP / "memory.max").read_text()))
    return total


def free_memory_bytes() -> int:
    """Bytes that new processes can use before anything is swapped."""
    return min(int(psutil.virtual_memory().available), memory_bytes())


def used_memory_bytes() -> int:
    """Bytes of `memory_bytes` in use, without caches that the system can free at once."""
    memory = psutil.virtual_memory()
    if memory_bytes() < memory.total:
        with suppress(OSError, ValueError, KeyError):
            counts = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
            return max(int((_GROUP / "memory.current").read_text()) - int(counts["inactive_file"]), 0)
    return int(memory.total - memory.available)


def free_disk_bytes(path: Path) -> int:
    """Free bytes on the disk that holds `path`, or will hold it. Raises `OSError`."""
    status = _disk_status(path)
    return status.f_bavail * status.f_frsize


def free_inodes(path: Path) -> int | None:
    """Free inodes on the disk that holds `path`; None where it has no limit. Raises `OSError`."""
    status = _disk_status(path)
    return status.f_favail if status.f_files else None


def _disk_status(path: Path) -> os.statvfs_result:
    absolute = path.absolute()
    return os.statvfs(next(parent for parent in (absolute, *absolute.parents) if parent.exists()))


def threads_of_a_process(processes: int) -> int:
    """Threads for each of `processes` processes: OMP_NUM_THREADS, by default an equal share of the cores."""
    value = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(value) if value.isdecimal() and 0 < int(value) <= MOST_THREADS else max(cpu_count() // processes, 1)


def query_gpus() -> Gpus:
    """The NVIDIA GPUs of this machine; none without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = isinstance(error, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))
        return Gpus(trouble="" if absent else str(error))
    try:
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion_v2()
        gpus = tuple(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
        return Gpus(driver, f"{cuda // 1000}.{cuda % 1000 // 10}", gpus)
    except pynvml.NVMLError as error:
        return Gpus(trouble=str(error))
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(index, pynvml.nvmlDeviceGetName(handle), int(memory.total), int(memory.free))


def package_version(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def python_version() -> str:
    return sys.version.split()[0]


def system_name() -> str:
    """Name, release and architecture: `Linux-6.8 x86_64`."""
    return f"{platform.system()}-{platform.release()} {platform.machine()}"


def oom_kill_count() -> int:
    """Processes that the kernel has killed for lack of memory since this container, or this machine, started."""
    group = str(_GROUP)
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        group += next(line.removeprefix("0::").rstrip("/") for line in lines if line.startswith("0::"))
    for name in (f"{group}/memory.events", f"{_GROUP}/memory.events", "/proc/vmstat"):  # the nearest first
        with suppress(OSError, ValueError, StopIteration):
            lines = Path(name).read_text().splitlines()
            return int(next(line.split()[1] for line in lines if line.startswith("oom_kill ")))
    return 0


def visible_gpus() -> tuple[str, ...]:
    """GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(str(gpu.index) for gpu in query_gpus().found)
    return tuple(name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1")
