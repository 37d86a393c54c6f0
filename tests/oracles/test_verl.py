"""Against verl 0.9.1, in float64: the same value and gradient. docs/algorithms.md names where we differ.

verl adds 1e-8 to every count that it divides by. Where answers are short enough for this to reach 1e-9, `undone`
takes it back out.
"""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")
import torch
from compared import CASES, agree, drawn, mean_loss
from tensordict import TensorDict
from verl.trainer.ppo import core_algos as verl
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.utils.reward_score import gsm8k, math_reward
from verl.workers.config import FSDPActorConfig

from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.ppo import COEFFICIENT, PENALTY, PPO
from launcher.core.boxed import boxed
from launcher.rewards.gsm8k import GSM8K
from launcher.spec.algorithm import Batch, Output
from launcher.spec.reward import Answer

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
every_case = pytest.mark.parametrize(("seed", "shape", "holes"), CASES)
NO_DUAL_CLIP = 1e9
"""verl has no way to switch it off."""


def actor(low: float = 0.2, high: float = 0.28, most: float = NO_DUAL_CLIP, **more: Any) -> FSDPActorConfig:
    made = FSDPActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=most,
    )  # fmt: skip
    made.global_batch_info.update(more)
    return made


def undone(mode: str, mask: torch.Tensor) -> torch.Tensor:
    """[B, 1] what a token must be multiplied by, so that verl's (n + 1e-8) becomes n."""
    n = mask.sum(-1, keepdim=True).clamp(min=1)
    return (n + 1e-8) / n if mode == "seq-mean-token-mean" else torch.ones_like(n)


def scored(batch: Batch) -> torch.Tensor:
    """[B, T] each answer's reward at its last token."""
    last = batch.mask.cumsum(-1) == batch.mask.sum(-1, keepdim=True)
    return batch.mask * last * batch.reward[:, None]


# ---- advantages


@every_case
@pytest.mark.parametrize("scale", [True, False])
def test_grpo_advantage(seed, shape, holes, scale) -> None:
    _, batch = drawn(seed, shape, holes, empty=True)
    made, _ = GRPO(norm_adv_by_std_in_grpo=scale).prepare(batch, {})
    rewards = torch.nn.functional.pad(batch.reward[:, None], (0, batch.mask.shape[1] - 1))
    found, _ = verl.compute_grpo_outcome_advantage(
        rewards, batch.mask, batch.group.numpy(), norm_adv_by_std_in_grpo=scale
    )
    agree(made.advantage, found)


# ---- losses


@every_case
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("most", [None, 3.0])
def test_policy_loss(seed, shape, holes, mode, most) -> None:
    logp, batch = drawn(seed, shape, holes, empty=seed == 1)
    wide = replace(batch, old=batch.old - 0.5 * batch.mask)  # ratios that a dual clip at 3 reaches
    options = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": most, "loss_agg_mode": mode}
    config = actor(most=most or NO_DUAL_CLIP, loss_scale_factor=40)

    def theirs(at: torch.Tensor, agg: str = mode) -> torch.Tensor:
        lifted = wide.advantage * undone(agg, wide.mask)
        return verl.compute_policy_loss_vanilla(wide.old, at, lifted, wide.mask, agg, config)[0]

    options["loss_scale_factor"] = 40.0 if "norm" in mode else None
    for algorithm in (GRPO(**options), PPO(**options)):
        agree(lambda at, algorithm=algorithm: mean_loss(algorithm, at, wide), theirs, at=logp)


