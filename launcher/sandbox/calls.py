"""System calls that confined processes may use, as data: for a computation, and for a shell with its text tools.

Numbers are those of x86_64 and of aarch64, from the kernel's tables; None where that has no such call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Number = tuple[int | None, int | None]
"""Number of a call on x86_64 and on aarch64; None where there is no such call."""
Calls = Mapping[str, Number]
Conditions = Mapping[Number, Sequence[tuple[int, str, tuple[int, ...]]]]
"""Conditions on the arguments of a call, all of which must hold. Each: the index of a 32-bit word (twice the argument's
number, and one more for its upper half), how it is compared, and with which values."""

COMPUTE: Calls = {
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
    # queries of time, of the machine and of the process itself
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    "getrlimit": (97, 163), "sysinfo": (99, 179), "uname": (63, 160), "getrandom": (318, 278), "getcpu": (309, 168),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getpgrp": (111, None), "getpgid": (121, 155),
    "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158), "sched_getaffinity": (204, 123),
    "sched_getscheduler": (145, 120), "sched_getparam": (143, 121), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126),
}  # fmt: skip
"""Calls of a computation, allowed with any arguments. A call that is in no table here is refused: signals to others,
their priorities, processors and memory, new processes, sockets, keys, mounts, and whatever a later kernel adds.
"""
COMPUTE_IF: Conditions = {
    (72, 25): [(2, "one of", (0, 1, 2, 3, 4, 1030, 1032))],  # fcntl: no owner, who would get signals; no locks
    (16, 29): [(2, "one of", (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451))],  # ioctl: isatty, sizes, flags
    (53, 199): [(0, "one of", (1,)), (2, "one of", (1, 0x801, 0x80001, 0x80801))],  # socketpair: of streams only
    (56, 220): [(0, "any bit", (0x10000,))],  # clone: a thread
    (302, 261): [(0, "one of", (0,)), (4, "one of", (0,)), (5, "one of", (0,))],  # prlimit64: reads its own
    (2, None): [(2, "no bit", (0x200000,))],  # open, openat: not with O_PATH, which Landlock does not watch
    (257, 56): [(4, "no bit", (0x200000,))],
}
"""Calls that are allowed for some arguments only."""

SHELL: Calls = {
    # processes of its own, all in the one group in which it was started: so that one signal ends all of them
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "getpriority": (140, 141), "setrlimit": (160, 164),
    # files, of which Landlock allows to change those of one folder
    "chdir": (80, 49), "fchdir": (81, 50), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None),
    "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "symlink": (88, None), "symlinkat": (266, 36), "ftruncate": (77, 46), "creat": (85, None),
    "copy_file_range": (326, 285), "fadvise64": (221, 223), "fallocate": (285, 47), "sendfile": (40, 71),
    "statfs": (137, 43), "fstatfs": (138, 44), "fsync": (74, 82), "splice": (275, 76),
}  # fmt: skip
"""Calls of a shell and text tools beyond a computation. chmod, chown, utimensat and truncate are missing: Landlock, or
its first versions, do not watch them, so they would change files anywhere."""
SHELL_IF: Conditions = {
    (56, 220): [(0, "no bit", (0x7E020080,))],  # clone: no namespace of its own
    (72, 25): [(2, "one of", (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032))],  # fcntl: also locks; still no owner
    (302, 261): [(0, "one of", (0,))],  # prlimit64: its own limits, which it may lower
    (141, 140): [(0, "one of", (0,)), (2, "one of", (0,))],  # setpriority: of the caller
    (203, 122): [(0, "one of", (0,))],  # sched_setaffinity: of the caller
    (16, 29): [(2, "one of", (0x5401, 0x5413, 0x540F, 0x541B, 0x5421, 0x5450, 0x5451))],  # ioctl: also the group
}
"""Conditions for a shell, which replace those of `COMPUTE_IF` for the same calls."""
KILL, OF_ITS_GROUP = (62, 129), [(0, "one of", (0,)), (1, "one of", (0,))]
"""`kill`, and the condition that it reaches the caller's own group only."""
