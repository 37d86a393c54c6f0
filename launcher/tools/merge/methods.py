"""Several tensors become one: the formulas, over whole tensors of floating-point numbers of one width."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from launcher.core.problems import Problem

PARALLEL = 0.9995  # above this |cosine| the chord is taken: the arc's formula divides by nearly 0


@dataclass(frozen=True)
class Linear:
    """Weighted mean (arXiv:2203.05482): sum of w_i x_i."""

    with_base: ClassVar[bool] = False  # whether it needs the model that the others were tuned from
    weights: tuple[float, ...] = ()
    """Weight of each model, which is divided by their sum; equal by default."""

    def problems(self, models: int) -> Iterator[Problem]:
        if models < 2:
            yield Problem("--method linear", f"got {models} model", "expected at least 2")
        if self.weights and len(self.weights) != models:
            yield Problem("--weights", f"got {len(self.weights)} for {models} models", "expected one for each")
        if not all(math.isfinite(weight) for weight in self.weights):
            yield Problem("--weights", "one is not finite", "expected numbers")
        elif self.weights and abs(math.fsum(self.weights)) < 1e-6:
            yield Problem("--weights", "their sum is 0", "expected a sum to divide them by")

    def mix(self, models: Sequence[Tensor], base: Tensor | None) -> Tensor:
        weights = self.weights or (1.0,) * len(models)
        total = math.fsum(weights)
        return _add_weighted([weight / total for weight in weights], models)


@dataclass(frozen=True)
class Slerp:
    """Along the arc between two tensors (Shoemake 1985, "Animating rotation with quaternion curves").

    sin((1 - t) a) / sin(a) x + sin(t a) / sin(a) y, where a is the angle between x and y as vectors. Where that is
    nearly 0 or half a turn, or a tensor is zero, the arc has no direction and the chord is taken: (1 - t) x + t y.
    """

    with_base: ClassVar[bool] = False
    t: float = 0.5
    """Position on the arc: 0 is the first model, 1 the second."""

    def problems(self, models: int) -> Iterator[Problem]:
        if models != 2:
            yield Problem("--method slerp", f"goes from one model to one other, got {models}", "expected 2")
        if not 0 <= self.t <= 1:
            yield Problem("--t", f"got {self.t}", "expected 0 to 1")

    def mix(self, models: Sequence[Tensor], base: Tensor | None) -> Tensor:
        lengths = [float(torch.linalg.vector_norm(model)) for model in models]
        cosine = 1.0
        if all(lengths):
            unit, other = (model.flatten() / length for model, length in zip(models, lengths, strict=True))
            cosine = min(max(float(unit @ other), -1.0), 1.0)
        if abs(cosine) > PARALLEL:
            return _add_weighted([1 - self.t, self.t], models)
        angle = math.acos(cosine)
        shares = [math.sin(part * angle) / math.sin(angle) for part in (1 - self.t, self.t)]
        return _add_weighted(shares, models)


@dataclass(frozen=True)
class Ties:
    """TIES-Merging (arXiv:2306.01708): trim, elect sign, merge what agrees.

    Of each change x_i - base the share `density` with the largest magnitudes is kept, per tensor (ties are kept too).
    The elected sign of an element is that of the sum of its kept changes; where that is 0, the base stays. The merged
    change is the mean of the kept changes with that sign, times `scale`.
    """

    with_base: ClassVar[bool] = True
    density: float = 0.2
    """Share of each model's changes that stays."""
    scale: float = 1.0

    def problems(self, models: int) -> Iterator[Problem]:
        if not (math.isfinite(self.scale) and self.scale):
            yield Problem("--scale", f"got {self.scale}", "expected a number that is not 0")
        if not 0 < self.density <= 1:
            yield Problem("--density", f"got {self.density}", "expected above 0 and at most 1")

    def mix(self, models: Sequence[Tensor], base: Tensor | None) -> Tensor:
        assert base is not None
        changes = [self._trim(model - base) for model in models]
        sign = sum(changes, torch.zeros_like(base)).sign()
        agreed = [change.where(change.sign() == sign, 0.0) for change in changes]
        votes = sum(((change != 0).to(base.dtype) for change in agreed), torch.zeros_like(base))
        change = sum(agreed, torch.zeros_like(base)) / votes.clamp(min=1)
        return base.where(change == 0, base + self.scale * change)  # unchanged elements keep their bits

    def _trim(self, change: Tensor) -> Tensor:
        size, count = change.abs(), change.numel()
        dropped = count - max(round(self.density * count), 1)
        return change.where(size >= size.flatten().kthvalue(dropped + 1).values, 0.0) if count else change


Method = Linear | Slerp | Ties
"""How tensors are mixed. `problems` says what is wrong with its parameters, the fields, for so many models."""
METHODS: dict[str, type[Method]] = {"linear": Linear, "slerp": Slerp, "ties": Ties}


def _add_weighted(weights: Sequence[float], models: Sequence[Tensor]) -> Tensor:
    """The weighted sum; a model of weight 0 is left out, so that the others keep their bits, signs of zero too."""
    terms = [weight * model for weight, model in zip(weights, models, strict=True) if weight]
    result = terms[0]
    for term in terms[1:]:
        result += term
    return result
