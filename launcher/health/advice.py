"""What helps: one learning rate for all findings of a run, as two would contradict each other, and arguments that suit
its settings."""

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
"""By how much a rule lowers a learning rate at most."""
_RATE = re.compile(
    r"((?<![\w.])(?:actor_rollout_ref\.actor\.)?optim\.lr=|--learning_rate )([0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)"
)
"""A learning rate, not that of the critic."""
_BLANK = re.compile(r" (?![^{]*\})")  # not in an expression
_SETTING = re.compile(r"[a-z][\w.]*=[^\s,]+")


def with_one_rate(
    alerts: Sequence[Alert], run_rate: float, known: float = math.inf, most_slower: float = MOST_SLOWER
) -> list[Alert]:
    """Alerts whose fixes name one learning rate: the smallest of them and of `known`. Rates above `run_rate`, the run's
    own, are left: they are for a run that learns nothing."""
    least = smallest_rate((alert.fix for alert in alerts), run_rate, known, most_slower)
    return [
        replace(alert, text=with_rate(alert.text, run_rate, least), fix=with_rate(alert.fix, run_rate, least))
        for alert in alerts
    ]


def smallest_rate(
    fixes: Iterable[str], run_rate: float, known: float = math.inf, most_slower: float = MOST_SLOWER
) -> float:
    """The smallest learning rate that they name below `run_rate`, or `known`; one that is smaller than any rule advises
    for `run_rate` was advised within a warm-up, and counts as that of the rule that lowers it most."""
    least = min(run_rate / most_slower, LARGEST_LR)
    rates = (float(found[2]) for fix in fixes for found in _RATE.finditer(fix))
    return min(known, min((max(rate, least) for rate in rates if rate < run_rate), default=math.inf))


def with_rate(text: str, run_rate: float, rate: float) -> str:
    """The text with `rate` for every learning rate that is below `run_rate`."""

    def replaced(found: re.Match[str]) -> str:
        return f"{found[1]}{rate:.3g}" if float(found[2]) < run_rate and math.isfinite(rate) else found[0]

    return _RATE.sub(replaced, text)


# ---- what suits a run's settings


def setting(node: object, path: str) -> Any:
    """The setting behind a path such as `optim.lr`; None where the run's choices do not have it."""
    head, _, rest = path.partition(".")
    if head not in vars(node):
        return None
    return setting(vars(node)[head], rest) if rest else vars(node)[head]


def usable(text: str, run: RunSpec) -> str:
    """A fix without arguments whose setting the run's choices do not have, or that are the run's own."""
    words = list[str]()
    for word in _BLANK.split(text):
        if fits := _argument(word, run):
            words.append(fits)
        elif word.endswith(",") and words:
            words[-1] = f"{words[-1].rstrip(',')},"
    return re.sub(r"^(and|or) |,? (and|or)$", "", " ".join(words).strip(" ,"))


def _argument(word: str, run: RunSpec) -> str:
    key, given, value = word.rstrip(",").partition("=")
    if not given:
        return word
    if key == "sampler.n":
        return word.replace(value, str(max(2 * run.sampler.n, 8)))
    own = setting(run, key)
    return "" if own is None or str(own) in (value, f"{value}.0") else word


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
