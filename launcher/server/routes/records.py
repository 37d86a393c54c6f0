"""Records of a run: findings, logs, settings, checkpoints, usage of machines; and comparisons of runs."""

from __future__ import annotations

import os
import re
from codecs import getincrementaldecoder
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from launcher.config import diff
from launcher.core.events import Event, Saved, Usage
from launcher.core.files import open_file
from launcher.core.metrics import held_out_score, label, validation
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import redact
from launcher.launch.start import judge_of
from launcher.reports.comparison import compare as compare_sources
from launcher.runs import kept_checkpoints
from launcher.server.answers import Json
from launcher.server.problems import declared
from launcher.server.routes.curves import CurvePoints, thinned
from launcher.server.rows import typed_of_run
from launcher.server.services import ReadRun, UsesOwnRun, UsesRun, UsesServices, read_run
from launcher.server.values import Number
from launcher.views.findings import find_problems
from launcher.views.read import log_in, run_in

router = APIRouter(tags=["records"], responses=declared(404, 422))
JOB = "/api/jobs/{uuid}"
CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of a UTF-8 character after its first
MOST_TEXT = 2**20  # bytes of a log in one response
MOST_JOBS = 20  # jobs in a comparison
_MEAN = re.compile(r"val-core/(.+)/reward/mean@[0-9]+")
USAGE_FIELDS = [each.name for each in fields(Usage) if each.name not in ("rank", "host", *Event.__dataclass_fields__)]


class Finding(BaseModel):
    """An alert, as `rlrun diagnose --json` prints it; the last one of a run of ours may be its verdict."""

    model_config = ConfigDict(extra="allow")
    step: int
    text: str
    level: str
    rule: str
    metric: str
    since: int | None
    value: Number | None
    threshold: Number | None
    cause: str
    fix: str


class LogPart(BaseModel):
    """Bytes `offset` to `next` of a file of `size` bytes."""

    text: str
    offset: int
    next: int
    size: int


class SettingRow(BaseModel):
    setting: str
    group: bool
    """Whether `value` is the class that a group has."""
    value: Any
    origin: str


class Settings(BaseModel):
    settings: list[SettingRow]
    arguments: list[str]
    """As they were typed after `rlrun train`; none where that is not known."""


class SettingsDiff(BaseModel):
    equal: bool
    a: str
    b: str
    differs: list[dict[str, Any]]


class Checkpoint(BaseModel):
    model_config = ConfigDict(extra="allow")
    step: int
    path: str
    eval_results: dict[str, Number] | None = None
    """By data source; left out where its step was not validated."""
    bytes: int | None
    kept: bool


class ProcessUsage(BaseModel):
    rank: int
    host: str
    series: dict[str, CurvePoints]


@router.get(f"{JOB}/findings", response_model=list[Finding])
def get_findings(run: UsesRun) -> Json:
    """What `rlrun diagnose --json` prints."""
    return Json(run.services.memo.get(("findings", run.uuid, run.mark), lambda: _findings(run)))


def _findings(run: ReadRun) -> list[Any]:
    source = log_in(run.log, run.folder.name) if run.log else run_in(run.folder)
    return find_problems(source, None, judge_of(run.folder) if run.folder.spec.is_file() else None).nodes


@router.get(f"{JOB}/logs", response_model=LogPart)
def get_logs(
    run: UsesRun,
    offset: Annotated[int, Query(ge=-(2**53), lt=2**53, description="Negative: before its end.")] = -65_536,
    limit: Annotated[int, Query(ge=4, le=MOST_TEXT)] = 65_536,
) -> Json:
    """A part of console.log, or of what its process printed before it began. The text begins and ends with whole
    characters."""
    path = run.log or next(filter(Path.is_file, (run.folder.console, run.folder.detached)), None)
    if path is None:
        return Json({"text": "", "offset": 0, "next": 0, "size": 0})
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        begin = min(offset if offset >= 0 else max(size + offset, 0), size)
        block = os.pread(file.fileno(), limit, begin)
    skipped = len(block[:3]) - len(block[:3].lstrip(CONTINUATION)) if begin else 0
    end, decoder = begin + len(block), getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(block[skipped:], final=end >= size)
    unfinished = len(decoder.getstate()[0])
    return Json({"text": redact(text), "offset": begin + skipped, "next": end - unfinished, "size": size})


