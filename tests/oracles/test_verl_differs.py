"""Where verl 0.9.1 says something else than we do. Each test names the difference and asserts both numbers."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl")
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo import core_algos as verl
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.workers.config import FSDPActorConfig
from verl.workers.reward_manager.dapo import DAPORewardManager

from launcher.algorithms import ops
from launcher.algorithms.dapo import DAPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.ppo import COEFFICIENT, PPO
from launcher.spec.algorithm import Batch, Output


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def actor(**told: Any) -> FSDPActorConfig:
    return FSDPActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **told)


def one_token(log_ratio: float, advantage: float) -> tuple[torch.Tensor, Batch]:
    new, mask = f64(log_ratio)[None].requires_grad_(), f64(1)[None]
    return new, Batch(mask, f64(1), mask, old=0 * mask, reference=0 * mask, advantage=advantage * mask)


def theirs(new: torch.Tensor, batch: Batch, loss: Any = verl.compute_policy_loss_vanilla, **told: Any) -> Any:
    return loss(batch.old, new, batch.advantage, batch.mask, "token-mean", actor(**told))[0]


def advantages(reward: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[B] ours and verl's, of one group of answers with one token."""
    mask, group = torch.ones(len(reward), 1), torch.zeros(len(reward), dtype=torch.long)
    batch = Batch(mask, mask[:, 0], mask, group=group, reward=reward)
    found, _ = verl.compute_grpo_outcome_advantage(reward[:, None].clone(), mask, group.numpy())
    return GRPO().prepare(batch, {})[0].advantage[:, 0], found[:, 0]


# ---- what verl cuts off


def test_k3_is_cut_at_10_and_pulls_no_more(deviates) -> None:
    ours, other = f64(-25.0).requires_grad_(), f64(-25.0).requires_grad_()
    mine, found = ops.k3(ours, f64(0)), verl.kl_penalty(other, f64(0), "k3")
    deviates((mine, math.exp(25) - 26), (found, 10.0))
    mine.sum().backward(), found.sum().backward()
    deviates((ours.grad, 1 - math.exp(25)), (other.grad, 0.0))


def test_log_ratios_are_cut_at_20_and_gspos_at_10(deviates) -> None:
    new, batch = one_token(21.0, -1.0)
    mine, found = GRPO().loss(Output(new), batch)[0], theirs(new, batch, clip_ratio_c=1e12)
    deviates((mine, math.exp(21)), (found, math.exp(20)))
    new, batch = one_token(12.0, -1.0)
    mine, found = GSPO().loss(Output(new), batch)[0], theirs(new, batch, verl.compute_policy_loss_gspo)
    deviates((mine, math.exp(12)), (found, math.exp(10)))
    pulls = [torch.autograd.grad(x, new)[0] for x in (mine, found)]
    deviates((pulls[0], math.exp(12)), (pulls[1], 0.0))


# ---- what verl sets by default


def test_defaults(deviates) -> None:
    """The dual clip is on, at 3; GSPO's clip is GRPO's 0.2; and clip_ratio alone is not heard."""
    new, batch = one_token(2.0, -1.0)
    deviates((GRPO().loss(Output(new), batch)[0], math.exp(2)), (theirs(new, batch), 3.0))
    assert PPO().loss(Output(new), batch)[0].item() == 3.0  # ours follows verl
    new, batch = one_token(math.log(1.1), 1.0)
    deviates((GSPO().loss(Output(new), batch)[0], -1.0004), (theirs(new, batch, verl.compute_policy_loss_gspo), -1.1))
    ours = GRPO(clip_ratio_low=0.05, clip_ratio_high=0.05).loss(Output(new), batch)[0]
    deviates((ours, -1.05), (theirs(new, batch, clip_ratio=0.05), -1.1))


# ---- groups


@pytest.mark.parametrize(("reward", "off"), [(0.7, 2.0**-24), (1000.1, 2.0**-14)])
def test_equal_rewards_leave_rounding(deviates, reward, off) -> None:
    """The float32 mean is `off` by its last bit; so the std is sqrt(7 / 6) off, and the one is divided by the other."""
    ours, found = advantages(torch.full((7,), reward))
    left = off / (math.sqrt(7 / 6) * off + 1e-6)  # 0.056 and 0.912
    deviates((ours.abs().max(), 0.0), (found.abs().max(), left))


