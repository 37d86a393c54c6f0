"""Curves for a screen: a run's metric over steps, time or tokens, downsampled to as many buckets as a screen has room
for. No extreme is lost: each bucket keeps its smallest, largest and mean value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from launcher.core.events import writable
from launcher.core.metric_aliases import by_our_names, canonical
from launcher.core.metrics import label, metric, validation
from launcher.core.problems import Problem, Problems
from launcher.server.columns import Columns, Floats, Ints, MetricColumn
from launcher.views.series import check_keys, chosen_names
from launcher.views.trace import LARGEST

Axis = Literal["step", "time", "tokens"]
TOKENS = "perf/total_num_tokens"
"""Tokens of one step; the axis `tokens` is their cumulative sum."""
WORDS: Mapping[str, Sequence[str]] = {
    "policy_loss": ["actor/loss"], "value_loss": [], "reward_mean": ["critic/rewards/mean"],
    "reward_std": ["critic/rewards/std"], "kl_divergence": ["actor/reward_kl_penalty"], "entropy": [],
    "clip_fraction": [], "loss": ["actor/loss", "actor/dpo_loss"],
}  # fmt: skip
"""Guides' names for a step's metrics, and what they stand for in a run that lacks the catalogue's metric."""


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
