"""Numbers as logs write them, and which names are those of measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from launcher.core.metric_aliases import canonical
from launcher.core.metrics import catalogue

# Every repetition is bounded and every pattern anchored where it is used: the time to read a line is linear in it.
_NUMBER = r"[-+]?(?:(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][-+]?[0-9]{1,4})?|nan|inf(?:inity)?)"
NUMBER = re.compile(_NUMBER + r"(?![A-Za-z_])", re.IGNORECASE)
_WRAPPED = re.compile(rf"[A-Za-z_][\w.]{{0,40}}\(\s{{0,4}}\[?({_NUMBER})\]?(?:,[^()]{{0,100}})?\)", re.IGNORECASE)
_GROUPED = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3}){1,8}(?:\.[0-9]{1,40})?")
_CLOCK = re.compile(r"[:_][0-9]|-[0-9]{2}-")
_LONGEST = 1_000
MOST_STEPS = 2**62
"""Beyond, a number is no step."""
_SCALED = re.compile(r"(.{1,300})\(1e-([0-9]{1,2})\)")


def to_number(text: str) -> float | None:
    """`0.5`, `-1e-06`, `nan`, `'0.06'`, `np.float64(0.5)`, `tensor(0.5, device='cuda:0')`, `12,345`, `45.6%`; None for
    other texts."""
    text = text.strip().strip("'\"`*")
    if len(text) > _LONGEST:
        return None
    if NUMBER.fullmatch(text):
        return float(text)
    if text.endswith("%") and NUMBER.fullmatch(text, 0, len(text) - 1):
        return float(text[:-1])
    if match := _WRAPPED.fullmatch(text):
        return float(match[1])
    return float(text.replace(",", "")) if _GROUPED.fullmatch(text) else None


def leading_number(text: str) -> tuple[float, int] | None:
    """The number that a text begins with, and where it ends: `0.5```, `3.21s`, `np.float64(0.5)Training`. None of a
    time or date, as `1:02:03` and `2025-05-01`."""
    if match := _WRAPPED.match(text):
        return float(match[1]), match.end()
    match = _GROUPED.match(text) or re.match(_NUMBER, text, re.IGNORECASE)
    if match and not _CLOCK.match(text, match.end()):
        return float(match[0].replace(",", "")), match.end()
    return None


def unscaled(name: str, value: float) -> tuple[str, float]:
    """verl's old `actor/lr(1e-4)` counts in units of 1e-4: its name and value without them."""
    match = _SCALED.fullmatch(name)
    return (match[1], value / 10 ** int(match[2])) if match else (name, value)


_PREFIXES = (
    "eval_", "eval/", "train_loss", "train_runtime", "train_samples_per", "train_steps_per",
    "objective/", "rewards/", "val-core/", "val-aux/", "val/",
    "actor/", "critic/", "loss/", "test_score/", "train/", "timing_s/", "rollout/",
)  # fmt: skip


def _evidence(name: str) -> str:
    """What the catalogue says that a metric of this name is evidence of."""
    row = catalogue().get(canonical(name))
    return row.evidence if row else ""


def is_beside_step(name: str) -> bool:
    """Whether a line that begins with its step is read for this metric, which elsewhere may be a setting."""
    return _evidence(name) == "beside step"


@lru_cache(maxsize=2**12)
def is_measurement(name: str) -> bool:
    """Whether a metric of this name is what a training measures, and not a setting, a count or a clock: lines of loose
    form are read only where they have one."""
    plain = name.replace(" ", "_").casefold()
    last = re.split("[./]", re.sub("[./_](?:avg|mean)$", "", plain))[-1]
    of_path = "/" in plain and last.endswith(("_loss", "_reward"))
    return of_path or plain.startswith(_PREFIXES) or "line" in (_evidence(name), _evidence(last))


def of_evaluation(name: str) -> bool:
    """Whether a name is that of a trainer's evaluation."""
    return name.casefold().startswith(("eval_", "test_", "val_", "eval/", "val/", "validation"))


def after_training(name: str) -> bool:
    """Whether a metric is of an evaluation, or of the whole training: a dict with these alone is no further step."""
    return of_evaluation(name) or name.startswith("train_") or name in ("epoch", "total_flos")


def evaluated(metrics: Mapping[str, float], labelled: bool = False) -> dict[str, float]:
    """The metrics of an evaluation, in which names without its prefix are of it, too; none of others, but for those
    that are labelled so."""
    if not labelled and not any(map(of_evaluation, metrics)):
        return {}
    return {name if after_training(name) else f"eval_{name}": value for name, value in metrics.items()}
