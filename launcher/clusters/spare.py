"""Starting a process at once, where one that has loaded its libraries waits for that (`nursery`)."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from launcher import machine

MODULE = ("-P", "-m")  # between the interpreter and the module, in words that a nursery can answer
NURSERY = "launcher.clusters.nursery"
OWN = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
    "RLRUN_TOLD", "RLRUN_STACK", "RLRUN_NODE", "SHLVL", "_",
)  # fmt: skip
"""Variables that differ between processes which can be forks of one nursery: nothing is loaded by them."""
SPACES = ("net", "pid")
"""Linux's, which a fork has from its nursery: containers of one machine may share a folder and not these."""
ANSWER_S = 5.0  # for a nursery, which forks in milliseconds
POLL_S = 0.02
AFTER_S = 5.0  # loading is work of the processor, which the run itself needs first


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
    """A nursery's child, which is ours to ask and to end. Its input and output are pipes where `PIPE` was asked for."""

    def __init__(self, line: socket.socket, stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        """Raises `OSError` or `ValueError` where there is none."""
        self._line, self._said = line, b""
        line.settimeout(ANSWER_S)
        while b"\n" not in self._said:
            came = line.recv(4096)
            if not came:
                raise ConnectionResetError("the nursery has ended")
            self._said += came
        born, _, self._said = self._said.partition(b"\n")
        self.pid = int(json.loads(born)["pid"])
        line.setblocking(False)
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self._silent():
            self._over()
        return self.returncode

    def _silent(self) -> bool:
        """Whether nobody speaks any more, once all that was said is heard."""
        try:
            while came := self._line.recv(4096):
                self._said += came
        except BlockingIOError:
            return False
        except OSError:  # the nursery was killed
            pass
        return True

    def _over(self) -> None:
        told = json.loads(self._said) if self._said.endswith(b"\n") else {}
        if "code" in told:
            self.returncode = int(told["code"])
        elif not machine.lives(self.pid):
            self.returncode = -signal.SIGKILL  # nor does it: who ended the nursery knows with what
        if self.returncode is not None:
            self._line.close()

    def wait(self, timeout: float | None = None) -> int:
        give_up = time.monotonic() + timeout if timeout is not None else float("inf")
        while (code := self.poll()) is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)


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
    with suppress(OSError, ValueError):
        if spare and (place := _place(argv, env)) and place.exists():
            return _ask(place, argv, env, stdout, stderr, pass_fds, cwd)
    return subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, pass_fds=pass_fds, start_new_session=True,
        cwd=cwd,
    )  # fmt: skip


class Spare:
    """A nursery that will answer for such words, begun once what runs now has had its time to start."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._argv, self._env = argv, env
        self._at = time.monotonic() + AFTER_S
        self._begun: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Begin it when its time has come. Where one is there already it ends itself."""
        if self._begun:
            self._begun.poll()  # what has ended is buried
        if time.monotonic() < self._at:
            return
        self._at = float("inf")
        with suppress(OSError):
            if place := _place(self._argv, self._env):
                self._begun = subprocess.Popen(
                    [self._argv[0], *MODULE, NURSERY, str(place), self._argv[3]],
                    env={name: value for name, value in self._env.items() if name not in OWN},
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    start_new_session=True, cwd="/",
                )  # fmt: skip


def _place(argv: Sequence[str], env: Mapping[str, str]) -> Path | None:
    """Where a nursery for such words listens; None where there can be none. Others may not look into its folder.

    Raises `OSError` where there can be no such folder.
    """
    if tuple(argv[1:3]) != MODULE or not hasattr(os, "pidfd_open"):
        return None
    folder = Path(tempfile.gettempdir()) / f"rlrun-spare-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not ours alone")
    same = sorted((name, value) for name, value in env.items() if name not in OWN)
    here = [os.readlink(f"/proc/self/ns/{space}") for space in SPACES]
    return folder / hashlib.sha256(json.dumps([argv[0], argv[3], same, here]).encode()).hexdigest()[:16]


def _ask(
    place: Path, argv: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int, pass_fds: Sequence[int],
    cwd: str | None,
) -> Fork:  # fmt: skip
    """Raises `OSError` or `ValueError` where nobody answers."""
    line = socket.socket(socket.AF_UNIX)
    source, mouth = os.pipe()
    heard, spoken = os.pipe() if stdout == subprocess.PIPE else (-1, stdout)
    try:
        line.settimeout(ANSWER_S)
        line.connect(str(place))
        asked = {"words": list(argv[3:]), "env": dict(env), "cwd": cwd or os.getcwd(), "fds": [0, 1, 2, *pass_fds]}
        files = [source, spoken, stderr, *pass_fds]
        text = json.dumps(asked).encode() + b"\n"
        sent = socket.send_fds(line, [text], files)
        line.sendall(text[sent:])
        return Fork(line, os.fdopen(mouth, "wb"), os.fdopen(heard, "rb") if heard >= 0 else None)
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
