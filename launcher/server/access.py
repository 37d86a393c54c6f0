"""Bearer tokens and their scopes: `read` reads; `launch` also starts, stops and changes jobs, which means running code
on this machine; `admin` also issues tokens. Only digests of tokens are stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Literal, get_args

from sqlalchemy import delete, select

from launcher.core.problems import Problem, Problems
from launcher.server.database import Database, TokenRow

Scope = Literal["read", "launch", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True)
class Holder:
    """Who holds a token, and what it allows."""

    scope: Scope
    who: str = ""

    def may(self, scope: Scope) -> bool:
        """Whether this scope includes `scope`: each includes those before it in `SCOPES`."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


def new_token() -> str:
    return secrets.token_urlsafe(32)


class AccessTokens:
    """The server's own token, which has every scope, and the issued ones. Methods may be called from any thread."""

    def __init__(self, own: str, database: Database) -> None:
        self._own_digest, self._database = _digest(own) if own else "", database
        self._lock = threading.Lock()
        with database.session() as session:
            rows = session.scalars(select(TokenRow))
            scopes: dict[str, Scope] = {scope: scope for scope in SCOPES}  # unknown ones of later versions may read
            self._holders = {row.digest: Holder(scopes.get(row.scope, "read"), row.who) for row in rows}

    @property
    def are_wanted(self) -> bool:
        return bool(self._own_digest)

    def holder(self, token: str) -> Holder | None:
        """Who holds this token; None if it is unknown."""
        digest = _digest(token)
        if self._own_digest and hmac.compare_digest(digest, self._own_digest):
            return Holder("admin")
        return self._holders.get(digest)

    def give(self, scope: Scope, who: str) -> str:
        """Issue a new token. Only its digest is stored, so it cannot be shown again."""
        token = new_token()
        digest = _digest(token)
        with self._lock, self._database.session() as session:
            session.add(TokenRow(digest=digest, scope=scope, who=who, at=time.time()))
            self._holders[digest] = Holder(scope, who)
        return token

    def take_back(self, prefix: str) -> None:
        """Revoke the one token whose digest begins with `prefix`. Raises `Problems` unless there is exactly one."""
        with self._lock, self._database.session() as session:
            digests = [digest for digest in self._holders if digest.startswith(prefix)]
            if len(digests) != 1:
                raise Problems(Problem("id", "is the id of no token", "GET /api/tokens lists them", "not-found"))
            session.execute(delete(TokenRow).where(TokenRow.digest == digests[0]))
            del self._holders[digests[0]]

    def listed(self) -> list[dict[str, str]]:
        with self._lock:
            return [{"id": key[:16], "scope": holder.scope, "who": holder.who} for key, holder in self._holders.items()]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
