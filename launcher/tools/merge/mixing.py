"""Several tensors become one: the formulas, in float64, block after block.

A tensor is anything whose every loop gives its blocks of numbers in the same order, so no tensor has to be in memory.
A result is rounded once to the model's format: it is the formula's value to its last bit, but for the order of sums.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from launcher.core.problems import Problem

Blocks = Iterable[Tensor]
PARALLEL = 0.9995  # from this cosine on the chord is as good as the arc, whose formula divides by nearly 0


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

    def mixed(self, models: Sequence[Blocks], base: Blocks | None) -> Iterator[Tensor]:
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
        found = []
        if models != 2:
            found.append(Problem("--method slerp", f"goes from one model to one other, got {models}", "expected 2"))
        if not 0 <= self.t <= 1:
            found.append(Problem("--t", f"got {self.t}", "expected 0 to 1"))
        return found

    def mixed(self, models: Sequence[Blocks], base: Blocks | None) -> Iterator[Tensor]:
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

    def mixed(self, models: Sequence[Blocks], base: Blocks | None) -> Iterator[Tensor]:
        assert base is not None
        for start, *blocks in zip(base, *models, strict=True):
            yield _moved(start, _sum([block - start for block in blocks]), self.scale)


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

    def mixed(self, models: Sequence[Blocks], base: Blocks | None) -> Iterator[Tensor]:
        assert base is not None
        least = [smallest_kept(model, base, self.density) for model in models]
        for start, *blocks in zip(base, *models, strict=True):
            changes = [block - start for block in blocks]
            kept = [change.where(change.abs() >= bound, 0.0) for change, bound in zip(changes, least, strict=True)]
            sign = _sum(kept).sign()
            agree = [change.sign() == sign for change in kept]
            votes = _sum([mask.double() for mask in agree])
            change = _sum([change.where(mask, 0.0) for mask, change in zip(agree, kept, strict=True)])
            yield _moved(start, change / votes.clamp(min=1), self.scale)


Method = Linear | Slerp | Task | Ties
"""How tensors are mixed. The fields are its parameters; `problems` says what is wrong with them for so many models;
`mixed` gives the blocks of the result; where `with_base`, it needs the model that the others were tuned from."""
METHODS: dict[str, type[Method]] = {"linear": Linear, "slerp": Slerp, "task": Task, "ties": Ties}


def _scale_problems(scale: float) -> list[Problem]:
    if math.isfinite(scale) and scale:
        return []
    return [Problem("--scale", f"got {scale}", "expected a number that is not 0")]


def _weighted(weights: Sequence[float], models: Sequence[Blocks]) -> Iterator[Tensor]:
    """A model of weight 0 is left out, so that the others keep their bits, signs of zero too."""
    used = [(weight, model) for weight, model in zip(weights, models, strict=True) if weight]
    for blocks in zip(*(model for _, model in used), strict=True):
        yield _sum([weight * block for (weight, _), block in zip(used, blocks, strict=True)])


def _moved(start: Tensor, change: Tensor, scale: float) -> Tensor:
    """start + scale * change; where nothing changes the very bits of `start`."""
    return start.where(change == 0, start + scale * change)


def _sum(blocks: Sequence[Tensor]) -> Tensor:
    """Unlike `sum`, which adds 0 first, it keeps the sign of a zero."""
    return reduce(operator.add, blocks)


def _cosine(one: Blocks, other: Blocks) -> float:
    """Of the angle between two tensors; 1 where one of them is zero."""
    sums = [[float((a * b).sum()) for a, b in ((x, x), (y, y), (x, y))] for x, y in zip(one, other, strict=True)]
    long, wide, both = (math.fsum(part[i] for part in sums) for i in range(3))
    return min(max(both / math.sqrt(long) / math.sqrt(wide), -1.0), 1.0) if long and wide else 1.0


def smallest_kept(model: Blocks, base: Blocks, density: float) -> float:
    """The k-th largest |model - base|, k being `density` of their count, at least 1.

    Numbers >= 0 are ordered as their bits are. Each of four loops counts, among the numbers that begin with the bits
    known so far, how often each value of the next 16 bits occurs.
    """
    wanted, known = 0, 0
    for shift in (48, 32, 16, 0):
        counts = torch.zeros(1 << 16, dtype=torch.int64)
        for block, start in zip(model, base, strict=True):
            bits = (block - start).abs().view(torch.int64) >> shift
            among = bits[bits >> 16 == known] if shift < 48 else bits
            counts += (among & 0xFFFF).bincount(minlength=1 << 16)
        wanted = wanted or max(round(density * int(counts.sum())), 1)
        larger = counts.flip(0).cumsum(0).flip(0) - counts
        place = int((larger < wanted).nonzero()[0])
        wanted, known = wanted - int(larger[place]), known << 16 | place
    return torch.tensor(known).view(torch.float64).item()
