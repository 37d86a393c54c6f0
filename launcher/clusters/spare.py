"""Starting a process at once, where one that has loaded its libraries waits for that (`nursery`)."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

import launcher

MODULE = ("-P", "-m")  # between the interpreter and the module, in words that a nursery can answer
NURSERY = "launcher.clusters.nursery"
OWN = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICES", "RLRUN_TOLD", "RLRUN_STACK", "SHLVL", "_",
)  # fmt: skip
"""Variables that differ between processes which can be forks of one nursery: nothing is loaded by them."""
INHERITED = ("cgroup", "limits")
"""Files of /proc/self that say what a process has from the one that started it; beside them, of its `status`:"""
STATUS = ("Umask", "Cpus_allowed", "Mems_allowed")
LONGEST = 100  # characters of a socket's path
ANSWER_S = 5.0  # for a nursery, which forks in milliseconds
POLL_S = 0.02
AFTER_S = 5.0  # loading is work of the processor, which the run itself needs first
EVERY_S, PATIENCE_S = 0.5, 60.0  # between two looks whether it is ready; until another is begun


class Process(Protocol):
    """What `subprocess.Popen` has, as far as it is used."""

    pid: int
    returncode: int | None
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...


class Fork:
    """A nursery's child, which is ours to ask and to end. Its methods may be called from several threads."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, line: socket.socket) -> None:
        """Raises `OSError` or `ValueError` where the nursery does not answer."""
        line.settimeout(ANSWER_S)
        self._said, found = b"", list[int]()
        while (pid := _told(self._said, "pid")) is None:  # it may have ended, and said so, before this comes
            came, fds, _, _ = socket.recv_fds(line, 4096, 1)
            if not came:
                raise ConnectionResetError("the nursery has ended")
            self._said, found = self._said + came, found + fds
        self.pid, (self._itself,) = pid, found
        line.setblocking(False)
        self._line, self._lock = line, threading.Lock()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and self._gone():
                code = _told(self._said, "code")
                self.returncode = -signal.SIGKILL if code is None else code  # killed, and so was the nursery
                self._line.close()
                os.close(self._itself)
        return self.returncode

    def _gone(self) -> bool:
        """Whether it has ended, once all that was said is heard: it and the nursery hold the line."""
        try:
            while came := self._line.recv(4096):
                self._said += came
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def wait(self, timeout: float | None = None) -> int:
        give_up = time.monotonic() + timeout if timeout is not None else math.inf
        while (code := self.poll()) is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        with self._lock, suppress(ProcessLookupError):
            if self.returncode is None:
                signal.pidfd_send_signal(self._itself, sig)


def _told(said: bytes, name: str) -> int | None:
    """The first number of this name in whole lines of what the nursery and the fork say."""
    nodes = (json.loads(line) for line in said.split(b"\n")[:-1])
    return next((int(node[name]) for node in nodes if name in node), None)


def begin(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdout: int,
    stderr: int,
    pass_fds: Sequence[int],
    cwd: str | None = None,
    *,
    spare: bool,
) -> Process:
    """A process in a session of its own, whose standard input is a pipe; `stdout` may be `subprocess.PIPE`.

    With `spare` a fork, where a nursery answers for these words and this environment; else as `Popen` starts it.
    """
    if spare:
        with suppress(OSError, ValueError):
            return _ask(_line(_place(argv, env, cwd)), argv, env, stdout, stderr, pass_fds, cwd)
    return subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, pass_fds=pass_fds, start_new_session=True,
        cwd=cwd,
    )  # fmt: skip


