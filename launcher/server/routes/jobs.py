"""Lists jobs, reads one, and changes its description."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query
from starlette.responses import Response

from launcher.core.metrics import better
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.core.state import Status
from launcher.server.answers import Json, encoded_node
from launcher.server.problems import declared
from launcher.server.services import UsesServices
from launcher.server.values import JobNode, ListPage, PageNumber, PageSize, RequestBody, Tags, Text, Uuid
from launcher.views.runs import Order

router = APIRouter(prefix="/api/jobs", tags=["jobs"], responses=declared(404, 422))

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
