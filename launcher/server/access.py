"""Bearer tokens and their scopes: `read` reads; `launch` also starts, stops and changes jobs, which means running code
on this machine. A server has one token for each; that for `read` is derived from the other, which it cannot tell."""

from __future__ import annotations

import hmac
import secrets
from typing import Literal

Scope = Literal["read", "launch"]


def new_token() -> str:
    """A random token with the scope `launch`."""
    return secrets.token_urlsafe(32)


def read_token(token: str) -> str:
    """The token with the scope `read` of a server whose own token is `token`."""
    return hmac.digest(token.encode("utf-8", "surrogateescape"), b"read", "sha256").hex()


def scope_of(sent: str, token: str) -> Scope | None:
    """What a request with the token `sent` may do where the server's own is `token`; None if it may do nothing. Without
    a token of the server's own, every request may launch."""
    if not token or _equal(sent, token):
        return "launch"
    return "read" if _equal(sent, read_token(token)) else None


def _equal(sent: str, token: str) -> bool:
    return hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), token.encode("utf-8", "surrogateescape"))