@router.get(f"{JOB}/config", response_model=Settings)
def get_config(run: UsesOwnRun) -> Json:
    """Every setting and where its value is from."""
    side = _settings_side(run)
    rows = [
        {"setting": name, "group": cell.is_class, "value": cell.value, "origin": cell.origin.where}
        for name, cell in side.cells.items()
    ]
    settings = sorted(rows, key=lambda row: (row["setting"], not row["group"]))
    return Json({"settings": settings, "arguments": typed_of_run(run.folder)})


@router.get(f"{JOB}/config/diff", response_model=SettingsDiff)
def get_config_diff(run: UsesOwnRun, other: str, services: UsesServices) -> Json:
    """What `rlrun config diff --json` prints of it and another job."""
    first, second = _settings_side(run), _settings_side(read_run(other, services))
    return Json(diff.node_of(first, second, diff.rows(first, second), source=False))


def _settings_side(run: ReadRun) -> diff.Side:
    if not run.folder.spec.is_file():
        raise Problems(Problem(run.folder.name, "has no settings", "it has some once it was started", "not-found"))
    return diff.side_of_run(run.folder.name, run.folder.spec, run.folder.words)


@router.get(f"{JOB}/checkpoints", response_model=list[Checkpoint], response_model_exclude_unset=True)
def get_checkpoints(run: UsesOwnRun) -> Json:
    """What `rlrun checkpoints list --no-verify --json` prints, the newest first, and those that are gone."""
    by_step = {one.step: {**one.node, "kept": True} for one in kept_checkpoints.kept(run.folder, verify=False)}
    for event in run.columns.events(Saved):
        if event.step not in by_step:
            by_step[event.step] = {
                "step": event.step, "path": event.path, "at": event.at, "bytes": None, "kept": False
            }  # fmt: skip
    nodes = []
    for step, node in sorted(by_step.items(), reverse=True):
        measured = dict(node.get("metrics") or {})
        if not measured:
            for row in np.nonzero(run.columns.steps == step)[0].tolist():
                measured |= run.columns.metrics_at(row)
        results = _eval_results(validation(measured))
        nodes.append({**node, **({"eval_results": results} if results else {})})
    return Json(nodes)


def _eval_results(measured: dict[str, float]) -> dict[str, float]:
    """The mean score by data source; without these, the main score of the validation by its short name."""
    if scores := {match[1]: value for name, value in measured.items() if (match := _MEAN.fullmatch(name))}:
        return scores
    main = held_out_score(measured)
    return {label(main[0]): main[1]} if main else {}


@router.get(f"{JOB}/usage", response_model=list[ProcessUsage])
def get_usage(run: UsesRun, buckets: Annotated[int, Query(ge=1, le=20_000)] = 300) -> Json:
    """What each process used over the time: memory, processor, GPU."""
    by_rank = dict[int, list[Usage]]()
    for event in run.columns.events(Usage):
        by_rank.setdefault(event.rank, []).append(event)
    processes = []
    for rank, usages in sorted(by_rank.items()):
        series = {}
        for name in USAGE_FIELDS:
            points = [(event.at, value) for event in usages if (value := getattr(event, name)) is not None]
            if points:
                x, values = np.array(points, np.float64).T
                series[name] = thinned(x, values, buckets)
        processes.append({"rank": rank, "host": usages[-1].host, "series": series})
    return Json(processes)


@router.get("/api/compare", response_model=dict[str, Any])
def get_comparison(services: UsesServices, jobs: Annotated[str, Query(max_length=4_000)]) -> Json:
    """What `rlrun compare --json` prints of these jobs, with commas between."""
    names = list(filter(None, jobs.split(",")))
    if len(names) > MOST_JOBS:
        raise Problems(Problem("jobs", f"got {len(names)}", f"use at most {MOST_JOBS}"))
    runs = [read_run(name, services) for name in names]
    return Json(compare_sources([run_in(run.folder) for run in runs]).node)
