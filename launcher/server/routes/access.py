"""Issues, lists and revokes tokens, which requires the scope `admin`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel

from launcher.server.access import Scope
from launcher.server.problems import declared
from launcher.server.services import UsesServices
from launcher.server.values import RequestBody, Text

router = APIRouter(prefix="/api/tokens", tags=["access"], responses=declared(422))


class TokenBody(RequestBody):
    scope: Scope
    who: Text = ""


class TokenNode(BaseModel):
    id: str
    scope: Scope
    who: str


class NewToken(BaseModel):
    token: str
    """Shown once."""


@router.post("", status_code=201)
def give_token(body: TokenBody, services: UsesServices) -> NewToken:
    """A new token; it is not shown again."""
    return NewToken(token=services.tokens.give(body.scope, body.who))


@router.get("")
def list_tokens(services: UsesServices) -> list[TokenNode]:
    """Those given out, without the tokens themselves."""
    return [TokenNode.model_validate(node) for node in services.tokens.listed()]


@router.delete("/{id}", status_code=204, responses=declared(404))
def take_back_token(id: Annotated[str, Path(pattern="^[0-9a-f]{16,64}$")], services: UsesServices) -> None:
    """It allows nothing from now on."""
    services.tokens.take_back(id)
