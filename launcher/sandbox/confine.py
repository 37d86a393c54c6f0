"""What a process gives up before it runs untrusted code: files, network, other processes, time and memory.

Landlock (Linux 5.13) forbids the files, a seccomp filter all system calls but those of a profile: a computation, or a
shell with its text tools. Both need no root, work in containers, and cannot be taken back. Landlock does not watch
`stat`, which every import needs: that another file exists, its size and its times can be seen. Without rules, limits
bound time and memory, and forbid nothing else.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from launcher.sandbox import calls
from launcher.sandbox.calls import Calls, Conditions

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of a table of calls, the kernel's name
CLONE3, NEWEST = (435, 435), 449
"""Calls from that number on, and clone3, are answered as by a kernel without them: the C library then uses others."""
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT, SECCOMP = 444, 445, 446, (317, 277)
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14
"""Rights that a rule for a file, which is no folder, may have: also to truncate it."""
FILES_OF = {1: 13, 2: 14, 3: 15, 4: 15}  # Landlock version -> rights over files that it knows; later ones 16
SIGNALS_SCOPED = 6  # Landlock version from which signals to processes outside are forbidden
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Profile:
    """The system calls that are left, and how many files may be open."""

    calls: Calls
    conditions: Conditions
    open_files: int


COMPUTE = Profile(calls.COMPUTE, calls.COMPUTE_IF, 64)


def shell_profile(version: int) -> Profile:
    """The profile of a shell on a kernel with this version of Landlock. Where that does not watch signals, `kill`
    reaches only the caller's own process group."""
    kill_if = calls.OF_ITS_GROUP if version < SIGNALS_SCOPED else []
    return Profile({**calls.COMPUTE, **calls.SHELL}, {**calls.COMPUTE_IF, **calls.SHELL_IF, calls.KILL: kill_if}, 256)


@cache
def missing() -> tuple[str, ...]:
    """What this system lacks to forbid files and network."""
    if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
        return (f"a sandbox for {sys.platform} on {platform.machine()}",)
    lacking = []
    if landlock_version() < 1:
        lacking.append("Landlock, which forbids files (Linux 5.13 and later, where it is not switched off)")
    action = ctypes.c_uint32(0x00050000)  # refuse with an error
    if _call(SECCOMP[ARCHITECTURES[platform.machine()][0]], 2, 0, ctypes.byref(action)):
        lacking.append("seccomp, which forbids network and processes")
    return tuple(lacking)


def landlock_version() -> int:
    """The version of Landlock's interface; 0 where the kernel has none."""
    return max(_call(LANDLOCK_CREATE, None, 0, 1), 0)


def readable() -> list[str]:
    """Paths that Python and its libraries read: their own files, and system files when they start."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)}
    paths |= {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache",
              "/etc/localtime", "/dev/null", "/dev/urandom", "/proc/cpuinfo", "/sys/devices/system/cpu"}  # fmt: skip
    return sorted({name for path in paths if os.path.exists(path) for name in (path, os.path.realpath(path))})


def ruleset(read: Sequence[str], execute: Sequence[str] = (), change: Sequence[str] = ()) -> int:
    """Descriptor of a Landlock ruleset by which only these paths, and what is below them, can be read, executed (and
    read), or changed in every way. /dev/null can be written. Raises `OSError`."""
    version = landlock_version()
    all_rights = (1 << FILES_OF.get(version, 16)) - 1
    attributes = struct.pack("QQQ", all_rights, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = checked(_call(LANDLOCK_CREATE, attributes, len(attributes), 0))
    grants = [(path, READ_FILE | READ_DIR | (WRITE_FILE if path == os.devnull else 0)) for path in read]
    grants += [(path, READ_FILE | EXECUTE) for path in execute] + [(path, all_rights) for path in change]
    for path, rights in grants:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = rights if os.path.isdir(path) else rights & OF_FILES
        checked(_call(LANDLOCK_ADD, rules, 1, struct.pack("=Qi", allowed & all_rights, descriptor), 0))
        os.close(descriptor)
    return rules


def confine(profile: Profile, limits: Mapping[str, int], rules: int | None) -> None:
    """Confine this process, irrevocably. `limits`: `cpu_s`, `memory_bytes`, `file_bytes`; `rules`: descriptor of a
    `ruleset`, None to set limits only. Raises `OSError` where the system refuses."""
    for limit, value in (
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, limits["cpu_s"]), (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits.get("file_bytes", 0)), (resource.RLIMIT_NOFILE, profile.open_files),
    ):  # fmt: skip
        resource.setrlimit(limit, (value, value))
    if rules is None:
        return
    checked(_prctl(PR_SET_NO_NEW_PRIVS, 1))
    checked(_libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)))  # root has no privileges from here on
    checked(_call(LANDLOCK_RESTRICT, rules, 0))
    os.close(rules)
    column, architecture = ARCHITECTURES[platform.machine()]
    filter_ = seccomp_filter(profile, column, architecture)
    buffer = ctypes.create_string_buffer(filter_, len(filter_))
    program = struct.pack("HxxxxxxQ", len(filter_) // 8, ctypes.addressof(buffer))
    checked(_prctl(PR_SET_SECCOMP, 2, program))


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    if sys.platform == "linux":
        _prctl(PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Descendants whose parent has ended become children of this process, whatever session they are in."""
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _call(number: int, *args: Any) -> int:
    """A system call that the C library has no name for; it takes whole machine words."""
    values = [ctypes.c_ulong(arg) if isinstance(arg, int) else arg for arg in args]
    return int(_libc.syscall(ctypes.c_long(number), *values))


def _prctl(option: int, *args: Any) -> int:
    values = [ctypes.c_ulong(arg) if isinstance(arg, int) else arg for arg in (*args, 0, 0, 0, 0)[:4]]
    return int(_libc.prctl(option, *values))


def seccomp_filter(profile: Profile, column: int, architecture: int) -> bytes:
    """A program that the kernel runs before each system call: classic BPF over (number, architecture, arguments)."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, unknown, kill = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38, 0x80000000
    steps: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill),  # another machine's calls have other numbers
        (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), (give, 0, 0, refuse),  # x86_64's second set of calls
        (equal, 1, 0, CLONE3[column]), (at_least, 0, 1, NEWEST), (give, 0, 0, unknown),
    ]  # fmt: skip
    for call, conditions in profile.conditions.items():
        body = list[tuple[int, int, int, int]]()
        for word, comparison, values in conditions:
            body.append((load, 0, 0, 16 + 4 * word))
            if comparison == "one of":
                body += [(equal, len(values) - index, 0, value) for index, value in enumerate(values)]
            else:
                body.append((any_bit, 1, 0, values[0]) if comparison == "any bit" else (any_bit, 0, 1, values[0]))
            body.append((give, 0, 0, refuse))
        if (number := call[column]) is not None:
            steps += [(equal, 0, len(body) + 1, number), *body, (give, 0, 0, allow)]
    numbers = [number for columns in profile.calls.values() if (number := columns[column]) is not None]
    steps += [(equal, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]  # to the last step
    steps += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def checked(found: int) -> int:
    """The value that a call of the C library returned. Raises `OSError` where the call failed."""
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found
