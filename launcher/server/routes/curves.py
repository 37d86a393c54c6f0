"""Metrics of a run: all values, and curves downsampled for a screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from launcher.server.answers import Json
from launcher.server.curves import Axis, axis, curve, metric_nodes, name_nodes, trained_rows, wanted_names
from launcher.server.problems import declared
from launcher.server.reading import UsesRun
from launcher.server.values import Number

router = APIRouter(prefix="/api/jobs/{uuid}", tags=["metrics"], responses=declared(404, 422))
BLOCK = 500  # steps in one chunk of the response
Names = Annotated[
    list[str], Query(description="Names, patterns or other spellings, also several in one text with commas between.")
]
From = Annotated[float | None, Query(alias="from", allow_inf_nan=False, description="From here on, in units of x.")]
To = Annotated[float | None, Query(alias="to", allow_inf_nan=False, description="Up to here, in units of x.")]


class MetricRow(BaseModel):
    """A step with its metrics, by the names of the run and by those that guides use (`policy_loss`, `reward_mean`)."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [{"step": 1, "policy_loss": 0.1}]})
    __pydantic_extra__: dict[str, Number]
    step: int


class MetricName(BaseModel):
    name: str
    label: str
    unit: str
    better: Literal["up", "down"] | None
    meaning: str
    count: int
    last: Number | None


class CurvePoints(BaseModel):
    """Points of one metric. Where there are more values than buckets, each point is of several neighbours."""

    x: list[Number]
    min: list[Number]
    max: list[Number]
    mean: list[Number]
    count: int
    not_finite: int


class Curves(BaseModel):
    x: Axis
    seq: int
    """Of the last event that was read: `stream?after=SEQ` goes on there."""
    curves: dict[str, CurvePoints]


@router.get("/metrics", response_model=list[MetricRow])
def get_metrics(
    run: UsesRun,
    names: Names = [],  # noqa: B006
    first: From = None,
    last: To = None,
    latest: Annotated[int | None, Query(ge=1, lt=2**53, description="At most so many rows, the last ones.")] = None,
) -> Response:
    """A row for each step, as `rlrun metrics --json` has it, and the documents' words beside. Without names, rows that
    hold only a validation, as that before training, are left out."""
    columns = run.columns
    selected, rows = wanted_names(columns, names), columns.rows_between(first, last)
    if not names:
        rows = np.intersect1d(rows, trained_rows(columns))
    rows = rows[-latest:] if latest else rows

    def blocks() -> Iterator[bytes]:
        separator = b"["
        for begin in range(0, rows.size, BLOCK):
            nodes = metric_nodes(columns, selected, rows[begin : begin + BLOCK])
            yield separator + orjson.dumps(nodes)[1:-1]
            separator = b","
        yield b"[]" if separator == b"[" else b"]"

    return StreamingResponse(blocks(), media_type="application/json")


@router.get("/names", response_model=list[MetricName])
def get_names(run: UsesRun) -> Json:
    """Every metric of the run, and what it means."""
    return Json(name_nodes(run.columns))


@router.get("/curves", response_model=Curves)
def get_curves(
    run: UsesRun,
    names: Names = [],  # noqa: B006
    first: From = None,
    last: To = None,
    buckets: Annotated[int, Query(ge=1, le=20_000)] = 600,
    x: Axis = "step",
) -> Response:
    """Metrics in at most so many points, of which none hides an extreme: without names all, so choose."""
    table = run.columns
    at = axis(table, x)
    curves = {name: curve(table.series[name], at, first, last, buckets) for name in wanted_names(table, names)}
    return Response(orjson.dumps({"x": x, "seq": table.end.seq - 1, "curves": curves}), media_type="application/json")