class Spare:
    """Sees to it that a nursery is there for such words, once what runs now has had its time to start."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> None:
        self._argv, self._env, self._cwd = argv, env, cwd
        self._look_at = time.monotonic() + AFTER_S
        self._begin_at = 0.0
        self._begun: subprocess.Popen[bytes] | None = None
        self._place: Path | None = None
        self._line: socket.socket | None = None
        """Open as long as the nursery is to stay; nothing is asked by it."""

    def look(self) -> None:
        """Begin it where its time has come, and hold it. Never waits."""
        if self._begun:
            self._begun.poll()  # what has ended is buried
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + EVERY_S
        with suppress(OSError, ValueError):
            self._place = self._place or _place(self._argv, self._env, self._cwd)
            try:
                self._hold(self._place)
            except OSError:
                if time.monotonic() >= self._begin_at:
                    self._begin(self._place)

    def _hold(self, place: Path) -> None:
        """Raises `OSError` where nobody is there, or no more."""
        if self._line is None:
            self._line = _line(place)
            self._line.setblocking(False)
        with suppress(BlockingIOError):
            self._line.recv(1)
            self._drop()  # nothing is ever said here: it has ended
            raise ConnectionResetError

    def _begin(self, place: Path) -> None:
        """Where one is there already, or still loads, it ends itself."""
        self._begin_at = time.monotonic() + PATIENCE_S
        self._begun = subprocess.Popen(
            [self._argv[0], *MODULE, NURSERY, str(place), self._argv[3]],
            env={name: value for name, value in self._env.items() if name not in OWN},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd=self._cwd,
        )  # fmt: skip

    def close(self) -> None:
        """Hold it no more, and look no more: it ends a minute after the last that held it."""
        self._look_at = math.inf
        self._drop()

    def _drop(self) -> None:
        if self._line:
            self._line.close()
            self._line = None


def _place(argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> Path:
    """Where a nursery for such words listens, in a folder into which others may not look.

    Raises `OSError` or `ValueError` where there can be none.
    """
    if tuple(argv[1:3]) != MODULE or not hasattr(os, "pidfd_open"):
        raise ValueError(f"no nursery answers {argv}")
    folder = Path(tempfile.gettempdir()) / f"rlrun-spare-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not ours alone")
    same = [(name, value) for name, value in sorted(env.items()) if name not in OWN]
    alike = json.dumps([argv[0], argv[3], cwd or os.getcwd(), same, *_inherited(), *_installed()])
    place = folder / hashlib.sha256(alike.encode()).hexdigest()[:16]
    if len(str(place)) > LONGEST:
        raise ValueError(f"{place} is too long for a socket")
    return place


def _inherited() -> list[str]:
    """What a process has from the one that starts it, beside its environment: a fork has it from the nursery."""
    own = Path("/proc/self")
    spaces = [f"{space.name} {space.readlink()}" for space in sorted((own / "ns").iterdir())]
    status = [line for line in (own / "status").read_text().splitlines() if line.startswith(STATUS)]
    machine = Path("/proc/sys/kernel/random/boot_id").read_text()
    return [*spaces, *status, *[(own / name).read_text() for name in INHERITED], machine, str(os.nice(0))]


def _installed() -> list[int]:
    """Changes with what a process would load."""
    ours = [file.stat().st_mtime_ns for file in Path(launcher.__file__).parent.rglob("*.py")]
    return [max(ours), Path(sysconfig.get_paths()["purelib"]).stat().st_mtime_ns]


def _line(place: Path) -> socket.socket:
    """Raises `OSError` where nobody listens."""
    line = socket.socket(socket.AF_UNIX)
    try:
        line.settimeout(ANSWER_S)
        line.connect(str(place))
    except OSError:
        line.close()
        raise
    return line


def _ask(
    line: socket.socket, argv: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int,
    pass_fds: Sequence[int], cwd: str | None,
) -> Fork:  # fmt: skip
    """Raises `OSError` or `ValueError` where nobody answers. A fork that comes too late finds its input at an end."""
    source, mouth = os.pipe()
    heard, spoken = os.pipe() if stdout == subprocess.PIPE else (-1, stdout)
    try:
        asked = {"words": list(argv[3:]), "env": dict(env), "cwd": cwd or os.getcwd(), "fds": [0, 1, 2, *pass_fds]}
        text = json.dumps(asked).encode() + b"\n"
        sent = socket.send_fds(line, [text], [source, spoken, stderr, *pass_fds])
        line.sendall(text[sent:])
        fork = Fork(line)
    except BaseException:
        line.close()
        os.close(mouth)
        if heard >= 0:
            os.close(heard)
        raise
    finally:
        os.close(source)
        if heard >= 0:
            os.close(spoken)
    fork.stdin, fork.stdout = os.fdopen(mouth, "wb"), os.fdopen(heard, "rb") if heard >= 0 else None
    return fork
