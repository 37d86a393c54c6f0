"""What a process gives up before it runs untrusted code: files, network, other processes, time and memory.

Landlock (Linux 5.13) forbids the files, a seccomp filter all system calls but those that a computation needs; both need
no root, work in containers, and cannot be taken back. Landlock does not watch `stat`, which every import needs: whether
another file exists, its size and its times are hidden by a root folder without them (`root`), where the system allows
one. Limits alone (`strict` false) bound time and memory, and forbid nothing else.
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
    # what is open: files that Landlock let it open, pipes, a socket pair
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, None),
    "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59), "sendto": (44, 206), "recvfrom": (45, 207),
    "sendmsg": (46, 211), "recvmsg": (47, 212), "shutdown": (48, 210), "getsockname": (51, 204),
    "getpeername": (52, 205), "getsockopt": (55, 209), "poll": (7, None), "ppoll": (271, 73), "select": (23, None),
    "pselect6": (270, 72), "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "eventfd": (284, None),
    "eventfd2": (290, 19), "signalfd4": (289, 74), "timerfd_create": (283, 85), "timerfd_settime": (286, 86),
    "timerfd_gettime": (287, 87), "memfd_create": (319, 279),
    # names of files, which Landlock does not hide
    "fstat": (5, 80), "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17),
    # its own memory, threads, signals and end
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "msync": (26, 227), "mincore": (27, 232), "brk": (12, 214), "arch_prctl": (158, None), "futex": (202, 98),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293), "sched_yield": (24, 124),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "pause": (34, None),
    "alarm": (37, None), "setitimer": (38, 103), "getitimer": (36, 102), "restart_syscall": (219, 128),
    "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95), "umask": (95, 166),
    # what it may know: time, the machine, itself
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    "getrlimit": (97, 163), "sysinfo": (99, 179), "uname": (63, 160), "getrandom": (318, 278), "getcpu": (309, 168),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getpgrp": (111, None), "getpgid": (121, 155),
    "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158), "sched_getaffinity": (204, 123),
    "sched_getscheduler": (145, 120), "sched_getparam": (143, 121), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126),
}  # fmt: skip
"""Calls that are allowed, whatever they are asked for. All that are named nowhere are refused: signals to others, their
priorities, processors and memory, new processes, sockets, keys, mounts, and whatever a later kernel has."""
Word = int
"""The place of a 32-bit word among a call's arguments: twice the argument's number, and one more for its upper half."""
ASKED: Mapping[tuple[int | None, int | None], Sequence[tuple[Word, str, tuple[int, ...]]]] = {
    (72, 25): [(2, "one of", (0, 1, 2, 3, 4, 1030, 1032))],  # fcntl: no owner, who would get signals; no locks
    (16, 29): [(2, "one of", (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451))],  # ioctl: isatty, sizes, flags
    (53, 199): [(0, "one of", (1,)), (2, "one of", (1, 0x801, 0x80001, 0x80801))],  # socketpair: of streams only
    (56, 220): [(0, "any bit", (0x10000,))],  # clone: a thread
    (302, 261): [(0, "one of", (0,)), (4, "one of", (0,)), (5, "one of", (0,))],  # prlimit64: reads its own
    (2, None): [(2, "no bit", (0x200000,))],  # open, openat: not with O_PATH, which Landlock does not watch
    (257, 56): [(4, "no bit", (0x200000,))],
}
"""Calls that are allowed for some arguments, each of which must be as it says."""
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of CALLS, the kernel's name
CLONE3, NEWEST = (435, 435), 449
"""Calls from that number on, and clone3, are answered as by a kernel without them: the C library then uses others."""
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
    return sorted({name for path in paths if os.path.exists(path) for name in (path, os.path.realpath(path))})


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
    steps: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill),  # another machine's calls have other numbers
        (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), (give, 0, 0, refuse),  # x86_64's second set of calls
        (equal, 1, 0, CLONE3[column]), (at_least, 0, 1, NEWEST), (give, 0, 0, unknown),
    ]  # fmt: skip
    for call, conditions in ASKED.items():
        body = list[tuple[int, int, int, int]]()
        for word, how, values in conditions:
            body.append((load, 0, 0, 16 + 4 * word))
            if how == "one of":
                body += [(equal, len(values) - place, 0, value) for place, value in enumerate(values)]
            else:
                body.append((any_bit, 1, 0, values[0]) if how == "any bit" else (any_bit, 0, 1, values[0]))
            body.append((give, 0, 0, refuse))
        if (number := call[column]) is not None:
            steps += [(equal, 0, len(body) + 1, number), *body, (give, 0, 0, allow)]
    numbers = [number for of in CALLS.values() if (number := of[column]) is not None]
    steps += [(equal, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]  # to the last step
    steps += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _checked(found: int) -> int:
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found
