"""The folder of a node, one for each machine and user, readable by no other user; and how to reach a cluster.

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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import psutil

from launcher.core import machine
from launcher.core.bounded_parse import parse_json
from launcher.core.files import PathIn, expand_user, read_file, write_atomic
from launcher.core.problems import Problem, Problems, error_message

COPY = "a copy of the head's token"
Phase = Literal["starting", "up", "waiting", "failed"]


@dataclass(frozen=True)
class Node:
    """One machine's part of a cluster."""

    address: str
    """HOST:PORT of the cluster's head."""
    ip: str
    """Address of this machine, as the others reach it."""
    head: bool
    mark: str
    """Value of a variable in the environment of every process that Ray starts here."""
    temp: str
    """Holds `ray_temp`; no other user may enter it. Its path is short, as the path of a socket must be."""
    words: tuple[str, ...] = ()
    """Further options of `ray start`."""
    leave_after_s: float | None = None
    """Seconds without a head before this machine leaves; None: never."""

    @property
    def ray_temp(self) -> Path:
        """Ray's folder for sockets and logs, which it opens to every user."""
        return Path(self.temp) / "r"


@dataclass(frozen=True)
class State:
    """The state of a node, as its keeper reports it."""

    phase: Phase
    why: str = ""
    """Reason for `waiting` or `failed`; in `up`, why Ray was started again."""
    starts: int = 0
    pid: int = 0


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
        """The node; None where this machine has none. Raises `Problems` where the file is damaged."""
        try:
            node = _known_fields(Node, parse_json(read_file(self._node)))
            return Node(**{**node, "words": tuple(node.get("words", ()))})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise Problems(Problem(str(self._node), "is not a node's", f"remove {self.path}", "bad-file")) from error

    def write_node(self, node: Node) -> None:
        write_atomic(self._node, json.dumps(asdict(node)))

    def state(self) -> State | None:
        try:
            return State(**_known_fields(State, parse_json(read_file(self._state))))
        except (OSError, ValueError, TypeError):
            return None

    def write_state(self, state: State) -> None:
        write_atomic(self._state, json.dumps(asdict(state)))

    def clear(self) -> None:
        for file in (self._node, self._state, self.token):
            file.unlink(missing_ok=True)

    def lock(self) -> int | None:
        """Descriptor of the locked file; None while another process holds the lock."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def keeper_pid(self) -> int | None:
        """Process id of the living keeper: the process that has the lock open, whatever its state says."""
        state = self.state()
        candidates = [state.pid] if state else []
        return next((pid for pid in (*candidates, *psutil.pids()) if machine.has_open(pid, self._lock)), None)

    def has_keeper(self) -> bool:
        """Whether a keeper lives; its state is valid only then."""
        if not self._lock.exists():
            return False
        descriptor = self.lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def _known_fields(kind: type[Node | State], node: Any) -> dict[str, Any]:
    """The fields of a file that this version knows; a file of another version may have others, too."""
    return {each.name: node[each.name] for each in fields(kind) if each.name in node}


def here() -> Home:
    """This user's folder on this machine, by host name, as machines of a cluster often share home folders."""
    path = os.environ.get("RLRUN_CLUSTER") or f"~/.cache/rlrun/cluster/{socket.gethostname()}"
    return Home(expand_user(path).absolute())


# ---- which cluster is meant


def auth_env(token: Path) -> dict[str, str]:
    """Variables with which a process can join the cluster."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True)
class Reach:
    address: str
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for a process that joins the cluster."""


def reach(address: str | None) -> Reach:
    """The cluster at HOST:PORT; for None or `auto` that of RAY_ADDRESS, or the one that this machine is in.

    The latter's token is in this machine's folder, unless the shell names one. Raises `Problems` where there is none.
    """
    wanted = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS")
    home = here()
    node = home.node()
    if node and (wanted in (None, "auto", node.address)):
        if wanted and (os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")):
            _check_token()
            return Reach(node.address)
        return Reach(node.address, auth_env(home.token))
    if wanted is None:
        raise Problems(
            Problem("cluster", "this machine is in no cluster", "use rlrun cluster up or join, or an address")
        )
    _check_token()
    return Reach(wanted)


def _check_token() -> None:
    """Raises `Problems` where the shell's token cannot be read: Ray would abort."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    needs_token = path or os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    if os.environ.get("RAY_AUTH_TOKEN") or not needs_token:
        return
    file = Path(path or "~/.ray/auth_token").expanduser()
    try:
        why = "" if file.read_text(encoding="utf-8").strip() else "holds no token"
    except (OSError, ValueError) as error:
        why = error_message(error)
    if why:
        raise Problems(Problem("RAY_AUTH_TOKEN_PATH", f"{file}: {why}", f"use {COPY}", "bad-file"))
