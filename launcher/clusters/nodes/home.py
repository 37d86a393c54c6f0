"""Where a node keeps what is known of it, one folder a machine and user, none of it for others to read.

$RLRUN_CLUSTER (or ~/.cache/rlrun/cluster/<hostname>)/  node.json   what is kept running, as `up` or `join` wrote it
                                                        state.json  how it stands, as its keeper says
                                                        token       the cluster's secret
                                                        .lock       held as long as the keeper lives
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
from launcher.core.files import expand_user, write_atomic
from launcher.core.problems import Problem, Problems

Phase = Literal["starting", "up", "waiting", "failed"]


@dataclass(frozen=True)
class Node:
    """What one machine gives to a cluster."""

    address: str
    """HOST:PORT of the cluster's head, of a head its own."""
    ip: str
    """This machine's, by which the others reach it."""
    head: bool
    mark: str
    """Stands in the environment of every process that Ray starts here."""
    temp: str
    """Ray's folder for sockets and logs; its path is short, as a socket's must be."""
    words: tuple[str, ...] = ()
    """More for `ray start`."""
    leave_after_s: float | None = None
    """How long a head may be gone before this machine leaves, too; None: it is waited for without end."""
    hosts: tuple[str, ...] = ()
    """Of a head: what it has brought in by ssh, and takes down with it."""


@dataclass(frozen=True)
class State:
    """What the keeper says."""

    phase: Phase
    why: str = ""
    """Of `waiting` and `failed`; of `up` why it had to be started again."""
    starts: int = 0
    pid: int = 0
    at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Home:
    path: Path

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def ray_log(self) -> Path:
        return self.path / "ray.log"

    @property
    def keeper_log(self) -> Path:
        return self.path / "keeper.log"

    def node(self) -> Node | None:
        """None where nothing has been brought up. Raises `Problems` where what stands there is no node."""
        file = self.path / "node.json"
        try:
            node = parse_json(file.read_bytes())
            return Node(**{**node, "words": tuple(node["words"]), "hosts": tuple(node["hosts"])})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise Problems(Problem(str(file), "is not a node's", f"remove {self.path}", "bad-file")) from error

    def write_node(self, node: Node) -> None:
        write_atomic(self.path / "node.json", json.dumps(asdict(node)))

    def state(self) -> State | None:
        try:
            return State(**parse_json((self.path / "state.json").read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write_state(self, state: State) -> None:
        write_atomic(self.path / "state.json", json.dumps(asdict(state)))

    def clear(self) -> None:
        for name in ("node.json", "state.json", "token"):
            (self.path / name).unlink(missing_ok=True)

    def lock(self) -> int | None:
        """The open lock; None while another holds it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def has_keeper(self) -> bool:
        """Whether a keeper lives; what it wrote is of use only then."""
        if not (self.path / ".lock").exists():
            return False
        descriptor = self.lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def here() -> Home:
    """This user's on this machine: home folders are often shared by all machines of a cluster."""
    named = os.environ.get("RLRUN_CLUSTER") or f"~/.cache/rlrun/cluster/{socket.gethostname()}"
    return Home(expand_user(named).absolute())
