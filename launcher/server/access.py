"""Bearer tokens and their scopes: `read` reads; `launch` also starts, stops and changes jobs, which means running code
on this machine; `admin` may do everything. The tokens are made from a secret that the run root keeps."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from launcher.core.files import read_file, write_atomic

SECRET = ".serve-secret"
"""The file of the secret in the run root, readable by its owner alone. Without it a server makes new tokens."""
Scope = Literal["read", "launch", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


def includes(scope: Scope, other: Scope) -> bool:
    """Whether `scope` allows what `other` does: each includes those before it in `SCOPES`."""
    return SCOPES.index(scope) >= SCOPES.index(other)


def make_tokens(root: Path) -> dict[str, Scope]:
    """The token for each scope of the servers of this run root, the one that may do most first. Raises `OSError`."""
    file = root / SECRET
    if not file.exists():
        write_atomic(file, secrets.token_urlsafe(32))
    secret = read_file(file)
    return {hmac.new(secret, scope.encode(), "sha256").hexdigest(): scope for scope in reversed(SCOPES)}


class AccessTokens:
    """The server's tokens. They are looked up by digest, so that the time of a look-up tells nothing about them."""

    def __init__(self, tokens: Mapping[str, Scope]) -> None:
        self._scopes = {_digest(token): scope for token, scope in tokens.items()}

    @property
    def are_wanted(self) -> bool:
        return bool(self._scopes)

    def scope_of(self, token: str) -> Scope | None:
        """What this token allows; None if it is unknown."""
        return self._scopes.get(_digest(token))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
