"""Which form of a log numbers its steps, and which number a line without one has.

One form owns the steps: the one of the highest rank, and of that rank the first.

5  verl's lines, its file logger, our event log
4  dicts with a loss or a gradient norm, and those behind `step 5:`, as trainers print them
3  what names its steps: lines of one step, bars, blocks under a heading
2  lines that begin with a count of so many, `[5/30] loss 1.9`, as prose may, too
1  the rest: other dicts, blocks without a number

What has a lower rank makes no step: a print of a reward function, settings, an answer that speaks of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal[
    "verl",
    "verl_file",
    "trl",
    "dicts",
    "trainer_state",
    "lines",
    "block",
    "bars",
    "rlrun",
    "samples",
    "tensorboard",
    "unknown",
]
"""The form of a log, by what owns its steps."""
SUREST = 5
DICTS, NAMED, PLACED, LOOSE = 4, 3, 2, 1
_STEPS = 50  # of dicts after which a log is taken for one of dicts
_LEAST = 3  # steps of a form by which it is known to rise


@dataclass(frozen=True)
class Basis:
    """What is known of the numbers of a log. A log that is read again with it gets the same numbers throughout."""

    kind: Kind = "unknown"
    rank: int = 0
    by_bar: bool = True
    """Whether the bar before a dict is believed to have its step."""
    by_heading: bool = True
    every: int = 1
    """Steps from one dict to the next, where only counting is left."""
    excluded: tuple[str, ...] = ()
    """Processes whose lines are not read, as they write steps of another training into the same log."""


class _Rising:
    """Whether numbers rise, but for a restart now and then; equal ones are of several processes."""

    def __init__(self) -> None:
        self.rose = self.fell = self.same = 0
        self._last = -1

    def see(self, number: int) -> None:
        self.rose += number > self._last
        self.fell += number < self._last
        self.same += number == self._last
        self._last = number

    @property
    def steady(self) -> bool:
        return self.rose >= 8 * self.fell


class Epochs:
    """The steps of a log whose count begins anew with each epoch."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._first: int | None = None
        self._last: tuple[int, int] | None = None  # epoch and count
        self._longest = 0  # count
        self._anew = False

    def begin(self, epoch: int) -> None:
        """A heading names the epoch of the lines below it."""
        self._epoch = epoch

    def step(self, count: int, total: int, epoch: int | None, anew: bool = False) -> int:
        """The step of a count in an epoch of so many (0 where unknown); the count itself where it goes on over all
        epochs. `anew` says that it surely does not."""
        epoch = self._epoch if epoch is None else epoch
        if epoch is None:
            return count
        if self._first is None:
            self._first = min(epoch, 1)
        if anew or (self._last is not None and epoch > self._last[0] and count <= self._last[1]):
            self._anew = True
        self._last, self._longest = (epoch, count), max(self._longest, count)
        return count + (epoch - self._first) * (total or self._longest) if self._anew else count


class Numbering:
    """Decides step by step. `changed` says that steps which were given before would now have other numbers, or none."""

    def __init__(self, basis: Basis | None = None) -> None:
        self.basis = basis or Basis()
        self.changed = False
        self.counted = False
        """Whether a number was counted, as the log names none."""
        self.count = 0
        self._number = self._given = self._rivals = 0
        self._steps, self._headings = _Rising(), _Rising()
        self._bar = 0  # the count of the bar before the last dict

    def _change(self, **facts: Any) -> None:
        self.changed = self.changed or self._given > 0
        self.basis = replace(self.basis, **facts)

    def exclude(self, process: str) -> None:
        """Its steps are those of another training."""
        self._change(excluded=(*self.basis.excluded, process))

    @property
    def sure(self) -> bool:
        """Whether what follows will hardly change what is known."""
        return self.basis.rank == SUREST or (self.basis.rank == DICTS and self._given >= _STEPS)

    def admits(self, kind: Kind, rank: int, named: int | None) -> bool:
        """Whether a line of this form makes a step; `named` is the number that it names. One that is no form of steps
        (rank 0) says only what the log is, where nothing else does."""
        owner = self.basis
        if (kind, rank) != (owner.kind, owner.rank):
            if rank < owner.rank or (rank == owner.rank and owner.kind != "unknown"):
                return rank > 0 and rank == owner.rank and named is not None
            if self._outnumbers(rank):
                return named is not None
            self._change(kind=kind, rank=rank)
        if named is not None:
            self._steps.see(named)
        self._given += rank > 0
        return True

    def _outnumbers(self, rank: int) -> bool:
        """Whether the owner's steps rise, and are more than the dicts beside it: those are its evaluations."""
        self._rivals += rank == DICTS
        rises = self._steps.steady and self._steps.rose >= _LEAST
        return rank == DICTS and self.basis.rank == NAMED and rises and self._steps.rose > self._rivals

    def heading(self, number: int | None) -> int | None:
        """The number of a heading above a step, while they rise and few steps lack one: an answer has headings, too."""
        if number is None or not self.basis.by_heading:
            return None
        seen = self._headings
        seen.see(number)
        if seen.steady and seen.same <= seen.rose // 8 and 2 * self.count <= seen.rose:
            return number
        self._change(by_heading=False)
        return None

    def next(self, bar: int | None) -> int:
        """The number of a step that names none; `bar` is the count of the bar before it."""
        self.count += 1
        if self.basis.by_heading and 0 < self._headings.rose < 2 * self.count:
            self._change(by_heading=False)
        if bar is not None and self.basis.by_bar:
            if bar != self._bar:
                self._number = self._bar = bar
                return bar
            self._change(by_bar=False)  # it does not move from dict to dict
        self.counted = True
        self._number = self.count * self.basis.every
        return self._number

    def again(self) -> int:
        """The number of the step that is printed again."""
        return self._number

    def panel(self, number: int) -> None:
        """TRL prints the step of a dict in the title of the answers behind it."""
        if self.counted and number != self._number:
            every, rest = divmod(number, max(self.count, 1))
            self._change(every=1 if rest or self.basis.every > 1 else every)

    def reached(self, last: int | None, bar: int | None) -> int:
        """The step that an evaluation belongs to."""
        last = last or 0
        return max(last, bar) if bar is not None and self.basis.by_bar and self._bar else last
