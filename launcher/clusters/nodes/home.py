"""The folder of a node, one for each machine and user, readable by no other user.

$RLRUN_CLUSTER (or ~/.cache/rlrun/cluster/<hostname>)/  node.json   what is kept running, written by `up` or `join`
                                                        state.json  its state, written by its keeper
                                                        token       the cluster's secret
                                                        .lock       locked as long as the keeper lives
                                                        keeper.log  ray.log
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from launcher.core.bounded_parse import parse_json
from launcher.core.files import PathIn, expand_user, write_atomic
from launcher.core.problems import Problem, Problems

Phase = Literal["starting", "up", "waiting", "failed"]


@dataclass(frozen=True)
class Node:
    """One machine's part of a cluster."""

    address: str
    """HOST:PORT of the cluster's head."""
    ip: str
    """Of this machine, as the others reach it."""
    head: bool
    mark: str
    """In the environment of every process that Ray starts here."""
    temp: str
    """Ray's folder for sockets and logs; its path is short, as the path of a socket must be."""
    words: tuple[str, ...] = ()
    """Further options of `ray start`."""
    leave_after_s: float | None = None
    """Seconds without a head before this machine leaves; None: never."""
    hosts: tuple[str, ...] = ()
    """Of a head: machines that it has added over ssh, and takes down with it."""


@dataclass(frozen=True)
class State:
    """As the keeper reports it."""

    phase: Phase
    why: str = ""
    """Of `waiting` and `failed`; of `up` why Ray was started again."""
    starts: int = 0
    pid: int = 0
    at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Home:
    path: Path

    token = PathIn("token")
    ray_log = PathIn("ray.log")
    keeper_log = PathIn("keeper.log")
    _node = PathIn("node.json")
    _state = PathIn("state.json")
    _lock = PathIn(".lock")

    def node(self) -> Node | None:
        """None where there is none. Raises `Problems` where the file is damaged."""
        try:
            node = parse_json(self._node.read_bytes())
            return Node(**{**node, "words": tuple(node["words"]), "hosts": tuple(node["hosts"])})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise Problems(Problem(str(self._node), "is not a node's", f"remove {self.path}", "bad-file")) from error

    def write_node(self, node: Node) -> None:
        write_atomic(self._node, json.dumps(asdict(node)))

    def state(self) -> State | None:
        try:
            return State(**parse_json(self._state.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write_state(self, state: State) -> None:
        write_atomic(self._state, json.dumps(asdict(state)))

    def clear(self) -> None:
        for file in (self._node, self._state, self.token):
            file.unlink(missing_ok=True)

    def lock(self) -> int | None:
        """The open lock; None while another process has it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def has_keeper(self) -> bool:
        """Whether a keeper lives; its state is valid only then."""
        if not self._lock.exists():
            return False
        descriptor = self.lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def here() -> Home:
    """This user's on this machine, by host name: home folders are often shared by the machines of a cluster."""
    named = os.environ.get("RLRUN_CLUSTER") or f"~/.cache/rlrun/cluster/{socket.gethostname()}"
    return Home(expand_user(named).absolute())
