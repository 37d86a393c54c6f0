"""A page for Prometheus with the latest values of all runs, as `trackers/prometheus.py` has it of one."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fastapi import APIRouter, Response

from launcher.core.state import RunState
from launcher.runs import store
from launcher.server.jobs import ServedJob
from launcher.server.services import Services, UsesServices
from launcher.trackers.prometheus import CONTENT_TYPE, LatestValues, page_of

router = APIRouter(tags=["prometheus"])
RECENT_S = 3600.0
"""That the values of a run are said after its end, so that a slow scraper has its last ones; then only its step is."""


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def get_metrics_page(services: UsesServices) -> Response:
    """All runs, in the text format 0.0.4 of Prometheus."""
    return Response(page_of(list(_values(services))), media_type=CONTENT_TYPE)


def _values(services: Services) -> Iterator[LatestValues]:
    seen = set[str]()
    for job in services.jobs.every():
        name = str(job.node["run"])
        if not name:  # it has not been started
            continue
        name = f"{name} {job.uuid}" if name in seen else name  # of a folder beside the run root
        seen.add(name)
        state = _state(services, job)
        yield LatestValues(
            name, job.reader is not None, state.step, state.marks[-1][1] if state.marks else 0.0, job.node["alerts"],
            state.metrics, state.usage,
        )  # fmt: skip


def _state(services: Services, job: ServedJob) -> RunState:
    """Of a run that ended long ago no more than its step."""
    if reader := job.reader:
        return reader.state
    if time.time() - job.standing.since > RECENT_S:
        return RunState(step=job.node["step"])
    found: RunState = services.memo.get(("state", job.folder.path, job.mark), lambda: store.see(job.folder).state)
    return found
