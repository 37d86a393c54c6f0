"""Several tensors become one: the formulas, in float64, block after block.

A tensor is anything that gives its blocks of numbers again in every loop, so nothing is held whole. A result that
is rounded once to the model's format is the formula's value to its last bit, but for the order of sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from launcher.core.problems import Problem

Block = NDArray[np.float64]

PARALLEL = 0.9995  # cosine from which on an arc is as good as its chord, and the formula of the arc divides by nothing
HELD = 1 << 21  # numbers among which a threshold is looked for in memory: 16 MiB


class Blocks(Protocol):
    """A tensor: its blocks of numbers, from the first one in every loop."""

    @property
    def count(self) -> int:
        """Numbers in all blocks."""

    def __iter__(self) -> Iterator[Block]: ...


@dataclass(frozen=True)
class Linear:
    """Weighted mean (arXiv:2203.05482): sum of w_i x_i."""

    with_base: ClassVar[bool] = False
    weights: tuple[float, ...] = ()
    """One for each model; equal ones by default."""
    normalize: bool = True
    """Divide the weights by their sum."""

    def problems(self, models: int) -> list[Problem]:
        found = []
        if models < 2:
            found.append(Problem("--method linear", f"got {models} model", "expected at least 2"))
        if self.weights and len(self.weights) != models:
            found.append(Problem("--weights", f"got {len(self.weights)} for {models} models", "expected one for each"))
        if not all(math.isfinite(weight) for weight in self.weights):
            found.append(Problem("--weights", "one is not finite", "expected numbers"))
        elif self.weights and not any(self.weights):
            found.append(Problem("--weights", "all are 0", "expected at least one that is not"))
        elif self.weights and self.normalize and abs(math.fsum(self.weights)) < 1e-6:
            found.append(Problem("--weights", "their sum is 0, so they cannot be normalized", "use --no-normalize"))
        return found

    def mixed(self, models: Sequence[Blocks], base: Blocks | None) -> Iterator[Block]:
        weights = self.weights or (1.0,) * len(models)
        total = math.fsum(weights) if self.normalize else 1.0
        yield from _weighted([weight / total for weight in weights], models)


@dataclass(frozen=True)
class Slerp:
    """Along the arc between two tensors (Shoemake 1985, "Animating rotation with quaternion curves").

    sin((1 - t) a) / sin(a) x + sin(t a) / sin(a) y, where a is the angle between x and y as vectors. Where that is
    nearly 0 or half a turn, or a tensor is zero, the arc has no direction and the chord is taken: (1 - t) x + t y.
    """

    with_base: ClassVar[bool] = False
    t: float = 0.5
    """Where on the way: 0 is the first model, 1 the second."""

    def problems(self, models: int) -> list[Problem]:
        found = (
            []
            if models == 2
            else [Problem("--method slerp", f"goes from one model to one other, got {models}", "expected 2")]
        )
        if not 0 <= self.t <= 1:
            found.append(Problem("--t", f"got {self.t}", "expected 0 to 1"))
        return found

    def mixed(self, models: Sequence[Blocks], base: Blocks | None) -> Iterator[Block]:
        cosine = _cosine(*models)
        if abs(cosine) > PARALLEL:
            shares = [1 - self.t, self.t]
        else:
            angle = math.acos(cosine)
            shares = [math.sin((1 - self.t) * angle) / math.sin(angle), math.sin(self.t * angle) / math.sin(angle)]
        yield from _weighted(shares, models)


@dataclass(frozen=True)
class Task:
    """Task arithmetic (arXiv:2212.04089): base + scale * sum of (x_i - base)."""

    with_base: ClassVar[bool] = True
    scale: float = 1.0
    """How far to go; below 0 unlearns."""

    def problems(self, models: int) -> list[Problem]:
        return _scale_problems(self.scale)

    def mixed(self, models: Sequence[Blocks], base: Blocks | None) -> Iterator[Block]:
        assert base is not None
        for start, *blocks in zip(base, *models, strict=True):
            change = blocks[0] - start
            for block in blocks[1:]:
                change += block - start
            yield _moved(start, change, self.scale)


@dataclass(frozen=True)
class Ties:
    """TIES-Merging (arXiv:2306.01708): trim, elect sign, merge what agrees.

    Of each x_i - base the `density` largest stay, in each tensor (what is as large as the last of them stays too).
    The sign of a number is the sign of the sum of what stayed of it; where that is 0, the base stays. The change is
    the mean of those that stayed and have that sign, times `scale`.
    """

    with_base: ClassVar[bool] = True
    density: float = 0.2
    """Share of each model's changes that stays."""
    scale: float = 1.0

    def problems(self, models: int) -> list[Problem]:
        found = _scale_problems(self.scale)
        if not 0 < self.density <= 1:
            found.append(Problem("--density", f"got {self.density}", "expected above 0 and at most 1"))
        return found

    def mixed(self, models: Sequence[Blocks], base: Blocks | None) -> Iterator[Block]:
        assert base is not None
        least = [smallest_kept(Changes(model, base), self.density) for model in models]
        for start, *blocks in zip(base, *models, strict=True):
            kept = []
            for block, bound in zip(blocks, least, strict=True):
                change = block - start
                change[np.abs(change) < bound] = 0
                kept.append(change)
            sign = np.sign(_sum(kept))
            agree = [np.sign(change) == sign for change in kept]
            votes = _sum([mask.astype(np.float64) for mask in agree])
            change = _sum([np.where(mask, change, 0.0) for mask, change in zip(agree, kept, strict=True)])
            yield _moved(start, change / np.maximum(votes, 1), self.scale)


