"""Errors as problem documents (RFC 9457): each `Problem` with where, what was found, what to use, and its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from launcher.core.problems import Code, Problem, Problems, nearest, short_repr
from launcher.core.redaction import printable
from launcher.server.answers import encoded

MEDIA = "application/problem+json"
STATUS: Mapping[str, int] = {
    "not-found": 404, "in-use": 409, "changed": 409, "not-permitted": 403, "not-enough": 422, "not-reachable": 502,
}  # fmt: skip
"""Of a `Code`; 422 of all others."""


class ProblemNode(BaseModel):
    where: str
    """The field, setting or subject."""
    got: str
    """What was found."""
    fix: str
    """What to use instead; empty where nothing is known to help."""
    code: str
    """Its kind; docs/troubleshooting.md explains each."""


class ProblemDocument(BaseModel):
    """What every answer of 400 and above holds."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    problems: list[ProblemNode]


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route that may answer with these."""
    return {status: {"model": ProblemDocument, "description": HTTPStatus(status).phrase} for status in statuses}


def document(status: int, problems: Sequence[Problem], headers: Mapping[str, str] | None = None) -> Response:
    """The answer that says what is wrong. Secrets and control characters never leave."""
    nodes = [
        {"where": printable(each.where), "got": printable(each.got), "fix": printable(each.fix), "code": each.code}
        for each in problems
    ]
    detail = printable("\n".join(map(str, problems)))
    node = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Response(encoded({**node, "problems": nodes}), status, dict(headers or {}), MEDIA)


def status_of(problems: Sequence[Problem]) -> int:
    """That of the first, as the others are often what follows from it."""
    return STATUS.get(problems[0].code, 422) if problems else 422


def add_handlers(app: FastAPI) -> None:
    """Every error of every route becomes a document."""
    app.add_exception_handler(Problems, _of_problems)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(FileNotFoundError, _of_gone)
    app.add_exception_handler(500, _of_fault)


def _of_problems(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problems)
    return document(status_of(error.problems), error.problems)


def _of_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    body = getattr(request.scope.get("route"), "body_field", None)
    model = body.field_info.annotation if body else None
    known = [name for each in get_args(model) or (model,) for name in getattr(each, "model_fields", ())]
    return document(422, [_of_field(each, known) for each in error.errors()])


def _of_field(found: Mapping[str, Any], known: Sequence[str]) -> Problem:
    """One finding of pydantic, named by the field as the request spells it."""
    source, *names = found["loc"]
    where, what = ".".join(map(str, names)) or str(source), found["type"]
    if what == "extra_forbidden":
        near = nearest(where, known)
        fix = f"did you mean {near}?" if near else f"leave it out; known are {', '.join(sorted(known))}"
        return Problem(where, "no such field", fix, "unknown-setting")
    if what == "missing":
        return Problem(where, "is missing", "give it a value")
    if what == "json_invalid":
        return Problem("body", f"is no JSON: {found['ctx']['error']}", "send a JSON object")
    got = f"got {short_repr(found.get('input'))}: {found['msg'][:1].lower()}{found['msg'][1:]}"
    return Problem(where, got, "send a JSON object" if where == "body" else "")


def _of_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    got, status = str(error.detail), error.status_code
    fixes: Mapping[int, tuple[Code, str]] = {
        400: ("invalid-setting", "send JSON in UTF-8"), 404: ("not-found", "/docs lists what may be asked for"),
        405: ("not-permitted", "/docs lists what may be asked for"),
    }  # fmt: skip
    code, fix = fixes.get(status, ("not-permitted", ""))
    return document(status, [Problem("request", got[:1].lower() + got[1:], fix, code)], error.headers)


def _of_gone(_: Request, __: Exception) -> Response:
    """Of a run whose folder was moved or deleted while it was read."""
    return document(404, [Problem("request", "a file of it is gone", "GET /api/jobs lists all jobs", "not-found")])


def _of_fault(_: Request, error: Exception) -> Response:
    """A fault of ours: the log has it, the answer says no more than that."""
    got, fix = "a fault of the server's own; its log has it", "report it with the log"
    return document(500, [Problem("server", got, fix, "not-supported")])
