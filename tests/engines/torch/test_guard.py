"""Whatever is not finite, wherever it comes from: nothing changes, it is told, and the next good step is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.sft import SFT
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.measure import Clock
from launcher.engines.torch.train.policy import Policy, Update
from launcher.spec.algorithm import Batch, Loss, Output

BAD = (math.nan, math.inf, -math.inf)


def state(policy: Policy) -> dict[str, Tensor]:
    """Every weight and all that the optimizers remember."""
    found = {}
    for name, trained in (("actor", policy.actor), ("critic", policy.critic)):
        if trained is None:
            continue
        found |= {f"{name}.{key}": weight.detach().clone() for key, weight in trained.network.named_parameters()}
        for number, held in enumerate(trained.optimizer.state.values()):
            found |= {f"{name}.{number}.{key}": value.clone() for key, value in held.items()}
    return found


def check_untouched(policy: Policy, before: dict[str, Tensor]) -> None:
    after = state(policy)
    assert after.keys() == before.keys()
    for name, value in before.items():  # as bits: a weight that is NaN already must stay that NaN
        assert value.numpy().tobytes() == after[name].numpy().tobytes(), name
    for trained in (policy.actor, policy.critic):
        assert trained is None or all(weight.grad is None for weight in trained.weights)


def prepared(policy: Policy, jobs: ModuleType, step: int = 1) -> Batch:
    batch = policy.annotate(jobs.batch_for(policy.algorithm, policy.model, step), Clock(), on_policy=False)
    return policy.algorithm.prepare(batch, {})[0]


def after_a_good_step(kind: str, jobs: ModuleType) -> Policy:
    """So that the optimizer has something to lose."""
    policy: Policy = jobs.policy_for(kind, "float64", Limits(5))
    assert policy.update(prepared(policy, jobs), 1).nonfinite_source == ""
    return policy


def spoil(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """One token of the last row that has any."""
    row = int(mask.any(1).nonzero()[-1])
    return x.index_put((torch.tensor(row), mask[row].nonzero()[-1, 0]), x.new_tensor(value))


FIELDS = {"reference": "reference", "old": "old log-probability", "value": "value", "advantage": "advantage"}


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize(
    ("kind", "field"),
    [("grpo", "reference"), ("dpo", "reference"), ("grpo", "old"), ("ppo", "value"), ("ppo", "advantage")],
)
def test_what_stands_before_the_update_is_named(kind: str, field: str, value: float, jobs: ModuleType) -> None:
    policy = after_a_good_step(kind, jobs)
    batch, before = prepared(policy, jobs, 2), state(policy)
    bad = replace(batch, **{field: spoil(getattr(batch, field), batch.mask > 0, value)})
    found = policy.update(bad, 2)
    assert found.nonfinite_source == FIELDS[field]
    skipped = {name: x for name, x in found.metrics.items() if name.endswith("skipped_nonfinite")}
    assert skipped and all(x == 1.0 for x in skipped.values())
    check_untouched(policy, before)
    check_the_next_is_taken(policy, jobs)


def check_the_next_is_taken(policy: Policy, jobs: ModuleType) -> None:
    before = state(policy)
    assert policy.update(prepared(policy, jobs, 3), 3).nonfinite_source == ""
    assert any(not torch.equal(value, state(policy)[name]) for name, value in before.items())
    assert all(value.isfinite().all() for value in state(policy).values())


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("kind", ["sft", "ppo", "grpo", "gspo_selfplay"])
def test_weights_that_are_not_finite_are_found_in_the_log_probabilities(
    kind: str, value: float, jobs: ModuleType
) -> None:
    policy = after_a_good_step(kind, jobs)
    batch = prepared(policy, jobs, 2)
    policy.model.base.get_output_embeddings().weight.data[7, 3] = value
    before = state(policy)
    assert policy.update(batch, 2).nonfinite_source == "log-probability"
    if kind != "ppo":  # its critic is sound and goes on
        check_untouched(policy, before)


@pytest.mark.parametrize("value", BAD)
def test_a_critic_that_is_not_finite_is_named(value: float, jobs: ModuleType) -> None:
    policy = after_a_good_step("ppo", jobs)
    batch = prepared(policy, jobs, 2)
    policy.critic.network.head.bias.data[0] = value
    found = policy.update(batch, 2)
    assert found.nonfinite_source.startswith("critic's ")
    assert found.metrics["actor/skipped_nonfinite"] == 0.0
    assert found.metrics["critic/skipped_nonfinite"] == 1.0


@dataclass(frozen=True)
class Stub(SFT):
    """Fake: a loss, or a gradient, that is not finite where the answers are."""

    of: str = "loss"
    value: float = math.nan

    def loss(self, new: Output, batch: Batch) -> Loss:
        nll, seen = super().loss(new, batch)
        if self.of == "loss":
            return nll + self.value, seen
        nothing = (new.logp * batch.mask).sum() * 0
        return nll + nothing.square().sqrt(), seen  # 0, and its slope 0 / 0


@pytest.mark.parametrize(
    ("of", "value"), [("loss", math.nan), ("loss", math.inf), ("loss", -math.inf), ("gradient", 0.0)]
)
def test_a_loss_and_a_gradient_that_are_not_finite_are_named(of: str, value: float, jobs: ModuleType) -> None:
    policy = after_a_good_step("sft", jobs)
    good, policy.algorithm = policy.algorithm, Stub(of=of, value=value)
    before = state(policy)
    found: Update = policy.update(jobs.batch_for(good, policy.model, 2), 2)
    assert found.nonfinite_source == of
    check_untouched(policy, before)
    policy.algorithm = good
    check_the_next_is_taken(policy, jobs)


def test_the_first_origin_is_named_and_not_what_follows_from_it(jobs: ModuleType) -> None:
    """A reference that is NaN makes loss and gradient NaN as well."""
    policy = after_a_good_step("grpo", jobs)
    batch = prepared(policy, jobs, 2)
    bad = replace(
        batch, reference=spoil(batch.reference, batch.mask > 0, math.nan),
        advantage=spoil(batch.advantage, batch.mask > 0, math.inf),
    )  # fmt: skip
    assert policy.update(bad, 2).nonfinite_source == "reference"


def test_a_huge_but_finite_gradient_is_taken(jobs: ModuleType) -> None:
    policy = after_a_good_step("grpo", jobs)
    batch = prepared(policy, jobs, 2)
    found = policy.update(replace(batch, advantage=batch.advantage * 1e12), 2)
    assert found.nonfinite_source == "" and found.metrics["actor/grad_norm"] > 1e9
    assert all(value.isfinite().all() for value in state(policy).values())


@pytest.mark.parametrize("kind", ["dapo", "grpo", "sft", "dpo", "ppo"])
def test_nothing_to_learn_moves_nothing_and_is_not_bad(kind: str, jobs: ModuleType) -> None:
    """Weight decay and momentum would move the weights even where the gradient is 0."""
    policy = after_a_good_step(kind, jobs)
    batch = prepared(policy, jobs, 2)
    nothing: dict[str, Any] = {"mask": batch.mask * 0}
    if batch.preference is not None:
        nothing["preference"] = batch.preference * 0
    before = state(policy)
    found = policy.update(replace(batch, **nothing), 2)
    assert found.nonfinite_source == ""
    assert all(math.isfinite(value) for value in found.metrics.values())
    check_untouched(policy, before)


def test_a_step_whose_groups_are_all_left_out_moves_nothing(jobs: ModuleType) -> None:
    policy = jobs.policy_of(jobs.small("float64"), DAPO(max_num_gen_batches=1))
    batch = jobs.rollouts_of(policy.model, 1)
    made, told = policy.algorithm.prepare(replace(batch, reward=batch.reward * 0 + 1), {})
    assert told["train/groups_kept"] == 0.0 and told["train/trainable_token_share"] == 0.0
    before = state(policy)
    assert policy.update(made, 1).nonfinite_source == ""
    check_untouched(policy, before)


@pytest.mark.parametrize("limits", [Limits(1), Limits(16), Limits(1, 30)], ids=str)
def test_it_does_not_matter_in_which_micro_batch_it_stands(limits: Limits, jobs: ModuleType) -> None:
    policy: Policy = jobs.policy_for("grpo", "float64", limits)
    policy.update(prepared(policy, jobs), 1)
    batch, before = prepared(policy, jobs, 2), state(policy)
    bad = replace(batch, reference=spoil(batch.reference, batch.mask > 0, math.nan))
    assert policy.update(bad, 2).nonfinite_source == "reference"
    check_untouched(policy, before)
