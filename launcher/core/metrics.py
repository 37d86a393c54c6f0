"""The catalogue of metrics, conf/metrics.yaml: what each is called here and by others, what it measures, which
direction is better, and where it is shown.

Every metric that the engine emits has a row there; a test trains and fails where one is missing. A metric of a user's
own code needs none: it is shown without a meaning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal, get_args

import yaml

from launcher.core.bounded_parse import LOADER
from launcher.core.files import conf_dir
from launcher.core.numbers import compact, span

View = Literal["watched", "curve", "progress", "summary"]


@dataclass(frozen=True)
class Place:
    """Where a view shows a metric, and there its name and the digits after the point."""

    place: int
    name: str = ""
    digits: int = 0


@dataclass(frozen=True)
class Metric:
    """One name, or one pattern of names (`*` stands for a data source, a number, ...). The fields are those of a row,
    which conf/metrics.yaml explains; a row without a label only has other projects' names of a metric."""

    label: str = ""
    meaning: str = ""
    unit: str = ""
    better: Literal["up", "down"] | None = None
    formula: str = ""
    aliases: tuple[str, ...] = ()
    shown: Mapping[View, Place] = field(default_factory=dict)
    guide_name: str = ""
    evidence: Literal["", "line", "beside step"] = ""
    trains: Literal["", "pairs", "sft"] = ""


@cache
def catalogue() -> Mapping[str, Metric]:
    """All rows, by name. The file is read at the first call."""
    rows = yaml.load((conf_dir() / "metrics.yaml").read_bytes(), Loader=LOADER)
    return {name: _read_row(row) for name, row in rows.items()}


def _read_row(row: dict[str, Any]) -> Metric:
    places = {view: row.pop(view) for view in get_args(View) if view in row}
    shown = {view: Place(place) if isinstance(place, int) else Place(**place) for view, place in places.items()}
    return Metric(**{**row, "shown": shown, "aliases": tuple(row.get("aliases", ()))})


@cache
def described() -> Mapping[str, Metric]:
    """The rows that say what a metric means."""
    return {name: entry for name, entry in catalogue().items() if entry.label}


@cache
def shown_in(view: View) -> Sequence[Mapping[str, Place]]:
    """The metrics of a view in its order, as groups of alternatives for one place: the first that a step has is
    shown."""
    groups = dict[int, dict[str, Place]]()
    for name, entry in catalogue().items():
        if view in entry.shown:
            groups.setdefault(entry.shown[view].place, {})[name] = entry.shown[view]
    return tuple(groups[place] for place in sorted(groups))


def shown_values(view: View, metrics: Mapping[str, float]) -> list[tuple[str, Place, float]]:
    """What a view shows of a step's metrics: name, how it is shown, and value."""
    names = (next((name for name in group if name in metrics), None) for group in shown_in(view))
    places = {name: place for group in shown_in(view) for name, place in group.items()}
    return [(name, places[name], metrics[name]) for name in names if name is not None]


TIMES = ("timing_s/", "timing_per_token_ms/", "perf/")
"""Prefixes of metrics of the machine and the clock; all others are equal in equal runs."""

HELD_OUT = ("val-core/", "val-aux/", "val/")
"""Prefixes of metrics of held-out data."""

LEARNT_FROM = ("train/loss_tokens", "train/gradient_share", "train/end_token_share")
"""Metrics of what a step had to learn from."""

_SCORES = ("critic/score/mean", "rewards/accuracies", "train/loss")