def test_an_answer_alone_keeps_its_raw_reward(deviates) -> None:
    ours, found = advantages(f64(5.0))
    deviates((ours, 0.0), (found, 5 / (1 + 1e-6)))


# ---- counts and masks


def test_a_micro_batch_without_tokens_is_nan(deviates) -> None:
    nothing = torch.zeros(2, 3, dtype=torch.float64)
    batch = Batch(nothing, f64(3, 3), nothing, old=nothing, advantage=nothing)
    ours = GRPO(loss_agg_mode="token-mean").loss(Output(nothing), batch)[0]
    found = theirs(nothing, batch)
    assert math.isnan(found)
    deviates((ours, 0.0), (found, math.nan))


def test_a_reward_on_a_tools_token_is_lost(deviates) -> None:
    """verl puts the score at the last token, whoever wrote it; ours at the last one that the policy wrote."""
    mask, value = f64(1, 1, 0)[None], f64(0, 0, 0)[None]
    batch = Batch(mask, f64(3), mask, reward=f64(1), value=value)
    ours = PPO(kl_coef=0.0).prepare(batch, {})[0].target
    _, found = verl.compute_gae_advantage_return(f64(0, 0, 1)[None], value, mask, 1.0, 1.0)
    deviates((ours[0, 0], 1.0), (found[0, 0], 0.0))


def priced(controller: Any, mask: torch.Tensor, kl: float) -> dict[str, float]:
    held = {"response_mask": mask, "token_level_scores": 0 * mask, "old_log_probs": kl * mask, "ref_log_prob": 0 * mask}
    return apply_kl_penalty(SimpleNamespace(batch=TensorDict(held, batch_size=[len(mask)])), controller)[1]


def ours_priced(algorithm: PPO, mask: torch.Tensor, kl: float, told: Any) -> Any:
    batch = Batch(mask, mask.sum(1), mask, reward=0 * mask[:, 0], value=0 * mask, old=kl * mask, reference=0 * mask)
    return algorithm.prepare(batch, told)[1]


def test_the_price_moves_by_the_batch_it_is_for(deviates) -> None:
    """verl counts the answers that the KL was seen in, ours those that the new price is for; equal in equal steps."""
    many, few = torch.ones(100, 2, dtype=torch.float64), torch.ones(50, 2, dtype=torch.float64)
    algorithm = PPO(kl_coef=1.0, kl_ctrl="adaptive", horizon=1000)
    told = ours_priced(algorithm, few, 0.5, ours_priced(algorithm, many, 0.5, {}))
    controller = verl.AdaptiveKLController(1.0, 0.1, 1000)
    priced(controller, many, 0.5)
    found = priced(controller, few, 0.5)[COEFFICIENT]
    # 1 + 0.2 x 50 / 1000 and 1 + 0.2 x 100 / 1000
    deviates((told[COEFFICIENT], 1.01), (found, 1.02))


# ---- DAPO's price of length


def length_price(tokens: int, longest: int, buffer: int) -> float:
    """What verl's reward manager adds to a score of 0."""
    config = SimpleNamespace(enable=True, len=buffer, penalty_factor=1.0, log=False)
    tokenizer = SimpleNamespace(decode=lambda *_, **__: "", eos_token="</s>")
    manager = DAPORewardManager(
        tokenizer, 0, compute_score=lambda **_: 0.0, max_resp_len=longest, overlong_buffer_cfg=config
    )
    one = torch.ones(1, 1, dtype=torch.long)
    tensors = {"prompts": one, "responses": one.expand(1, tokens), "attention_mask": one.expand(1, tokens + 1)}
    more = {"reward_model": [{"ground_truth": ""}], "data_source": ["x"], "extra_info": [{}]}
    data = DataProto.from_dict(tensors, {name: np.array(value, dtype=object) for name, value in more.items()})
    return manager(data).sum().item()


def test_the_price_of_length_has_no_floor(deviates) -> None:
    mask = torch.ones(1, 30000, dtype=torch.float64)
    batch = Batch(mask, f64(30000), mask, reward=f64(0))
    ours = DAPO(max_response_length=20480, overlong_buffer_len=4096).shape_reward(batch)
    deviates((ours, -1.0), (length_price(30000, 20480, 4096), -(30000 - 16384) / 4096))
