"""Which cluster is meant, and the environment by which a process may join it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.clusters.nodes.home import here
from launcher.clusters.nodes.ray_start import auth_env
from launcher.core.problems import Problem, Problems, error_message

COPY = "a copy of the head's token"
OTHER_CLUSTER = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
"""Variables by which Ray's job client would use another cluster."""


@dataclass(frozen=True)
class Reach:
    address: str
    env: Mapping[str, str] = field(default_factory=dict)
    """For a process that joins."""

    @property
    def client_env(self) -> dict[str, str]:
        """For a client that does not join: a token that the shell names is used."""
        return {**({"RAY_AUTH_MODE": "token"} if _names_token() else {}), **self.env}


def reach(address: str | None) -> Reach:
    """The cluster at HOST:PORT; for None or `auto` that of RAY_ADDRESS, or the one that this machine is in.

    The latter's token is in this machine's folder, unless the shell names one. Raises `Problems` where there is none.
    """
    asked = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS")
    home = here()
    node = home.node()
    if node and (asked in (None, "auto", node.address)):
        if asked and _names_token():
            _check_token()
            return Reach(node.address)
        return Reach(node.address, auth_env(home.token))
    if asked is None:
        raise Problems(
            Problem("cluster", "this machine is in no cluster", "use rlrun cluster up or join, or an address")
        )
    _check_token()
    return Reach(asked)


def _names_token() -> bool:
    return bool(os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"))


def _check_token() -> None:
    """Raises `Problems` where the shell's token cannot be read: Ray would abort."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    wanted = named or os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    if os.environ.get("RAY_AUTH_TOKEN") or not wanted:
        return
    file = Path(named or "~/.ray/auth_token").expanduser()
    try:
        why = "" if file.read_text(encoding="utf-8").strip() else "holds no token"
    except (OSError, ValueError) as error:
        why = error_message(error)
    if why:
        raise Problems(Problem("RAY_AUTH_TOKEN_PATH", f"{file}: {why}", f"use {COPY}", "bad-file"))