def main_score(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """The metric whose curve is shown: the score, or the loss where nothing is scored."""
    return next(((name, metrics[name]) for name in _SCORES if name in metrics), None)


ROUNDED = 1e-6  # mean margins up to this are rounding errors of the log-probabilities of equal models


def ties_as_half(metrics: Mapping[str, float]) -> Mapping[str, float]:
    """`metrics` with an accuracy of 0.5 where the mean margin is 0. TRL counts ties as wrong, and before the first
    update all pairs are ties, as the policy is its reference: the accuracy would seem to rise by half at once."""
    for held_out in ("", "val/"):
        accuracy = f"{held_out}rewards/accuracies"
        if accuracy in metrics and abs(metrics.get(f"{held_out}rewards/margins", math.inf)) <= ROUNDED:
            metrics = {**metrics, accuracy: 0.5}
    return metrics


def watched(metrics: Mapping[str, float], count: int = 6) -> list[tuple[str, float]]:
    """The `count` numbers of a step that matter most, most important first."""
    return [(name, value) for name, _, value in shown_values("watched", metrics)][:count]


def validation(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of held-out data."""
    return {name: value for name, value in metrics.items() if name.startswith(HELD_OUT)}


def metric(name: str) -> Metric | None:
    """The entry of an emitted name; None for a metric that only a user's own code knows."""
    rows = described()
    if name in rows:
        return rows[name]
    stem, _, ending = name.rpartition("/")
    if ending in ("max", "min") and (mean := metric(f"{stem}/mean")):
        word = {"max": "largest", "min": "smallest"}[ending]
        return replace(mean, label=f"{mean.label} {ending}", meaning=f"{word} value; see {stem}/mean", better=None)
    if name.startswith("val/") and not name.startswith("val/test_score/"):  # a training metric, of held-out rows
        bare = name.removeprefix("val/")
        return rows.get(bare) or rows.get(f"actor/{bare}")
    return next((found for pattern, found in rows.items() if "*" in pattern and fnmatchcase(name, pattern)), None)


def better(name: str) -> Literal["up", "down"] | None:
    """Which direction of a metric is better; a metric of held-out data has that of the same metric in training."""
    entry = metric(name)
    return entry.better if entry else None


def held_out_score(metrics: Mapping[str, float], wanted: str | None = None) -> tuple[str, float] | None:
    """Name and value of the metric `wanted`, by default of the main score of a validation: the mean score over the data
    sources, else the accuracy on pairs, else the loss. None where that was not measured."""
    if wanted is not None:
        return (wanted, metrics[wanted]) if wanted in metrics else None
    if means := _means(metrics):
        name = next(iter(means))
        return name if len(means) == 1 else "val-core/*/reward/mean", math.fsum(means.values()) / len(means)
    return next(((name, metrics[name]) for name in ("val/rewards/accuracies", "val/loss") if name in metrics), None)


def _means(metrics: Mapping[str, float]) -> dict[str, float]:
    """The mean score of each data source."""
    return {name: metrics[name] for name in metrics if name.startswith("val-core/") and _MEAN.fullmatch(name)}


_MEAN = re.compile(r"val-core/.+/reward/mean@[0-9]+")


Z95 = 1.959963984540054


def normal(mean: float, squares: float, n: int) -> tuple[float, float]:
    """Bounds of the 95 % interval of a mean of `n` values, at least 2, whose squares add up to `squares`: mean ± 1.96
    standard errors."""
    margin = Z95 * math.sqrt(max(squares - n * mean * mean, 0.0) / (n - 1) / n)
    return mean - margin, mean + margin


def wilson(share: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Bounds of the 95 % interval of a share of `n` trials (Wilson 1927); (0, 1) of none."""
    if n == 0:
        return 0.0, 1.0
    centre, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


@dataclass(frozen=True)
class HeldOut:
    """The main score of a validation, with the ends of its 95 % interval where that is known."""

    step: int
    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def shown(self) -> str:
        """`0.915 [0.868–0.946]`"""
        text = compact(self.value)
        return text if self.low is None or self.high is None else f"{text} [{span(self.low, self.high)}]"


def mean_of_validations(some: Sequence[HeldOut]) -> HeldOut:
    """The mean of several validations of one metric, at the step of the last; its interval is narrower."""
    value, count = math.fsum(each.value for each in some) / len(some), len(some)
    if any(each.low is None or each.high is None for each in some):
        return HeldOut(some[-1].step, some[-1].name, value)
    below = math.hypot(*(each.value - (each.low or 0.0) for each in some)) / count
    above = math.hypot(*((each.high or 0.0) - each.value for each in some)) / count
    return HeldOut(some[-1].step, some[-1].name, value, value - below, value + above)


def better_than(one: HeldOut, other: HeldOut) -> bool:
    """Whether a validation is better than another of the same metric."""
    return one.value < other.value if better(one.name) == "down" else one.value > other.value


def held_out(step: int, metrics: Mapping[str, float]) -> HeldOut | None:
    """The main score of a step's validation; None where nothing was measured, or it is not finite."""
    named_score = held_out_score(metrics)
    if named_score is None or not math.isfinite(named_score[1]):
        return None
    name, value = named_score
    sources = [HeldOut(step, each, mean, *(interval_of(each, metrics) or ())) for each, mean in _means(metrics).items()]
    return replace(mean_of_validations(sources), name=name) if sources else HeldOut(step, name, value)


def interval_of(name: str, metrics: Mapping[str, float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean score of one data source; None where it was not measured."""
    stem = name.replace("val-core/", "val-aux/", 1) if _MEAN.fullmatch(name) else ""
    for kind in ("wilson95", "normal95"):
        low, high = (metrics.get(stem.replace("/mean@", f"/{kind}_{end}@")) for end in ("low", "high"))
        if low is not None and high is not None:
            return low, high
    return None


def grade(metrics: Mapping[str, float], wanted: str | None = None) -> float | None:
    """How good a validation is, higher is better: by the metric `wanted`, by default by its main score. None where that
    was not measured, is not finite, or has no better direction, and where a held-out prompt has no score: a mean over
    the prompts that could be scored is not that of all."""
    named_score = held_out_score(metrics, wanted)
    if named_score is None or not math.isfinite(named_score[1]):
        return None
    if named_score[0].startswith("val-core/") and any(
        value < 1 for name, value in metrics.items() if name.startswith("val-aux/") and "/reward/scored@" in name
    ):
        return None
    direction = "up" if named_score[0].startswith("val-core/*") else better(named_score[0])
    return {"up": named_score[1], "down": -named_score[1], None: None}[direction]


def label(name: str) -> str:
    """Short name for a screen: `val-core/openai/gsm8k/reward/mean@1` is `openai/gsm8k`, and what is not that mean has
    its own name, too: `openai/gsm8k wilson95_low@1`."""
    if name in described():
        return described()[name].label
    if name.startswith(("val-core/", "val-aux/")) and "/reward/" in name:
        source, _, what = name.split("/", 1)[1].rpartition("/reward/")
        if source == "*":
            return "all sources"
        return source if what.startswith("mean@") else f"{source} {what.removesuffix('/mean')}"
    if name.startswith("critic/score/"):  # a part of the score, by the name it has in the reward
        return name.removeprefix("critic/score/").removesuffix("/mean")
    return name
