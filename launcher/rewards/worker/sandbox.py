"""What a process gives up before it runs untrusted code: files, network, other processes, time and memory.

Landlock (Linux 5.13) forbids the files, a seccomp filter the rest; both need no root, work in containers, and cannot be
taken back. Limits alone (`strict` false) bound time and memory, and forbid nothing else.
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
from functools import cache
from typing import Any

# number of each system call on x86_64 and on aarch64; None where that has none
CALLS: Mapping[str, tuple[int | None, int | None]] = {
    # network: no socket is ever created; a socket pair that was handed down still works
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    # other processes: none is started, signalled, traced or looked into
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "kcmp": (312, 272), "setsid": (112, 157), "setpgid": (109, 154),
    # what says that a process is to be killed with its parent
    "prctl": (157, 167),
    # memory and queues that outlive a process
    "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    # what changes a file without opening it to write, which Landlock does not watch
    "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    # the limits themselves, and ways around a filter
    "setrlimit": (160, 164), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "pivot_root": (155, 41), "chroot": (161, 51), "personality": (135, 92), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "setpriority": (141, 140),
}  # fmt: skip
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of CALLS, the kernel's name
CLONE, CLONE3, PRLIMIT = (56, 220), (435, 435), (302, 261)
# calls that let the kernel signal another process when a descriptor is ready, by their second argument
OWNER = {
    (72, 25): (8, 10, 15),  # fcntl: F_SETOWN, F_SETSIG, F_SETOWN_EX
    (16, 29): (0x8901, 0x8902),  # ioctl: FIOSETOWN, SIOCSPGRP
}
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT, SECCOMP = 444, 445, 446, (317, 277)
READ_FILE, READ_DIR, WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
FILES_OF = {1: 13, 2: 14, 3: 15, 4: 15}  # Landlock version -> rights over files that it knows; later ones 16
OPEN_FILES = 64
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38

_libc = ctypes.CDLL(None, use_errno=True)


@cache
def missing() -> tuple[str, ...]:
    """What this system lacks to forbid files and network."""
    if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
        return (f"a sandbox for {sys.platform} on {platform.machine()}",)
    found = []
    if landlock_version() < 1:
        found.append("Landlock, which forbids files (Linux 5.13 and later, where it is not switched off)")
    action = ctypes.c_uint32(0x00050000)  # refuse with an error
    if _call(SECCOMP[_column()], 2, 0, ctypes.byref(action)):
        found.append("seccomp, which forbids network and processes")
    return tuple(found)


def landlock_version() -> int:
    """0 where there is none."""
    return max(_call(LANDLOCK_CREATE, None, 0, 1), 0)


def readable() -> list[str]:
    """Where Python and its libraries lie, and what they look up when they start."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)}
    paths |= {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache",
              "/etc/localtime", "/dev/null", "/dev/urandom", "/proc/cpuinfo", "/sys/devices/system/cpu"}  # fmt: skip
    return sorted(os.path.realpath(path) for path in paths if os.path.exists(path))


def ruleset(paths: Sequence[str]) -> int:
    """A descriptor of the rule that only `paths` can be read, and nothing but /dev/null written."""
    version = landlock_version()
    rights = (1 << FILES_OF.get(version, 16)) - 1
    wanted = struct.pack("QQQ", rights, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = _checked(_call(LANDLOCK_CREATE, wanted, len(wanted), 0))
    for path in paths:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = READ_FILE | (READ_DIR if os.path.isdir(path) else 0) | (WRITE_FILE if path == "/dev/null" else 0)
        _checked(_call(LANDLOCK_ADD, rules, 1, struct.pack("=Qi", allowed, folder), 0))
        os.close(folder)
    return rules


def confine(limits: Mapping[str, Any], rules: int | None) -> None:
    """Give everything up, for good. `rules` None sets limits only. Raises `OSError` where the system refuses."""
    for what, most in (
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, limits["cpu_s"]), (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):  # fmt: skip
        resource.setrlimit(what, (most, most))
    if rules is None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # which root may pass
        return
    _checked(_prctl(PR_SET_NO_NEW_PRIVS, 1))
    _checked(_libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)))  # root has no privileges from here on
    _checked(_call(LANDLOCK_RESTRICT, rules, 0))
    os.close(rules)
    filter_ = _filter(_column(), ARCHITECTURES[platform.machine()][1])
    buffer = ctypes.create_string_buffer(filter_, len(filter_))
    program = struct.pack("HxxxxxxQ", len(filter_) // 8, ctypes.addressof(buffer))
    _checked(_prctl(PR_SET_SECCOMP, 2, program))


def die_with_parent() -> None:
    if sys.platform == "linux":
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _call(number: int, *args: Any) -> int:
    """A system call that the C library has no name for; it takes whole machine words."""
    values = [ctypes.c_ulong(arg) if isinstance(arg, int) else arg for arg in args]
    return int(_libc.syscall(ctypes.c_long(number), *values))


def _prctl(option: int, *args: Any) -> int:
    values = [ctypes.c_ulong(arg) if isinstance(arg, int) else arg for arg in (*args, 0, 0, 0, 0)[:4]]
    return int(_libc.prctl(option, *values))


def _column() -> int:
    return ARCHITECTURES[platform.machine()][0]


def _filter(column: int, architecture: int) -> bytes:
    """A program that the kernel runs before each system call: classic BPF over (number, architecture, arguments)."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, unknown, kill = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38, 0x80000000
    numbers = [of[column] for of in CALLS.values() if of[column] is not None]
    steps: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill),  # another machine's calls have other numbers
        (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), (give, 0, 0, refuse),  # x86_64's second set of calls
        (equal, 0, 1, CLONE3[column]), (give, 0, 0, unknown),  # so that clone is asked, whose flags can be read
        (equal, 0, 4, CLONE[column]), (load, 0, 0, 16), (any_bit, 0, 1, 0x10000), (give, 0, 0, allow),  # a thread
        (give, 0, 0, refuse),
        (equal, 0, 6, PRLIMIT[column]), (load, 0, 0, 32), (equal, 0, 3, 0), (load, 0, 0, 36), (equal, 0, 1, 0),
        (give, 0, 0, allow), (give, 0, 0, refuse),  # limits may be read
    ]  # fmt: skip
    for calls, commands in OWNER.items():
        steps += [(equal, 0, 2 * len(commands) + 2, calls[column]), (load, 0, 0, 24)]
        for command in commands:
            steps += [(equal, 0, 1, command), (give, 0, 0, refuse)]
        steps.append((give, 0, 0, allow))
    left = len(numbers)
    for number in numbers:
        steps.append((equal, left, 0, int(number or 0)))  # to the last step
        left -= 1
    steps += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _checked(found: int) -> int:
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found
