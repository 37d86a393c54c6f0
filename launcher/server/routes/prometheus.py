"""A page for Prometheus with the latest values of all runs, in the format of `trackers/prometheus.py`."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response

from launcher.core.state import RunState
from launcher.server.services import Services, UsesServices
from launcher.trackers.prometheus import CONTENT_TYPE, LatestValues, page_of

router = APIRouter(tags=["prometheus"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def get_metrics_page(services: UsesServices) -> Response:
    """All runs, in the text format 0.0.4 of Prometheus."""
    return Response(page_of(list(_values(services))), media_type=CONTENT_TYPE)


def _values(services: Services) -> Iterator[LatestValues]:
    """The values of each run that was started; of one that is no longer written only its step and alerts."""
    names = set[str]()
    for job in services.jobs.every():
        if not (name := str(job.node["run"])):
            continue
        name = f"{name} {job.uuid}" if name in names else name  # the same name in another folder of runs
        names.add(name)
        state = job.reader.state if job.reader else RunState(step=job.node["step"])
        at = state.marks[-1][1] if state.marks else 0.0
        is_up, alerts = job.reader is not None, job.node["alerts"]
        yield LatestValues(name, is_up, state.step, at, alerts, state.metrics, state.usage)