@every_case
def test_gspo(seed, shape, holes) -> None:
    logp, batch = drawn(seed, shape, holes, empty=seed == 1)
    near = replace(batch, old=logp + 0.01 * (batch.old - logp))  # some answers inside the clip, some outside
    config, mode = actor(3e-4, 4e-4), "seq-mean-token-mean"

    def theirs(at: torch.Tensor) -> torch.Tensor:
        lifted = near.advantage * undone(mode, near.mask)
        return verl.compute_policy_loss_gspo(near.old, at, lifted, near.mask, mode, config)[0]

    agree(lambda at: mean_loss(GSPO(), at, near), theirs, at=logp)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("ours", "peer"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")])
def test_the_whole_actor_loss(mode, ours, peer) -> None:
    """Clip, KL and entropy bonus together, each added up in the same way."""
    logp, batch = drawn(3, (3, 8, 24), holes=True)
    algorithm = GRPO(
        clip_ratio_high=0.28, kl_loss_coef=0.04, kl_loss_type=ours, entropy_coeff=0.02, loss_agg_mode=mode,
        loss_scale_factor=40.0 if "norm" in mode else None,
    )  # fmt: skip

    def mine(at: torch.Tensor) -> torch.Tensor:
        # a square stands for an entropy: it depends on the policy
        return algorithm.loss(Output(at, at.square()), batch)[0] / algorithm.units(batch)

    def theirs(at: torch.Tensor) -> torch.Tensor:
        back = undone(mode, batch.mask)
        policy = verl.compute_policy_loss_vanilla(
            batch.old, at, batch.advantage * back, batch.mask, mode, actor(loss_scale_factor=40)
        )[0]
        kl = verl.kl_penalty(at, batch.reference, peer)
        added = [verl.agg_loss(x * back, batch.mask, mode, loss_scale_factor=40) for x in (kl, at.square())]
        return policy + 0.04 * added[0] - 0.02 * added[1]

    agree(mine, theirs, at=logp)


@every_case
@pytest.mark.parametrize("clip", [0.2, 0.5])
def test_value_loss(seed, shape, holes, clip) -> None:
    x, batch = drawn(seed, shape, holes)
    batch = replace(batch, target=batch.advantage + batch.value)
    agree(
        lambda at: PPO(cliprange_value=clip).value_loss(at, batch)[0] / batch.mask.sum(),
        lambda at: verl.compute_value_loss(at, batch.target, batch.value, batch.mask, clip)[0],
        at=batch.value + 0.5 * x,
    )


# ---- distance from the reference


@pytest.mark.parametrize(("ours", "peer"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")])
@pytest.mark.parametrize("control", ["fixed", "adaptive"])
@pytest.mark.parametrize("holes", [False, True])
def test_ppo_over_three_steps(ours, peer, control, holes) -> None:
    """KL in the reward, the price that follows it, GAE and whitening, one after the other."""
    algorithm = PPO(kl_coef=0.3, kl_penalty=ours, kl_ctrl=control, horizon=500, target_kl=0.04, gamma=0.99, lam=0.95)
    controller, state = verl.AdaptiveKLController(0.3, 0.04, 500), {}
    if control == "fixed":
        controller = verl.FixedKLController(0.3)
    for seed in range(3):
        _, batch = drawn(seed, (8, 8, 48), holes, shortest=32)  # see above: verl's 1e-8
        made, state = algorithm.prepare(batch, state)
        held = {
            "response_mask": batch.mask, "token_level_scores": scored(batch),
            "old_log_probs": batch.old, "ref_log_prob": batch.reference,
        }  # fmt: skip
        data = SimpleNamespace(batch=TensorDict(held, batch_size=[len(batch)]))
        data, metrics = apply_kl_penalty(data, controller, peer)
        priced = data.batch["token_level_rewards"]
        advantage, target = verl.compute_gae_advantage_return(priced, batch.value, batch.mask, 0.99, 0.95)
        agree(made.advantage, advantage * batch.mask)
        agree(made.target, target * batch.mask)
        agree(state[PENALTY], metrics[PENALTY])
        agree(state[COEFFICIENT], metrics[COEFFICIENT])


# ---- rules: the same verdict wherever both mean the same


NUMBERS = ["18", "-3", "1000", "1,000", "3.5", "0", "7"]
TAILS = ["", ".", " dollars", "\nDone."]


def responses(count: int) -> list[tuple[str, str]]:
    draw = random.Random(0)
    found = []
    for _ in range(count):
        marks = [
            f"{draw.choice(['so', 'I think', '9 * 2'])}\n#### {draw.choice(NUMBERS)}" for _ in range(draw.randint(0, 2))
        ]
        found.append(("\n".join(marks) + draw.choice(TAILS), draw.choice(["18", "-3", "1000", "7"])))
    return found


def test_gsm8k_says_what_verl_says() -> None:
    rewards = {score for response, truth in responses(500)
               for score in [(GSM8K().score([Answer(response, truth)])[0], float(gsm8k.compute_score(response, truth)))]
               if not response.endswith(".")}  # fmt: skip
    assert rewards == {(0.0, 0.0), (1.0, 1.0)}


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{1}",
        r"so \boxed{\frac{1}{2}} and",
        r"\boxed{1} then \boxed{x^{2}}",
        r"\fbox{4}",
        "none",
        r"\boxed{1} \boxed{2",
    ],
)
def test_the_last_box_is_verls(response: str) -> None:
    text = math_reward.last_boxed_only_string(response)
    theirs = None if text is None else text[text.index("{") + 1 : -1]
    assert boxed(response) == theirs