Method = Linear | Slerp | Task | Ties
"""How tensors are mixed. The fields are its parameters; `problems` tells what is wrong with them for so many models;
`mixed` gives the blocks of the result; where `with_base`, it looks at what the models changed of a base."""
METHODS: dict[str, type[Method]] = {"linear": Linear, "slerp": Slerp, "task": Task, "ties": Ties}


def _scale_problems(scale: float) -> list[Problem]:
    return (
        []
        if math.isfinite(scale) and scale
        else [Problem("--scale", f"got {scale}", "expected a number that is not 0")]
    )


def _weighted(weights: Sequence[float], models: Sequence[Blocks]) -> Iterator[Block]:
    """A model of weight 0 is not looked at, so that what the others hold stays to the last bit, signs of zero too."""
    parts = [(weight, model) for weight, model in zip(weights, models, strict=True) if weight]
    for blocks in zip(*(model for _, model in parts), strict=True):
        found = parts[0][0] * blocks[0]
        for (weight, _), block in zip(parts[1:], blocks[1:], strict=True):
            found += weight * block
        yield found


def _moved(start: Block, change: Block, scale: float) -> Block:
    """start + scale * change; where nothing changes the very bits of `start`."""
    found = start + scale * change
    np.copyto(found, start, where=change == 0)
    return found


def _sum(blocks: Sequence[Block]) -> Block:
    found = blocks[0].copy()
    for block in blocks[1:]:
        found += block
    return found


def _cosine(one: Blocks, other: Blocks) -> float:
    """Of the angle between two tensors; 1 where one of them is zero."""
    sums = [((x * x).sum(), (y * y).sum(), (x * y).sum()) for x, y in zip(one, other, strict=True)]
    long, wide, both = (math.fsum(float(part[i]) for part in sums) for i in range(3))
    return min(max(both / math.sqrt(long) / math.sqrt(wide), -1.0), 1.0) if long and wide else 1.0


@dataclass(frozen=True)
class Changes:
    """How far each number moved from the base, without its sign."""

    model: Blocks
    base: Blocks

    @property
    def count(self) -> int:
        return self.base.count

    def __iter__(self) -> Iterator[Block]:
        for block, start in zip(self.model, self.base, strict=True):
            yield np.abs(block - start)


def smallest_kept(changes: Blocks, density: float) -> float:
    """The k-th largest of numbers >= 0, k being `density` of their count, at least 1.

    Numbers >= 0 are ordered as their bits are. So each loop counts them by the next 16 bits and looks on among those
    that share the bits of the one wanted, until few enough are left to be held.
    """
    wanted, among, prefix, known = max(round(density * changes.count), 1), changes.count, 0, 0
    while among > HELD and known < 64:
        counts = np.zeros(1 << 16, np.int64)
        for bits in _sharing(changes, prefix, known):
            counts += np.bincount((bits >> (48 - known)) & 0xFFFF, minlength=1 << 16)
        larger = counts[::-1].cumsum()[::-1] - counts  # how many lie above each
        place = int(np.flatnonzero(larger < wanted)[0])
        wanted, among, prefix, known = wanted - int(larger[place]), int(counts[place]), prefix << 16 | place, known + 16
    if known == 64:  # all that are left are one number
        return float(np.array([prefix], np.int64).view(np.float64)[0])
    left = np.concatenate([np.empty(0, np.int64), *_sharing(changes, prefix, known)])
    return float(np.partition(left, -wanted)[-wanted:][:1].view(np.float64)[0]) if left.size else 0.0


def _sharing(changes: Blocks, prefix: int, known: int) -> Iterator[NDArray[np.int64]]:
    """Bits of the numbers whose first `known` bits are `prefix`."""
    for block in changes:
        bits = block.view(np.int64)
        yield bits[bits >> (64 - known) == prefix] if known else bits
