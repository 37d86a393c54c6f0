"""A page for Prometheus with the latest values of all runs, in the text format 0.0.4 of its documentation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from fastapi import APIRouter, Response

from launcher.core.events import Level
from launcher.core.state import RunState
from launcher.server.routes.records import USAGE_FIELDS
from launcher.server.services import Services, UsesServices

router = APIRouter(tags=["prometheus"])
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RECENT_S = 3600.0
"""Seconds after its end in which a run is shown with all values, for slow scrapers; later only with its step."""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


FAMILIES = {
    "up": "1 while the run is written",
    "step": "latest finished step",
    "step_timestamp_seconds": "when it finished, Unix time",
    "alerts": "alerts of the run",
    "metric": "latest value of a metric",
} | {f"usage_{name}": "of a training process; see the event Usage" for name in USAGE_FIELDS}
"""What each gauge tells, by its name without `rlrun_`."""


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def get_metrics_page(services: UsesServices) -> Response:
    """All runs, in the text format 0.0.4 of Prometheus."""
    return Response(page_of(_values(services)), media_type=CONTENT_TYPE)


def _values(services: Services) -> Iterator[tuple[str, str, float]]:
    """The values of each run that was started."""
    names = set[str]()
    for job in services.jobs.every():
        if not (name := str(job.node["run"])):
            continue
        name = f"{name} {job.uuid}" if name in names else name  # the same name in another folder of runs
        names.add(name)
        is_old = not job.reader and time.time() - job.standing.since > RECENT_S
        state = RunState(step=job.state.step) if is_old else job.state
        yield from values_of(name, state, job.node["alerts"], is_written=job.reader is not None)


def values_of(
    run: str, state: RunState, alerts: Mapping[str, int], *, is_written: bool
) -> Iterator[tuple[str, str, float]]:
    """(gauge, labels, value) of all values of a run; `alerts` are counts by level."""
    label = f'run="{escaped(run)}"'
    yield "up", label, is_written
    yield "step", label, state.step
    yield "step_timestamp_seconds", label, state.marks[-1][1] if state.marks else 0.0
    for level in get_args(Level):
        yield "alerts", f'{label},level="{level}"', alerts.get(level, 0)
    for name, value in state.metrics.items():
        yield "metric", f'{label},name="{escaped(name)}"', value
    for rank, usage in state.usage.items():
        for name in USAGE_FIELDS:
            if (used := getattr(usage, name)) is not None:
                yield f"usage_{name}", f'{label},rank="{rank}"', used


def page_of(values: Iterable[tuple[str, str, float]]) -> str:
    """A page of these values: each gauge once, with the values of all runs."""
    lines: dict[str, list[str]] = {name: [f"# HELP rlrun_{name} {text}", f"# TYPE rlrun_{name} gauge"]
                                   for name, text in FAMILIES.items()}  # fmt: skip
    for name, labels, value in values:
        lines[name].append(f"rlrun_{name}{{{labels}}} {number(float(value))}")
    return "".join(f"{line}\n" for family in lines.values() if len(family) > 2 for line in family)


def number(value: float) -> str:
    """A value in the text format, with all digits, so that it is read back equal."""
    return "NaN" if value != value else {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value) or repr(value)


def escaped(text: str) -> str:
    """The text escaped for a label's value."""
    return text.encode("utf-8", "backslashreplace").decode().translate(_ESCAPES)
