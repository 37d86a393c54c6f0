"""Metrics of a run: all values, and curves for a screen, downsampled to as many buckets as it has room for. No extreme
is lost: each bucket keeps its smallest, largest and mean value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from launcher.core.events import writable
from launcher.core.metric_aliases import by_our_names, canonical
from launcher.core.metrics import label, metric, validation
from launcher.core.problems import Problem, Problems
from launcher.server.answers import Json
from launcher.server.columns import Columns, Floats, Ints, MetricColumn
from launcher.server.problems import declared
from launcher.server.services import UsesRun
from launcher.server.values import Number
from launcher.views.series import check_keys, chosen_names
from launcher.views.trace import LARGEST

router = APIRouter(prefix="/api/jobs/{uuid}", tags=["metrics"], responses=declared(404, 422))
BLOCK = 500  # steps in one chunk of the response
Axis = Literal["step", "time", "tokens"]
TOKENS = "perf/total_num_tokens"
"""Tokens of one step; the axis `tokens` is their cumulative sum."""
WORDS: Mapping[str, Sequence[str]] = {
    "policy_loss": ["actor/loss"], "value_loss": [], "reward_mean": ["critic/rewards/mean"],
    "reward_std": ["critic/rewards/std"], "kl_divergence": ["actor/reward_kl_penalty"], "entropy": [],
    "clip_fraction": [], "loss": ["actor/loss", "actor/dpo_loss"],
}  # fmt: skip
"""Guides' names for a step's metrics, and what they stand for in a run that lacks the catalogue's metric."""
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


# ---- rows and points


def thinned(x: Floats, values: Floats, buckets: int) -> dict[str, Any]:
    """The points of `values` [N] at ascending `x` [N], with neighbours joined into `buckets` where N is larger.

    The x of a bucket is the middle of its first and last x; `min`, `max` and `mean` are of its finite values, NaN if it
    has none. `count` is N, of which `not_finite` are NaN or infinite.
    """
    finite = np.isfinite(values)
    low = high = mean = values
    if values.size > buckets:
        starts = np.linspace(0, values.size, buckets + 1).round().astype(np.int64)[:-1]
        ends = np.append(starts[1:], values.size) - 1
        counts = np.add.reduceat(finite, starts, dtype=np.int64)
        low = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
        high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
        total = np.add.reduceat(np.where(finite, np.clip(values, -LARGEST, LARGEST), 0.0), starts)
        x, mean = (x[starts] + x[ends]) / 2, total / np.maximum(counts, 1)
        low, high, mean = (np.where(counts == 0, np.nan, each) for each in (low, high, mean))
    points = {"x": x, "min": low, "max": high, "mean": mean}
    return {name: number_list(each) for name, each in points.items()} | {
        "count": values.size, "not_finite": int(values.size - finite.sum())
    }  # fmt: skip


def number_list(values: Floats) -> list[Any]:
    """`values` as a list for JSON, with texts such as "NaN" for what is not finite."""
    numbers: list[Any] = values.tolist()
    for index in np.nonzero(~np.isfinite(values))[0].tolist():
        numbers[index] = writable(numbers[index])
    return numbers


def axis(of: Columns, x: Axis) -> Floats:
    """The x of each row [R]. Raises `Problems` for `tokens` where no step has `TOKENS`."""
    if x == "step":
        return of.steps.astype(np.float64)
    if x == "time":
        return of.at
    name = by_our_names(of.series).get(TOKENS)
    if name is None:
        raise Problems(Problem("x", f"got 'tokens', and no step has {TOKENS}", "use step or time", "not-found"))
    tokens, counts = of.series[name], np.zeros(of.steps.size)
    counts[tokens.rows] = np.where(np.isfinite(tokens.values), tokens.values, 0.0)
    return np.cumsum(counts)


def wanted_names(of: Columns, names: Sequence[str]) -> list[str]:
    """The metrics that `names` select, as in `rlrun metrics --keys`; all if it is empty. Raises `Problems`."""
    keys = [key.strip() for text in names for key in ([text] if text in of.series else text.split(","))]
    keys = [key for key in keys if key]
    check_keys(keys, of.series)
    return chosen_names(of.series, keys)


def curve(each: MetricColumn, x: Floats, first: float | None, last: float | None, buckets: int) -> dict[str, Any]:
    """One metric where `first` <= x <= `last` (None: no bound); `x` [R] is that of every row, from `axis`."""
    at, values = x[each.rows], each.values
    if first is not None or last is not None:
        inside = (at >= (-np.inf if first is None else first)) & (at <= (np.inf if last is None else last))
        at, values = at[inside], values[inside]
    if (at[1:] < at[:-1]).any():  # clocks may go back, and logs of other programs repeat steps
        order = np.argsort(at, kind="stable")
        at, values = at[order], values[order]
    return thinned(at, values, buckets)


def trained_rows(of: Columns) -> Ints:
    """Indices of the rows that hold more than a validation and times."""
    names = (name for name in of.series if not validation({name: 0.0}) and not name.startswith("timing_s/"))
    columns = [of.series[name].rows for name in names]
    return np.unique(np.concatenate(columns)) if columns else np.arange(of.steps.size)


def metric_nodes(of: Columns, names: Sequence[str], rows: Ints) -> list[dict[str, Any]]:
    """For each of these rows (at least one): `step`, its metrics of these `names`, and guides' names (`WORDS`)."""
    nodes: dict[int, dict[str, Any]] = {row: {} for row in rows.tolist()}
    for name in names:
        column = of.series[name]
        span = slice(*np.searchsorted(column.rows, [rows[0], rows[-1] + 1]))
        for row, value in zip(column.rows[span].tolist(), number_list(column.values[span]), strict=True):
            if row in nodes:
                nodes[row][name] = value
    ours = by_our_names(names)
    for word, others in WORDS.items():
        candidates = [ours[name] for name in (canonical(word), *others) if name in ours]
        for node in nodes.values():
            if word not in node and (chosen := next((name for name in candidates if name in node), None)):
                node[word] = node[chosen]
    return [{**node, "step": step} for node, step in zip(nodes.values(), of.steps[rows].tolist(), strict=True)]


def name_nodes(of: Columns) -> list[dict[str, Any]]:
    """Each metric of the run: its catalogue entry, how many values it has, and the latest."""
    nodes = []
    for name in sorted(of.series):
        canonical_name, column = canonical(name), of.series[name]
        entry = metric(canonical_name)
        nodes.append({
            "name": name, "label": label(canonical_name), "unit": entry.unit if entry else "",
            "better": entry.better if entry else None, "meaning": entry.meaning if entry else "",
            "count": column.values.size, "last": writable(float(column.values[-1])) if column.values.size else None,
        })  # fmt: skip
    return nodes
