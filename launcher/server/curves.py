"""Curves for a screen: a run's metric over its steps, the time or the tokens, in as many buckets as a screen has room
for. No extreme is lost: of each bucket the smallest, the largest and the mean value are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from launcher.core.events import writable
from launcher.core.metric_aliases import by_our_names, canonical
from launcher.core.metrics import label, metric
from launcher.core.problems import Problem, Problems
from launcher.server.columns import Columns, Floats, Ints, MetricColumn
from launcher.views.series import check_keys, chosen_names
from launcher.views.trace import LARGEST

Axis = Literal["step", "time", "tokens"]
TOKENS = "perf/total_num_tokens"
"""Of a step; their sum so far is the axis `tokens`."""
PARTS = "timing_s/"
"""Begins the name of a metric of seconds of a part of a step."""
WORDS: Mapping[str, Sequence[str]] = {
    "policy_loss": ["actor/loss"], "value_loss": [], "reward_mean": ["critic/rewards/mean"],
    "reward_std": ["critic/rewards/std"], "kl_divergence": ["actor/reward_kl_penalty"], "entropy": [],
    "clip_fraction": [], "loss": ["actor/loss", "actor/dpo_loss"],
}  # fmt: skip
"""What guides call the metrics of a step, and which are meant where a run lacks that of the catalogue."""


@dataclass(frozen=True)
class Thinned:
    """At most as many points as were wanted. `low`, `high` and `mean` are of a bucket's finite values, NaN of none."""

    x: Floats
    low: Floats
    high: Floats
    mean: Floats
    count: int
    """Values behind the points, and how many of them are not finite."""
    not_finite: int

    @property
    def node(self) -> dict[str, Any]:
        return {"x": number_list(self.x), "min": number_list(self.low), "max": number_list(self.high),
                "mean": number_list(self.mean), "count": self.count, "not_finite": self.not_finite}  # fmt: skip


def thinned(x: Floats, values: Floats, buckets: int) -> Thinned:
    """Values in the order of `x`, neighbours in one bucket where there are more than `buckets`. The place of a bucket
    is the middle of its first and last."""
    finite = np.isfinite(values)
    lost = int(values.size - finite.sum())
    if values.size <= buckets:
        return Thinned(x, values, values, values, values.size, lost)
    edges = np.linspace(0, values.size, buckets + 1).round().astype(np.int64)[:-1]
    ends = np.append(edges[1:], values.size) - 1
    counts = np.add.reduceat(finite, edges, dtype=np.int64)
    low = np.minimum.reduceat(np.where(finite, values, np.inf), edges)
    high = np.maximum.reduceat(np.where(finite, values, -np.inf), edges)
    total = np.add.reduceat(np.where(finite, np.clip(values, -LARGEST, LARGEST), 0.0), edges)
    none = counts == 0
    mean = np.where(none, np.nan, total / np.maximum(counts, 1))
    low, high = np.where(none, np.nan, low), np.where(none, np.nan, high)
    return Thinned((x[edges] + x[ends]) / 2, low, high, mean, values.size, lost)


def number_list(values: Floats) -> list[Any]:
    """As JSON has them: texts where JSON has no number."""
    found: list[Any] = values.tolist()
    for place in np.nonzero(~np.isfinite(values))[0].tolist():
        found[place] = writable(found[place])
    return found


def axis(of: Columns, x: Axis) -> Floats:
    """Where each row stands. Raises `Problems` where no step says how many tokens it had."""
    if x == "step":
        return of.steps.astype(np.float64)
    if x == "time":
        return of.at
    name = by_our_names(of.series).get(TOKENS)
    if name is None:
        raise Problems(Problem("x", f"got 'tokens', and no step has {TOKENS}", "use step or time", "not-found"))
    tokens, found = of.series[name], np.zeros(of.steps.size)
    found[tokens.rows] = np.where(np.isfinite(tokens.values), tokens.values, 0.0)
    return np.cumsum(found)


def wanted_names(of: Columns, names: Sequence[str]) -> list[str]:
    """The metrics that `names` choose, as `rlrun metrics --keys` does; all without any. Raises `Problems`."""
    keys = [key.strip() for text in names for key in ([text] if text in of.series else text.split(","))]
    keys = [key for key in keys if key]
    check_keys(keys, of.series)
    return chosen_names(of.series, keys)


def curve(each: MetricColumn, x: Floats, first: float | None, last: float | None, buckets: int) -> Thinned:
    """One metric where `x` is in this range, both ends included."""
    at, values = x[each.rows], each.values
    if first is not None or last is not None:
        inside = (at >= (-np.inf if first is None else first)) & (at <= (np.inf if last is None else last))
        at, values = at[inside], values[inside]
    if (at[1:] < at[:-1]).any():  # clocks go back, and logs of others repeat steps
        order = np.argsort(at, kind="stable")
        at, values = at[order], values[order]
    return thinned(at, values, buckets)


def metric_nodes(of: Columns, names: Sequence[str], rows: Ints) -> list[dict[str, Any]]:
    """A row for each of these steps, at least one: `step`, its metrics of these names, and the words of guides."""
    found: list[dict[str, Any]] = [{} for _ in range(rows.size)]
    begin, end = int(rows[0]), int(rows[-1]) + 1
    place_of = np.full(end - begin, -1, np.int64)
    place_of[rows - begin] = np.arange(rows.size)
    ours = by_our_names(names)
    words = [
        (word, [ours[name] for name in (canonical(word), *others) if name in ours]) for word, others in WORDS.items()
    ]
    for name in names:
        each = of.series[name]
        own = slice(*np.searchsorted(each.rows, [begin, end]))
        places = place_of[each.rows[own] - begin]
        inside = places >= 0
        for place, value in zip(places[inside].tolist(), number_list(each.values[own][inside]), strict=True):
            found[place][name] = value
    for row, step in zip(found, of.steps[rows].tolist(), strict=True):
        for word, spelt in words:
            spelling = next((name for name in spelt if name in row), None)
            if spelling and word not in row:
                row[word] = row[spelling]
        row["step"] = step
    return found


def phases_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each part of a step."""
    return {name.removeprefix(PARTS): value for name, value in metrics.items() if name.startswith(PARTS)}


def name_nodes(of: Columns) -> list[dict[str, Any]]:
    """Every metric of the run: what it is, how many values it has, and the latest."""
    nodes = []
    for name in sorted(of.series):
        ours, each = canonical(name), of.series[name]
        entry = metric(ours)
        nodes.append({
            "name": name, "label": label(ours), "unit": entry.unit if entry else "",
            "better": entry.better if entry else None, "meaning": entry.meaning if entry else "",
            "count": each.values.size, "last": writable(float(each.values[-1])) if each.values.size else None,
        })  # fmt: skip
    return nodes
