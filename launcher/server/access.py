"""Bearer tokens and their scopes: `read` reads; `launch` also starts, stops and changes jobs, which means running code
on this machine; `admin` may do everything. A token of each is made when the server starts."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Literal, get_args

Scope = Literal["read", "launch", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


def includes(scope: Scope, other: Scope) -> bool:
    """Whether `scope` allows what `other` does: each includes those before it in `SCOPES`."""
    return SCOPES.index(scope) >= SCOPES.index(other)


def make_tokens() -> dict[str, Scope]:
    """A new token for each scope, the one that may do most first."""
    return {secrets.token_urlsafe(32): scope for scope in reversed(SCOPES)}


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
