"""An engine judges an algorithm by what it needs, takes and defines, not by its name."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.algorithms.grpo import GRPO
from launcher.algorithms.ppo import PPO
from launcher.core.settings import settings
from launcher.engines.torch import Torch
from launcher.spec.algorithm import Algorithm


@settings
class Own(GRPO):
    """A subclass of one's own."""


@settings
class Bare(Algorithm):
    def loss(self, new: Any, batch: Any) -> Any:
        return new.logp.sum(), {}


@settings
class WithCritic(Bare):
    needs = frozenset({"critic"})


@settings
class WithTeacher(Bare):
    needs = frozenset({"teacher", "old"})


@settings
class OfImages(Bare):
    data = "images"


@pytest.mark.parametrize("algorithm", [Own(), Bare(), Own(kl_loss_coef=0.1), PPO()])
def test_a_class_of_ones_own_is_as_good_as_ours(algorithm: Algorithm) -> None:
    assert Torch().supports(algorithm) == []


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (WithTeacher(), "algorithm: WithTeacher needs teacher, which Torch does not compute; use one that needs only"),
        (OfImages(), "algorithm: OfImages learns from images, which Torch does not read; use one that learns from"),
        (WithCritic(), "algorithm: WithCritic needs a critic and defines no value_loss; define value_loss in it"),
    ],
)
def test_what_the_engine_cannot_do_is_named(algorithm: Algorithm, expected: str) -> None:
    (problem,) = Torch().supports(algorithm)
    assert str(problem).startswith(expected) and problem.code == "not-supported"
