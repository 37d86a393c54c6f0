"""Which cluster is meant, and what a process needs to be let in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.clusters.nodes.home import here
from launcher.clusters.nodes.ray_start import joined
from launcher.problems import Problems, said

COPY = "a copy of the head's token"


@dataclass(frozen=True)
class Reach:
    address: str
    env: Mapping[str, str] = field(default_factory=dict)
    """To be added to the environment of whoever joins."""


def reach(address: str | None) -> Reach:
    """The cluster at HOST:PORT; for None or `auto` that of RAY_ADDRESS, or the one that this machine is in.

    The token of the latter is known here, unless the shell names one. Raises `Problems` where there is none.
    """
    asked = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS")
    home = here()
    node = home.node()
    if node and (asked in (None, "auto", node.address)):
        return Reach(node.address, _by_shell() if asked and _names_token() else joined(home.token))
    if asked is None:
        raise Problems(
            ["cluster: this machine is in no cluster; rlrun cluster up, rlrun cluster join, or an address would do"]
        )
    return Reach(asked, _by_shell())


def _names_token() -> bool:
    return "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ


def _by_shell() -> dict[str, str]:
    """Raises `Problems` where the shell's token is not to be read: Ray would abort."""
    mode = os.environ.get("RAY_AUTH_MODE", "token" if _names_token() else "disabled")
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if mode == "token" and "RAY_AUTH_TOKEN" not in os.environ:
        try:
            file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise Problems([f"RAY_AUTH_TOKEN_PATH: {file}: {said(error)}; {COPY} would do"]) from error
    return {"RAY_AUTH_MODE": mode} if mode == "token" else {}
