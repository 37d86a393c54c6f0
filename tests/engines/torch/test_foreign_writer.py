"""Answers that another program wrote: their log-probabilities come with them, through the step, to its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from launcher.algorithms.gspo_selfplay import GSPOSelfPlay
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout.generator import Completion, Generator
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.measure import Clock, Mismatch
from launcher.engines.torch.train.policy import Policy, _masked_row
from launcher.engines.torch.train.sources import Order, Rollouts, Rows
from launcher.spec.algorithm import Batch
from launcher.spec.data import Row
from launcher.spec.reward import Answer, Reward
from launcher.spec.sampler import Sampler
from launcher.text.encoder import Pair, Tokens

CPU = torch.device("cpu")


class Foreign(Sampler):
    logprobs_match_trainer = False


class Fake(Generator):
    """Writes two or three tokens; the log-probability of token t is -t / 8."""

    awoken = 0

    @contextmanager
    def current_weights(self) -> Iterator[Mapping[str, float]]:
        self.awoken += 1
        yield {"timing_s/update_weights": 0.5}

    def sample(self, prompts: Sequence[list[int]], n: int, keys: np.ndarray, temperature: float) -> list[Completion]:
        answers = [[20 + row, 30 + row] if row % 2 else [20 + row, 30 + row, 1] for row in range(len(prompts) * n)]
        return [Completion(tokens, tokens[-1] != 1, [-token / 8 for token in tokens]) for tokens in answers]


class Known(Reward):
    """Fake: longer texts are better."""

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [float(len(answer.response)) for answer in answers]


def rolled(model: CausalLM) -> tuple[Batch, dict[str, float], Fake]:
    """A step of two prompts and two pairs by turns."""
    rows = Rows()
    for place in range(4):
        rows.rows.append(Row(f"f:{place}", ""))
        one, other = Tokens(place, [5, 6, 7], [0, 1, 1]), Tokens(place, [5, 8], [0, 1])
        rows.tokens.append(Pair(place, one, other) if place % 2 else Tokens(place, [9] * (place + 1), []))
    generator = Fake(model, Foreign(n=2), 3)
    batch, told = Rollouts(rows, Order(4, 4, 0, False), generator, Known(), GSPOSelfPlay(), 0).batch(1, Clock())
    return batch, told, generator


def test_each_tokens_log_probability_stands_where_the_token_does(tiny: Callable[..., CausalLM]) -> None:
    batch, told, generator = rolled(tiny())
    assert generator.awoken == 1 and told["timing_s/update_weights"] == 0.5
    answer = (batch.mask > 0) & (batch.preference == 0)[:, None]
    expected = torch.where(answer, -batch.tokens / 8, 0.0)
    assert torch.equal(batch.rollout, expected.to(batch.rollout.dtype))
    assert answer.sum() == 2 * (2 + 3) and (batch.preference != 0).sum() == 4


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_policys_update_notes_how_far_they_are_apart(
    epochs: int, tiny: Callable[..., CausalLM], jobs: ModuleType
) -> None:
    """On-policy by the log-probabilities that the update computes anyway, otherwise by those before it: equal ones."""
    batch, _, _ = rolled(tiny())
    model, seen = jobs.small("float64"), Mismatch(2.0)
    policy = jobs.policy_of(model, GSPOSelfPlay(), limits=Limits(3), reference=jobs.small("float64", 1))
    policy.mismatch = seen
    made = policy.annotate(batch, Clock(), on_policy=epochs == 1)
    made, _ = policy.algorithm.prepare(made, {})
    for _ in range(epochs):
        policy.update(made, 1)
    found = seen.metrics(CPU)
    old = policy_logp(jobs, batch)
    answer = (batch.mask > 0) & (batch.preference == 0)[:, None]
    assert found["rollout_corr/kl"] == pytest.approx((batch.rollout - old)[answer].mean().item())
    assert found["training/rollout_probs_diff_max"] == pytest.approx(
        (old.exp() - batch.rollout.exp())[answer].abs().max().item()
    )


def policy_logp(jobs: ModuleType, batch: Batch) -> torch.Tensor:
    policy: Policy = jobs.policy_of(jobs.small("float64"), GSPOSelfPlay(), limits=Limits(8))
    with torch.no_grad():
        return policy._compute_rows(policy.model, batch, policy._parts(batch), policy._logp)


def test_a_row_that_only_fills_an_empty_part_is_not_noted(tiny: Callable[..., CausalLM]) -> None:
    batch, _, _ = rolled(tiny())
    seen = Mismatch(None)
    seen.record_and_weight(_masked_row(replace(batch, old=batch.rollout - 1)))
    assert seen.metrics(CPU) == {}


def test_weights_that_moved_are_counted_and_those_that_stayed_are_not(jobs: ModuleType) -> None:
    """By it a writer sees whether its copy is old."""
    policy: Any = jobs.policy_of(jobs.small("float64"), jobs.ALGORITHMS["sft"], limits=Limits(8))
    trained = policy.actor
    for weight in trained.weights:
        weight.grad = torch.ones_like(weight)
    trained.optimizer_step(1, {"loss": torch.tensor(False)})
    assert trained.steps_taken == 0
    for weight in trained.weights:
        weight.grad = torch.ones_like(weight)
    trained.optimizer_step(1, {"loss": torch.tensor(True)})
    assert trained.steps_taken == 1
