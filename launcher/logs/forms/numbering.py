"""Which form of a log numbers its steps, and which number a step without one gets.

One form owns the steps: that of the highest rank, and of several of this rank the first in the log.

6  verl's lines, its file logger, our event log
5  dicts with a loss or a gradient norm, and those behind `step 5:`, as trainers print them
4  what names its steps: lines of one step, bars, blocks under a heading
3  lines that begin with a count and a total, `[5/30] loss 1.9`, as prose may, too
2  the rest: other dicts, blocks without a number
1  lines of an episode, or of an epoch and a batch, and tables without a step: read where nothing else makes steps

Lines of a lower rank make no step: a print of a reward function, settings, an answer that mentions a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal[
    "verl",
    "verl_file",
    "trl",
    "transformers",
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
"""The form of a log, named after the form that owns its steps."""
SUREST = 6
DICTS, NAMED, PLACED, LOOSE, FAINT = 5, 4, 3, 2, 1
_SURE_STEPS = 50  # steps from dicts after which the log surely is one of dicts
_MIN_STEPS = 3  # rising steps after which a form's numbers count as rising


@dataclass(frozen=True)
class Basis:
    """How a log's steps are numbered. Reading the log again with it numbers all steps in the same way."""

    kind: Kind = "unknown"
    rank: int = 0
    by_bar: bool = True
    """Whether a dict's step is the count of the bar before it."""
    by_heading: bool = True
    every: int = 0
    """Steps from one dict to the next, where dicts can only be counted; 0 until something tells it."""
    step_name: str | None = None
    """The name of the step in dicts, where it is none of the usual ones; empty where one that rose fell again."""


class _RiseCounter:
    """Counts whether numbers rise, fall (restarts) or repeat (lines of several processes)."""

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
    """Steps of a log whose count may restart with each epoch."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._first: int | None = None
        self._last: tuple[int, int] | None = None  # epoch and count
        self._max_count = 0  # count
        self._counts_per_epoch = False

    def begin(self, epoch: int) -> None:
        """A heading names the epoch of the lines below it."""
        self._epoch = epoch

    def step(self, count: int, total: int, epoch: int | None, anew: bool = False) -> int:
        """The step over all epochs of a `count` in an epoch of `total` steps (0 where unknown); the count itself if
        it continues over all epochs. `anew`: the count surely restarts with each epoch."""
        epoch = self._epoch if epoch is None else epoch
        if epoch is None:
            return count
        if self._first is None:
            self._first = min(epoch, 1)
        if anew or (self._last is not None and epoch > self._last[0] and count <= self._last[1]):
            self._counts_per_epoch = True
        self._last, self._max_count = (epoch, count), max(self._max_count, count)
        return count + (epoch - self._first) * (total or self._max_count) if self._counts_per_epoch else count


class Numbering:
    """Numbers step by step. `changed`: earlier steps would now get other numbers, or none, so read the log again."""

    def __init__(self, basis: Basis | None = None) -> None:
        self.basis = basis or Basis()
        self.changed = False
        self.counted = False
        """Whether a step got its number by counting, as the log names none."""
        self.count = 0
        self._number = self._step_count = self._dicts_beside = 0
        self._steps, self._headings = _RiseCounter(), _RiseCounter()
        self._rising = dict[str, _RiseCounter]()
        self._bar = 0  # the count of the bar before the last dict

    def _change_basis(self, **facts: Any) -> None:
        self.changed = self.changed or self._step_count > 0
        self.basis = replace(self.basis, **facts)

    @property
    def sure(self) -> bool:
        """Whether the rest of the log will hardly change `basis`."""
        return self.basis.rank == SUREST or (self.basis.rank == DICTS and self._step_count >= _SURE_STEPS)

    def admits(self, kind: Kind, rank: int, named: int | None) -> bool:
        """Whether a line of this form makes a step; `named` is the step that it names, if any. Rank 0 is of lines that
        make no steps: they set the kind of the log until another form does."""
        owner = self.basis
        if (kind, rank) != (owner.kind, owner.rank):
            if rank < owner.rank or (rank == owner.rank and owner.kind != "unknown"):
                return rank > 0 and rank == owner.rank and named is not None
            if self._outnumbers(rank):
                return named is not None
            self._change_basis(kind=kind, rank=rank)
        if named is not None:
            self._steps.see(named)
        self._step_count += rank > 0
        return True

    @property
    def only_faint(self) -> bool:
        """Whether nothing so far makes steps, or only what does so where nothing else does."""
        return self.basis.rank <= FAINT

    def _outnumbers(self, rank: int) -> bool:
        """Whether the owner's steps rise and are more than the dicts beside it, which then are evaluations."""
        self._dicts_beside += rank == DICTS
        rises = self._steps.steady and self._steps.rose >= _MIN_STEPS
        return rank == DICTS and self.basis.rank == NAMED and rises and self._steps.rose > self._dicts_beside

    def rises(self, name: str, number: int) -> bool:
        """Whether the numbers of this name in dicts rise, so that it is their step."""
        numbers = self._rising.setdefault(name, _RiseCounter())
        numbers.see(number)
        rise = numbers.steady and numbers.same <= numbers.rose  # an evaluation may repeat each
        if self.basis.step_name is None and rise and numbers.rose >= _MIN_STEPS:
            self._change_basis(step_name=name)
        elif self.basis.step_name == name and not rise:
            self._change_basis(step_name="")
        return self.basis.step_name == name

    def heading(self, number: int | None) -> int | None:
        """The number of the heading above a step, if headings rise and few steps lack one; answers have some, too."""
        if number is None or not self.basis.by_heading:
            return None
        headings = self._headings
        headings.see(number)
        if headings.steady and headings.same <= headings.rose // 8 and 2 * self.count <= headings.rose:
            return number
        self._change_basis(by_heading=False)
        return None

    def next(self, bar: int | None) -> int:
        """The number of a step that names none; `bar` is the count of the bar before it."""
        self.count += 1
        if self.basis.by_heading and 0 < self._headings.rose < 2 * self.count:
            self._change_basis(by_heading=False)
        if self.count == 3 and self.counted and bar and bar == 2 * self._bar:  # each bar is behind its dict
            self._change_basis(by_bar=False, every=self._bar)
        if bar is not None and self.basis.by_bar:
            if bar != self._bar:
                self._number = self._bar = bar
                return bar
            self._change_basis(by_bar=False)  # the bar did not move between two dicts
        self.counted = True
        self._number = self.count * max(self.basis.every, 1)
        return self._number

    def again(self) -> int:
        """The number of the latest counted step, which is printed again."""
        return self._number

    def panel(self, number: int) -> None:
        """Take the step from the title of TRL's table of answers, which belongs to the dict before it."""
        if self.counted and number != self._number and self.basis.every != 1:
            every, remainder = divmod(number, max(self.count, 1))
            self._change_basis(every=1 if remainder or self.basis.every > 1 else every)

    def reached(self, last: int | None, bar: int | None) -> int:
        """The step that an evaluation belongs to."""
        last = last or 0
        return max(last, bar) if bar is not None and self.basis.by_bar and self._bar else last
