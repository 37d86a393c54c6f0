"""A page for Prometheus with the latest values of all runs, in the text format 0.0.4 of its documentation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import get_args

from fastapi import APIRouter, Response

from launcher.core.events import Event, Level, Usage
from launcher.core.state import RunState
from launcher.runs import store
from launcher.server.jobs import ServedJob
from launcher.server.services import Services, UsesServices

router = APIRouter(tags=["prometheus"])
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RECENT_S = 3600.0
"""Seconds after its end in which a run is shown with all values, for slow scrapers; later only with its step."""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_USAGE = [each.name for each in fields(Usage) if each.name not in ("rank", "host", *Event.__dataclass_fields__)]


@dataclass(frozen=True)
class LatestValues:
    """The values of one run on the page."""

    run: str
    is_written: bool
    alerts: Mapping[str, int]
    """Numbers of alerts by level."""
    state: RunState


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def get_metrics_page(services: UsesServices) -> Response:
    """All runs, in the text format 0.0.4 of Prometheus."""
    return Response(page_of(list(_values(services))), media_type=CONTENT_TYPE)


def _values(services: Services) -> Iterator[LatestValues]:
    """The values of each run that was started; of one that ended long ago only its step and alerts."""
    names = set[str]()
    for job in services.jobs.every():
        if not (name := str(job.node["run"])):
            continue
        name = f"{name} {job.uuid}" if name in names else name  # the same name in another folder of runs
        names.add(name)
        yield LatestValues(name, job.reader is not None, job.node["alerts"], _state(services, job))


def _state(services: Services, job: ServedJob) -> RunState:
    """The state of a run; of one that ended more than RECENT_S ago only the step."""
    if job.reader:
        return job.reader.state
    if time.time() - job.standing.since > RECENT_S:
        return RunState(step=job.node["step"])
    state: RunState = services.memo.get(("state", job.folder.path, job.mark), lambda: store.see(job.folder).state)
    return state


def page_of(runs: Sequence[LatestValues]) -> str:
    """A page of these runs: each gauge once, with the values of all."""
    return "".join(chain.from_iterable(_families(runs)))


def _families(runs: Sequence[LatestValues]) -> Iterator[Iterator[str]]:
    pairs = [(f'run="{escaped(each.run)}"', each) for each in runs]
    states = [(run, each.state) for run, each in pairs]
    yield _family("rlrun_up", "1 while the run is written", {run: float(each.is_written) for run, each in pairs})
    yield _family("rlrun_step", "latest finished step", {run: float(state.step) for run, state in states})
    ends = {run: state.marks[-1][1] if state.marks else 0.0 for run, state in states}
    yield _family("rlrun_step_timestamp_seconds", "when it finished, Unix time", ends)
    levels = get_args(Level)
    alerts = {f'{run},level="{level}"': float(each.alerts.get(level, 0)) for run, each in pairs for level in levels}
    yield _family("rlrun_alerts", "alerts of the run", alerts)
    metrics = {f'{run},name="{escaped(name)}"': x for run, state in states for name, x in state.metrics.items()}
    yield _family("rlrun_metric", "latest value of a metric", metrics)
    usages = {f'{run},rank="{rank}"': usage for run, state in states for rank, usage in state.usage.items()}
    yield from (_usage_family(name, usages) for name in _USAGE)


def _usage_family(name: str, usages: Mapping[str, Usage]) -> Iterator[str]:
    values = {label: float(vars(usage)[name]) for label, usage in usages.items() if vars(usage)[name] is not None}
    return _family(f"rlrun_usage_{name}", "of a training process; see the event Usage", values)


def _family(name: str, text: str, samples: Mapping[str, float]) -> Iterator[str]:
    """The lines of one gauge with its values by their labels; none without values."""
    if samples:
        yield f"# HELP {name} {text}\n# TYPE {name} gauge\n"
        yield from (f"{name}{{{labels}}} {number(value)}\n" for labels, value in samples.items())


def number(value: float) -> str:
    """A value in the text format, with all digits, so that it is read back equal."""
    return "NaN" if value != value else {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value) or repr(value)


def escaped(text: str) -> str:
    """The text escaped for a label's value."""
    return text.encode("utf-8", "backslashreplace").decode().translate(_ESCAPES)
