"""Errors as problem documents (RFC 9457): each `Problem` with where, what was found, what to use, and its code."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_args

from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from pydantic import BaseModel
from sqlalchemy.exc import DatabaseError, OperationalError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from launcher.config.explain import expected_by
from launcher.core.problems import Code, Problem, Problems, error_message, nearest, short_repr
from launcher.core.redaction import printable
from launcher.server.answers import encoded

MEDIA = "application/problem+json"
STATUS: Mapping[str, int] = {
    "not-found": 404, "in-use": 409, "changed": 409, "not-permitted": 403, "not-enough": 422, "not-reachable": 502,
}  # fmt: skip
"""HTTP status by problem code; 422 for all others."""
HTTP_FIXES: Mapping[int, tuple[Code, str]] = {
    400: ("invalid-setting", "send JSON in UTF-8"), 404: ("not-found", "/docs lists what may be asked for"),
    405: ("not-permitted", "/docs lists what may be asked for"),
    503: ("not-permitted", "let it read and write its run root and database, and send the request again"),
    507: ("not-enough", "free space in its run root and database, and send the request again"),
}  # fmt: skip
"""Code of a problem, and what to do, by the status of an error of the framework or the system."""
REFUSALS = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE,
})  # fmt: skip
"""What a system answers that lacks space, rights or a whole disk; all other numbers are faults of the server."""


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
    """A response with these problems, without secrets and with control characters escaped."""
    nodes = [
        {"where": printable(each.where), "got": printable(each.got), "fix": printable(each.fix), "code": each.code}
        for each in problems
    ]
    detail = printable("\n".join(map(str, problems)))
    node = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Response(encoded({**node, "problems": nodes}), status, dict(headers or {}), MEDIA)


def status_of(problems: Sequence[Problem]) -> int:
    """The status of the first problem, as the others often follow from it."""
    return STATUS.get(problems[0].code, 422) if problems else 422


def add_handlers(app: FastAPI) -> None:
    """Turn every error of every route into a problem document."""
    for kind in (Problems, RequestValidationError, HTTPException, FileNotFoundError, 500):
        app.add_exception_handler(kind, _handle)
    app.add_exception_handler(OSError, _handle_system)
    app.add_exception_handler(DatabaseError, _handle_system)
    app.add_exception_handler(WebSocketRequestValidationError, _handle_socket_validation)  # type: ignore[arg-type]


def _handle(request: Request, error: Exception) -> Response:
    match error:
        case Problems():
            return document(status_of(error.problems), error.problems)
        case RequestValidationError():
            body = getattr(request.scope.get("route"), "body_field", None)
            model = body.field_info.annotation if body else None
            fields = [name for each in get_args(model) or (model,) for name in getattr(each, "model_fields", ())]
            return document(422, [_field_problem(each, fields) for each in error.errors()])
        case HTTPException():
            got, (code, fix) = str(error.detail), HTTP_FIXES.get(error.status_code, ("not-permitted", ""))
            problem = Problem("request", got[:1].lower() + got[1:], fix, code)
            return document(error.status_code, [problem], error.headers)
        case FileNotFoundError():  # a run's folder was moved or deleted while it was read
            fix = "GET /api/jobs lists all jobs"
            return document(404, [Problem("request", "a file of it is gone", fix, "not-found")])
    # a bug of the server: the traceback is in its log and not in the response
    got, fix = "a fault of the server's own; its log has it", "report it with the log"
    return document(500, [Problem("server", got, fix, "not-supported")])


def _handle_system(request: Request, error: Exception) -> Response:
    """507 for a full disk, 503 for one that cannot be read or written and for a database that fails. Raises `error`
    where it is a bug of the server, so that it is answered with 500 and logged."""
    failed = isinstance(error, OperationalError) or type(error) is DatabaseError
    if not (failed or (isinstance(error, OSError) and error.errno in REFUSALS)):
        raise error
    got = error_message(getattr(error, "orig", None) or error)
    status = 507 if re.search(r"\b(full|no space|quota)\b", got, re.IGNORECASE) else 503
    code, fix = HTTP_FIXES[status]
    return document(status, [Problem("server", f"its system says: {got}", fix, code)])


async def _handle_socket_validation(socket: WebSocket, error: WebSocketRequestValidationError) -> None:
    await socket.send_denial_response(document(422, [_field_problem(each, ()) for each in error.errors()]))


def _field_problem(error: Mapping[str, Any], fields: Sequence[str]) -> Problem:
    """One error of pydantic as a problem, with the field as the request spells it."""
    source, *names = error["loc"]
    where, kind = ".".join(map(str, names)) or str(source), error["type"]
    if kind == "extra_forbidden":
        near = nearest(where, fields)
        fix = f"did you mean {near}?" if near else f"leave it out; known are {', '.join(sorted(fields))}"
        return Problem(where, "no such field", fix, "unknown-setting")
    if kind == "missing":
        return Problem(where, "is missing", "give it a value")
    if kind == "json_invalid":
        return Problem("body", f"is no JSON: {error['ctx']['error']}", "send a JSON object")
    got, context = f"got {short_repr(error.get('input'))}", error.get("ctx", {})
    if fix := context.get("fix"):
        return Problem(where, f"{got}: {error['msg']}", fix)
    if kind == "string_pattern_mismatch":
        return Problem(where, got, f"use a text that matches {context['pattern']}")
    return Problem(where, got, "send a JSON object" if where == "body" else f"use {expected_by(error)}")
