"""A root folder that holds only chosen files: a process in it cannot learn name, size or times of any other.

It is a mount namespace (Linux 3.8), which needs no privileges where the system lets users make user namespaces; many
containers and some distributions do not. There `make` returns None, and Landlock alone forbids reading files.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from launcher.sandbox.confine import checked

NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000
BIND, PRIVATE = 0x1000 | 0x4000, 0x40000 | 0x4000  # with all that is mounted below
DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)
Root = tuple[int, int]
"""Descriptors of a user namespace and of the mount namespace that belongs to it."""


def make(paths: Collection[str]) -> Root | None:
    """A root that holds `paths` alone, under these names; None where the system has no such thing."""
    if sys.platform != "linux":
        return None
    with tempfile.TemporaryDirectory() as folder:  # removed here, and still mounted in the namespace
        return _make_in_child(folder, paths)


def _make_in_child(folder: str, paths: Collection[str]) -> Root | None:
    """Forks a process that makes the namespaces and ends; they last as long as the descriptors that are returned."""
    ready, done = (os.pipe() for _ in range(2))
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            _build_root(folder, paths)
            os.write(ready[1], b"1")
            os.close(done[1])
            os.read(done[0], 1)  # until its namespaces are open
        os._exit(0)
    os.close(ready[1])
    try:
        if not os.read(ready[0], 1):
            return None
        user = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return user, os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(user)
            raise
    except OSError:
        return None
    finally:
        for descriptor in (ready[0], *done):
            os.close(descriptor)
        os.waitpid(pid, 0)


def enter(root: Root) -> None:
    """Move this process into `root`, irrevocably; it must have one thread. Raises `OSError`."""
    for descriptor, kind in zip(root, (NEW_USER, NEW_MOUNTS), strict=True):
        checked(_libc.setns(descriptor, kind))


def _build_root(new_root: str, paths: Collection[str]) -> None:
    user, group = os.getuid(), os.getgid()
    checked(_libc.unshare(NEW_USER | NEW_MOUNTS))
    with suppress(OSError):  # root of a container may have nothing to deny
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount(None, "/", None, PRIVATE)
    _mount("none", new_root, "tmpfs", 0)
    mounted = ""
    existing = (os.path.normpath(path) for path in paths if os.path.exists(path))
    for path in sorted(existing, key=lambda at: at.split("/")):
        if mounted and path.startswith(f"{mounted}/"):  # is there already, and nothing is made in real folders
            continue
        mounted, target = path, Path(new_root + path)
        if os.path.isdir(path):
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        _mount(path, str(target), None, BIND)
    os.chdir(new_root)
    checked(_libc.pivot_root(b".", b"."))
    checked(_libc.umount2(b".", DETACH))


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    names = [None if name is None else os.fsencode(name) for name in (source, target, kind)]
    checked(_libc.mount(*names, ctypes.c_ulong(flags), None))
