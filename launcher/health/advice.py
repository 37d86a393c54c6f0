"""One learning rate for all findings of a run, as two would contradict each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from launcher.core.events import Alert

_RATE = re.compile(
    r"((?<![\w.])(?:actor_rollout_ref\.actor\.)?optim\.lr=|--learning_rate )([0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)"
)
"""A learning rate, not that of the critic."""


def with_one_rate(alerts: Sequence[Alert], run_rate: float, known: float = math.inf) -> list[Alert]:
    """Alerts whose fixes name one learning rate: the smallest of them and of `known`. Rates above `run_rate`, the run's
    own, are left: they are for a run that learns nothing."""
    least = smallest_rate((alert.fix for alert in alerts), run_rate, known)
    return [
        replace(alert, text=with_rate(alert.text, run_rate, least), fix=with_rate(alert.fix, run_rate, least))
        for alert in alerts
    ]


def smallest_rate(fixes: Iterable[str], run_rate: float, known: float = math.inf) -> float:
    """The smallest learning rate that they name below `run_rate`, or `known`."""
    rates = (float(found[2]) for fix in fixes for found in _RATE.finditer(fix))
    return min(known, min((rate for rate in rates if rate < run_rate), default=math.inf))


def with_rate(text: str, run_rate: float, rate: float) -> str:
    """The text with `rate` for every larger learning rate that is below `run_rate`."""

    def lower(found: re.Match[str]) -> str:
        return f"{found[1]}{rate:.3g}" if rate < float(found[2]) < run_rate else found[0]

    return _RATE.sub(lower, text)
