"""Plans, creates, starts, stops, resumes and repeats jobs, all of which run code on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, Field, create_model

from launcher.server.answers import Json, RedactedJson
from launcher.server.launching import NewJob
from launcher.server.problems import declared
from launcher.server.services import UsesServices
from launcher.server.values import Arguments, JobNode, RequestBody, Tags, Text, Uuid
from launcher.server.words import Word, words

router = APIRouter(prefix="/api", tags=["launch"], responses=declared(404, 409, 422))

ABOUT = ("name", "description", "notes", "who", "tags")
AGAIN = "The plan, or the job that the same request made before."
KINDS: Mapping[str, Any] = {
    "text": Text,
    "integer": Annotated[int, Field(strict=True, le=2**53)],
    "number": Annotated[float, Field(strict=True, le=2**53, allow_inf_nan=False)],
}


def _model_field(word: Word) -> Any:
    constraint: dict[str, Any] = {} if word.least is None else {"ge": word.least}
    return KINDS[word.type] | None, Field(None, description=word.about, examples=[word.example], **constraint)


NewJobBody = create_model(
    "NewJobBody",
    __base__=RequestBody,
    **{name: _model_field(word) for name, word in words().items()},
    notes=(Text | None, None),
    who=(Text | None, None),
    tags=(Tags | None, None),
    arguments=(Arguments, Field([], description="As typed after rlrun train.", examples=[["reward=gsm8k"]])),
)
"""A job by fields of conf/job_words.yaml, by arguments of rlrun, or by both."""


def _new_job(body: BaseModel) -> NewJob:
    values = body.model_dump(exclude_none=True)
    arguments = values.pop("arguments")
    about = {name: values.pop(name) for name in ABOUT if name in values}
    return NewJob(about, values, arguments)


@router.post("/jobs", status_code=201, responses={201: {"model": JobNode}, 200: {"description": AGAIN}})
def create_job(
    body: NewJobBody,  # type: ignore[valid-type]
    services: UsesServices,
    request: Request,
    dry_run: Annotated[bool, Query(description="Create nothing: answer with what `rlrun plan --json` prints.")] = False,
    idempotency_key: Annotated[Text, Header(max_length=255, description="The same key and body make one job.")] = "",
) -> Json:
    """A job that `POST /api/jobs/{uuid}/start` starts; a plan also has the `command` that does the same, and the first
    `rows` as tokens."""
    new = _new_job(body)
    if dry_run:
        return RedactedJson(services.launching.plan(new))
    about = {"who": request.scope.get("who", ""), **new.about}
    job, is_new = services.launching.create(replace(new, about=about), idempotency_key)
    return Json(job.node, 201 if is_new else 200)


@router.post("/jobs/{uuid}/start", status_code=202, responses={202: {"model": JobNode}})
def start_job(uuid: Uuid, services: UsesServices) -> Json:
    """Start a job that was created; it goes on when the server ends."""
    return Json(services.launching.start(uuid).node, 202)


class StopBody(RequestBody):
    now: Annotated[bool, Field(description="End at once, without a checkpoint.")] = False


@router.post("/jobs/{uuid}/stop", status_code=202, responses={202: {"model": JobNode}})
def stop_job(uuid: Uuid, services: UsesServices, body: StopBody | None = None) -> Json:
    """Ask a run to save and end."""
    return Json(services.launching.stop(uuid, now=body is not None and body.now).node, 202)


@router.post("/jobs/{uuid}/pause", status_code=202, responses={202: {"model": JobNode}})
def pause_job(uuid: Uuid, services: UsesServices) -> Json:
    """Save and end, until it is resumed."""
    return Json(services.launching.stop(uuid, pause=True).node, 202)


class ResumeBody(RequestBody):
    arguments: Arguments = Field([], description="What to change: where, how fast and how long it runs.")
    from_step: int | None = Field(
        None, ge=0, le=2**53, description="A checkpoint; by default the newest that verifies."
    )


@router.post("/jobs/{uuid}/resume", status_code=202, responses={202: {"model": JobNode}})
def resume_job(uuid: Uuid, services: UsesServices, body: ResumeBody | None = None) -> Json:
    """Go on with it, as a new attempt of the same job."""
    body = body or ResumeBody.model_construct()
    return Json(services.launching.resume(uuid, body.arguments, body.from_step).node, 202)


class RerunBody(RequestBody):
    arguments: Annotated[Arguments, Field(description="What to change.")] = []
    anyway: Annotated[bool, Field(description="Also where data, model or reward have changed since.")] = False


@router.post("/jobs/{uuid}/rerun", status_code=202, responses={202: {"model": JobNode}})
def rerun_job(uuid: Uuid, services: UsesServices, body: RerunBody | None = None) -> Json:
    """A new job with the same settings but these."""
    body = body or RerunBody.model_construct()
    return Json(services.launching.rerun(uuid, body.arguments, anyway=body.anyway).node, 202)
