"""A page for Prometheus with the latest values of all runs, in the format of `trackers/prometheus.py`."""

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
"""Seconds after its end in which a run is shown with all values, for slow scrapers; later only with its step."""


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def get_metrics_page(services: UsesServices) -> Response:
    """All runs, in the text format 0.0.4 of Prometheus."""
    return Response(page_of(list(_values(services))), media_type=CONTENT_TYPE)


def _values(services: Services) -> Iterator[LatestValues]:
    names = set[str]()
    for job in services.jobs.every():
        name = str(job.node["run"])
        if not name:  # not yet started
            continue
        name = f"{name} {job.uuid}" if name in names else name  # the same name in another folder of runs
        names.add(name)
        state = _state(services, job)
        yield LatestValues(
            name, job.reader is not None, state.step, state.marks[-1][1] if state.marks else 0.0, job.node["alerts"],
            state.metrics, state.usage,
        )  # fmt: skip


def _state(services: Services, job: ServedJob) -> RunState:
    """The state of a run; of one that ended more than RECENT_S ago only the step."""
    if reader := job.reader:
        return reader.state
    if time.time() - job.standing.since > RECENT_S:
        return RunState(step=job.node["step"])
    state: RunState = services.memo.get(("state", job.folder.path, job.mark), lambda: store.see(job.folder).state)
    return state
