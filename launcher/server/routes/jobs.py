"""Jobs: list, read and describe them; plan, create, start, stop, resume and repeat them, which runs code on this
machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, Field, create_model
from starlette.responses import Response

from launcher.core.metrics import better
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.core.redaction import redact
from launcher.core.state import Status
from launcher.server.answers import Json, encoded, encoded_node
from launcher.server.launching import NewJob
from launcher.server.problems import declared
from launcher.server.services import UsesServices
from launcher.server.values import Arguments, JobNode, ListPage, PageNumber, PageSize, RequestBody, Tags, Text, Uuid
from launcher.server.words import Word, words
from launcher.views.runs import Order

router = APIRouter(prefix="/api/jobs", tags=["jobs"], responses=declared(404, 409, 422))

STATUSES = ("created", *get_args(Status), "stopping", "pausing", "paused", "doubtful")
Node = dict[str, Any]


def _validation_rank(node: Node) -> float:
    """Sort key by the last validation, smallest for the best; infinity without one."""
    last = (node["held_out"] or {}).get("last")
    if last is None:
        return math.inf
    return float(last["value"] if better(last["name"]) == "down" else -last["value"])


ORDER: dict[Order, Callable[[Node], Any]] = {
    "started": lambda node: 0, "run": lambda node: node["run"] or node["name"], "status": lambda node: node["status"],
    "took": lambda node: -node["elapsed_s"], "step": lambda node: -node["step"], "held-out": _validation_rank,
}  # fmt: skip
"""Sort keys by the names of `rlrun runs --sort`."""


@router.get("", responses={200: {"model": ListPage[JobNode]}})
def list_jobs(
    services: UsesServices,
    search: Annotated[Text, Query(max_length=200, description="In name, run, algorithm, model, tags, ...")] = "",
    status: Annotated[Text, Query(max_length=20, description=", ".join(STATUSES))] = "",
    tag: Annotated[Text, Query(max_length=100)] = "",
    algorithm: Annotated[Text, Query(max_length=100)] = "",
    sort: Order = "started",
    page: PageNumber = 1,
    size: PageSize = 50,
) -> Response:
    """Jobs, the one that began last first."""
    if status and status not in STATUSES:
        raise Problems(Problem("status", f"got {short_repr(status)}", suggest(status, STATUSES)))
    filters = (search.lower(), status, tag, algorithm.lower())
    jobs = [job for job in services.jobs.every() if _matches(job.node, *filters)]
    jobs.sort(key=lambda job: ORDER[sort](job.node))
    items = [job.node for job in jobs[(page - 1) * size : page * size]]
    node = {"items": items, "total": len(jobs), "page": page, "size": size}
    return Response(encoded_node(node), media_type="application/json")


def _matches(node: Node, search: str, status: str, tag: str, algorithm: str) -> bool:
    if (tag and tag not in node["tags"]) or algorithm not in ("", str(node["algorithm"]).lower()):
        return False
    texts = [str(node[name]) for name in ("name", "run", "description", "algorithm", "model")]
    return status in ("", node["status"]) and (not search or search in "\n".join([*texts, *node["tags"]]).lower())


@router.get("/{uuid}", responses={200: {"model": JobNode}})
def get_job(uuid: Uuid, services: UsesServices) -> Json:
    """One job as it is now."""
    return Json(services.jobs.get(uuid).node)


class JobChange(RequestBody):
    """What people say of a job; fields that are left out stay."""

    name: Text | None = None
    description: Text | None = None
    notes: Text | None = None
    tags: Tags | None = None


@router.patch("/{uuid}", responses={200: {"model": JobNode}})
def describe_job(uuid: Uuid, change: JobChange, services: UsesServices) -> Json:
    """Another name, description, notes or tags; what is trained stays as it is."""
    values = change.model_dump(exclude_none=True)
    job = services.jobs.get(uuid)
    return Json((services.jobs.change(job, **values) if values else job).node)


# ---- from its creation to its end

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


@router.post("", status_code=201, responses={201: {"model": JobNode}, 200: {"description": AGAIN}})
def create_job(
    body: NewJobBody,  # type: ignore[valid-type]
    services: UsesServices,
    dry_run: Annotated[bool, Query(description="Create nothing: answer with what `rlrun plan --json` prints.")] = False,
    idempotency_key: Annotated[Text, Header(max_length=255, description="The same key and body make one job.")] = "",
) -> Response:
    """A job that `POST /api/jobs/{uuid}/start` starts; a plan also has the `command` that does the same, and the first
    `rows` as tokens."""
    new = _new_job(body)
    if dry_run:
        plan = redact(encoded(services.launching.plan(new)).decode())  # what came with the request may hold a secret
        return Response(plan, media_type="application/json")
    job, is_new = services.launching.create(new, idempotency_key)
    return Json(job.node, 201 if is_new else 200)


@router.post("/{uuid}/start", status_code=202, responses={202: {"model": JobNode}})
def start_job(uuid: Uuid, services: UsesServices) -> Json:
    """Start a job that was created; it goes on when the server ends."""
    return Json(services.launching.start(uuid).node, 202)


class StopBody(RequestBody):
    now: Annotated[bool, Field(description="End at once, without a checkpoint.")] = False


@router.post("/{uuid}/stop", status_code=202, responses={202: {"model": JobNode}})
def stop_job(uuid: Uuid, services: UsesServices, body: StopBody | None = None) -> Json:
    """Ask a run to save and end."""
    return Json(services.launching.stop(uuid, now=body is not None and body.now).node, 202)


@router.post("/{uuid}/pause", status_code=202, responses={202: {"model": JobNode}})
def pause_job(uuid: Uuid, services: UsesServices) -> Json:
    """Save and end, until it is resumed."""
    return Json(services.launching.stop(uuid, pause=True).node, 202)


class ResumeBody(RequestBody):
    arguments: Arguments = Field([], description="What to change: where, how fast and how long it runs.")
    from_step: int | None = Field(
        None, ge=0, le=2**53, description="A checkpoint; by default the newest that verifies."
    )


@router.post("/{uuid}/resume", status_code=202, responses={202: {"model": JobNode}})
def resume_job(uuid: Uuid, services: UsesServices, body: ResumeBody | None = None) -> Json:
    """Go on with it, as a new attempt of the same job."""
    body = body or ResumeBody.model_construct()
    return Json(services.launching.resume(uuid, body.arguments, body.from_step).node, 202)


class RerunBody(RequestBody):
    arguments: Annotated[Arguments, Field(description="What to change.")] = []
    anyway: Annotated[bool, Field(description="Also where data, model or reward have changed since.")] = False


@router.post("/{uuid}/rerun", status_code=202, responses={202: {"model": JobNode}})
def rerun_job(uuid: Uuid, services: UsesServices, body: RerunBody | None = None) -> Json:
    """A new job with the same settings but these."""
    body = body or RerunBody.model_construct()
    return Json(services.launching.rerun(uuid, body.arguments, anyway=body.anyway).node, 202)
