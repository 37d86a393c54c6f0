"""Fixes of findings: one learning rate for all findings of a run, as two would contradict each other, and arguments
that apply to its settings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.core.events import Alert

if TYPE_CHECKING:  # reading the log of another program needs no settings of runs
    from launcher.spec.run import RunSpec

LARGEST_LR = 1e-3
"""The largest learning rate that is advised: no transformer is fine-tuned with more."""
MOST_SLOWER = 10.0
"""The largest factor by which a rule lowers a learning rate."""
_RATE = re.compile(
    r"((?<![\w.])(?:actor_rollout_ref\.actor\.)?optim\.lr=|--learning_rate )([0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)"
)
"""A learning rate of the policy, not of the critic."""
_BLANK = re.compile(r" (?![^{]*\})")  # not in an expression
_SETTING = re.compile(r"[a-z][\w.]*=[^\s,]+")


def with_one_rate(
    alerts: Sequence[Alert], run_rate: float, known: float = math.inf, most_slower: float = MOST_SLOWER
) -> list[Alert]:
    """The alerts with one learning rate in all fixes: the smallest of these and `known`. Rates above `run_rate`, the
    run's own, stay: they are for a run that learns nothing."""
    rate = smallest_rate((alert.fix for alert in alerts), run_rate, known, most_slower)
    return [
        replace(alert, text=with_rate(alert.text, run_rate, rate), fix=with_rate(alert.fix, run_rate, rate))
        for alert in alerts
    ]


def smallest_rate(
    fixes: Iterable[str], run_rate: float, known: float = math.inf, most_slower: float = MOST_SLOWER
) -> float:
    """The smallest learning rate below `run_rate` in the fixes, or `known`. A rate smaller than any rule advises
    for `run_rate` was advised during a warm-up, and counts as `run_rate` / `most_slower`."""
    lowest = min(run_rate / most_slower, LARGEST_LR)
    rates = (float(match[2]) for fix in fixes for match in _RATE.finditer(fix))
    return min(known, min((max(rate, lowest) for rate in rates if rate < run_rate), default=math.inf))


def with_rate(text: str, run_rate: float, rate: float) -> str:
    """The text with `rate` for every learning rate that is below `run_rate`."""

    def replace_rate(found: re.Match[str]) -> str:
        return f"{found[1]}{rate:.3g}" if float(found[2]) < run_rate and math.isfinite(rate) else found[0]

    return _RATE.sub(replace_rate, text)


# ---- what suits a run's settings


def setting(node: object, path: str) -> Any:
    """The value of a setting by its path, such as `optim.lr`; None where the run's choices do not have it."""
    head, _, rest = path.partition(".")
    if head not in vars(node):
        return None
    return setting(vars(node)[head], rest) if rest else vars(node)[head]


def usable(text: str, run: RunSpec) -> str:
    """A fix without arguments for settings that the run does not have, or that have this value already."""
    words = list[str]()
    for word in _BLANK.split(text):
        if argument := _usable_argument(word, run):
            words.append(argument)
        elif word.endswith(",") and words:
            words[-1] = f"{words[-1].rstrip(',')},"
    return re.sub(r"^(and|or) |,? (and|or)$", "", " ".join(words).strip(" ,"))


def _usable_argument(word: str, run: RunSpec) -> str:
    key, equals, value = word.rstrip(",").partition("=")
    if not equals:
        return word
    if key == "sampler.n":
        return word.replace(value, str(max(2 * run.sampler.n, 8)))
    current = setting(run, key)
    return "" if current is None or str(current) in (value, f"{value}.0") else word


def leading_arguments(fix: str) -> tuple[str, ...]:
    """The arguments that a fix begins with: of `optim.lr=1e-6 seed=1, from the start` the first two."""
    arguments = list[str]()
    for word in fix.split(" "):
        if _SETTING.fullmatch(word.removesuffix(",")) is None:
            break
        arguments.append(word.removesuffix(","))
        if word.endswith(","):
            break
    return tuple(arguments)
