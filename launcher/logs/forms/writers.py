"""Which process writes the steps of a log: two jobs of Ray may write into one log.

(TaskRunner pid=1) step:3 - critic/score/mean:0.2
(TaskRunner pid=2) step:11 - critic/score/mean:0.7
(TaskRunner pid=1) step:4 - critic/score/mean:0.3

One that is restarted has a new process, too, but the old one writes no more.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator

from launcher.core.events import Alert

_PID = "pid="
_MIN_RETURNS = 3  # returns of two processes, each with a new step, after which both count as running
TWO_WRITERS = "two-writers"
"""`rule` of the alert that the steps of one process are left out."""


class Writers:
    """The processes that wrote steps, in the order of their first step; lines of `excluded` processes are not read."""

    def __init__(self, excluded: Iterable[str] = ()) -> None:
        self.excluded = set(excluded)
        self._names = dict[str, set[str]]()
        self._last_counts = dict[str, float]()
        self._returns = Counter[str]()
        self._latest = ""
        self._reported = set[str]()

    @property
    def known(self) -> bool:
        """Whether a step came from a process that Ray names."""
        return bool(self._latest)

    def rival(self, source: str, names: Iterable[str], count: float | None) -> str:
        """The process to exclude now that `source` writes a step with metrics of these names: of two processes of one
        kind that write in turns (A-B-A-B-A), the one that came later; else empty. `count` is the step or epoch. One
        return is not enough: a dead process may write a late line after the first of its successor."""
        if not source:
            return ""
        before, self._latest = self._latest, source
        returns, last = source in self._names, self._last_counts.get(source)
        known = self._names.setdefault(source, set())
        known.update(names)
        if count is not None:
            self._last_counts[source] = count if last is None else max(last, count)
        if not returns or before == source or _kind(before) != _kind(source) or known.isdisjoint(self._names[before]):
            return ""
        if count is not None and last is not None and count <= last:
            return ""
        self._returns[source] += 1
        if not self._returns[before] or self._returns[before] + self._returns[source] < _MIN_RETURNS:
            return ""
        order = list(self._names)
        later = max(before, source, key=order.index)
        self._latest = min(before, source, key=order.index)
        self.excluded.add(later)
        return later

    def notice(self, source: str, at: float, step: int) -> Iterator[Alert]:
        """One alert for each process, that its lines are left out."""
        if source in self._reported:
            return
        self._reported.add(source)
        read = f"({next((name for name in self._names if name not in self.excluded), 'the other')})"
        fix = f"grep -F {shlex.quote(f'({source})')} LOG | rlrun metrics - for the other"
        text = f"only the steps of {read} are read, those of ({source}) are left out"
        yield Alert(
            at=at,
            step=step,
            text=f"two processes write steps into this log; {text}; use {fix}",
            rule=TWO_WRITERS,
            cause="mostly two jobs whose output is one file",
            fix=fix,
        )


def _kind(source: str) -> str:
    return source.partition(_PID)[0]
