"""Against TRL 1.16, in float64: the same value and the same gradient. docs/algorithms.md names where we differ.

Its losses are methods of trainers; here they are called with a stand-in that holds the few attributes they read.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import defaultdict
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")
import torch
from compared import CASES, agree, drawn, mean_loss
from trl.rewards import get_soft_overlong_punishment
from trl.trainer import dpo_trainer, grpo_trainer

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.dpo import DPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.spec.algorithm import Batch, Output

every_case = pytest.mark.parametrize(("seed", "shape", "holes"), CASES)
MODES = {
    "grpo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
}


# ---- its losses, with stand-ins for the trainers that they read


def _accelerator() -> Any:
    return SimpleNamespace(
        device="cpu", num_processes=1, process_index=0, gather=lambda x: x, gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
    )  # fmt: skip


def trl_grpo(logp: Any, batch: Batch, *, delta: float | None = None, **settings: Any) -> Any:
    """The loss of `GRPOTrainer` at log-probabilities [B, T]; keywords are its settings."""
    held = {"use_bias_correction_kl": False, "delta": delta, "steps_per_generation": 1}
    defaults = {
        "loss_type": "grpo", "importance_sampling_level": "token", "beta": 0.0, "epsilon_low": 0.2,
        "epsilon_high": 0.2, "max_completion_length": logp.shape[1],
    }  # fmt: skip
    trainer = SimpleNamespace(
        **(defaults | settings), args=SimpleNamespace(**held),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False,
        model=SimpleNamespace(training=True), current_gradient_accumulation_steps=1,
        accelerator=_accelerator(), _entropy_bonus_enabled=False, entropy_coef=0.0,
        use_adaptive_entropy=False, _metrics={"train": defaultdict(list)},
    )  # fmt: skip
    trainer.accelerator.sync_gradients = False
    inputs = {
        "prompt_ids": batch.tokens[:, :0], "prompt_mask": batch.tokens[:, :0], "completion_ids": batch.tokens,
        "completion_mask": batch.mask, "advantages": batch.advantage, "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.reference, "num_items_in_batch": batch.mask.sum(),
    }  # fmt: skip
    return grpo_trainer.GRPOTrainer._compute_loss(trainer, None, inputs)


@cache
def advantage_statements() -> Any:
    """Advantages are made in the middle of a method that samples; those statements are taken out of it."""
    source = textwrap.dedent(inspect.getsource(grpo_trainer.GRPOTrainer._generate_and_score_completions))
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    texts = [ast.unparse(statement) for statement in body]
    (first,) = (i for i, text in enumerate(texts) if text.startswith("if self.multi_objective_aggregation =="))
    (last,) = (i for i, text in enumerate(texts) if text.startswith("advantages = torch.nan_to_num("))
    return compile("\n".join(texts[first : last + 1]), "trl", "exec")


def trl_advantage(reward: Any, answers: int, scale: str) -> Any:
    """[B] advantages of groups that stand together."""
    trainer = SimpleNamespace(
        multi_objective_aggregation="sum_then_normalize", scale_rewards=scale, loss_type="grpo",
        reward_weights=torch.ones(1, dtype=reward.dtype),
    )  # fmt: skip
    names = {
        "self": trainer, "rewards_per_func": reward[:, None], "num_generations": answers, "device": "cpu",
        "unscorable_mask": torch.zeros(len(reward), dtype=torch.bool),
    }  # fmt: skip
    exec(advantage_statements(), vars(grpo_trainer) | names, names)
    return names["advantages"]


def trl_dpo(logp: Any, batch: Batch, loss_type: str, beta: float, label_smoothing: float = 0.0) -> Any:
    """The loss of `DPOTrainer` at log-probabilities [B, T], and what it reports; keywords are its settings."""
    # its rows: all chosen answers, then the rejected ones in the same order; its position t predicts token t + 1
    order = torch.argsort(batch.group + (batch.preference < 0) * (batch.group.max() + 1))
    logp, mask, reference = (torch.nn.functional.pad(x[order], (1, 0)) for x in (logp, batch.mask, batch.reference))
    reference_of = ((reference * mask).sum(1)).chunk(2)
    shifted = (logp * mask)[:, 1:]
    outputs = SimpleNamespace(
        log_probs=shifted, entropy=0 * shifted, mean_logits=0 * shifted, is_top1=shifted.detach() > 1
    )
    metrics: dict[str, list[float]] = defaultdict(list)
    trainer = SimpleNamespace(
        loss_types=[loss_type], loss_weights=[1.0], beta=beta, label_smoothing=label_smoothing,
        model=SimpleNamespace(training=True), accelerator=_accelerator(), aux_loss_enabled=False, ld_alpha=None,
        precompute_ref_logps=True, f_divergence_type="reverse_kl", use_weighting=False, _metrics={"train": metrics},
        _total_train_tokens=0, _tp_size=1,
    )  # fmt: skip
    inputs = {
        "input_ids": mask.long(), "attention_mask": mask, "completion_mask": mask,
        "ref_chosen_logps": reference_of[0], "ref_rejected_logps": reference_of[1],
    }  # fmt: skip
    found = dpo_trainer.DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, return_outputs=False)
    return found, {name: values[-1] for name, values in metrics.items() if isinstance(values, list)}


# ---- sampled answers


@every_case
@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize("delta", [None, 3.0])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_grpo_loss(seed, shape, holes, kind, delta, beta) -> None:
    logp, batch = drawn(seed, shape, holes)
    wide = replace(batch, old=batch.old - 0.5 * batch.mask)  # ratios that a dual clip at 3 reaches
    algorithm = GRPO(
        clip_ratio_high=0.28,
        clip_ratio_c=delta,
        kl_loss_coef=beta,
        loss_agg_mode=MODES[kind],
        loss_scale_factor=40.0 if "norm" in MODES[kind] else None,
    )
    options = {"loss_type": kind, "delta": delta, "beta": beta, "epsilon_high": 0.28, "max_completion_length": 40}
    agree(lambda at: mean_loss(algorithm, at, wide), lambda at: trl_grpo(at, wide, **options), at=logp)


@every_case
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_gspo_loss(seed, shape, holes, beta) -> None:
    logp, batch = drawn(seed, shape, holes)
    near = replace(batch, old=logp + 0.01 * (batch.old - logp))  # some answers inside the clip, some outside
    near = replace(near, advantage=torch.randn(len(batch), 1, dtype=torch.float64) * batch.mask)
    options = {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
    algorithm = GSPO(kl_loss_coef=beta)
    agree(lambda at: mean_loss(algorithm, at, near), lambda at: trl_grpo(at, near, beta=beta, **options), at=logp)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [True, False])
def test_grpo_advantage(monkeypatch, seed, scale) -> None:
    """With TRL's 1e-4 beside the std; ours is 1e-6.

    It makes n / (n - 1) in float32, which holds 5 / 4 exactly.
    """
    monkeypatch.setattr("launcher.algorithms.ops.EPSILON", 1e-4)
    _, batch = drawn(seed, (6, 5, 9))
    batch = batch.rows(batch.group.argsort())  # TRL's groups stand together
    made, _ = GRPO(norm_adv_by_std_in_grpo=scale).prepare(batch, {})
    found = trl_advantage(batch.reward, 5, scale="group" if scale else "none")
    agree(made.advantage, found[:, None] * batch.mask)


@pytest.mark.parametrize(("longest", "buffer"), [(20480, 4096), (100, 20), (7, 7), (16, 1)])
def test_overlong(longest, buffer) -> None:
    lengths = [1, 5, 7, 8, 15, 16, 79, 80, 81, 90, 100, 101, 16384, 16385, 20479, 20480, 20481, 30000]
    mask = (torch.arange(30000) < torch.tensor(lengths)[:, None]).double()
    batch = Batch(mask, torch.tensor(lengths), mask, reward=0 * mask[:, 0])
    ours = DAPO(max_response_length=longest, overlong_buffer_len=buffer).shape_reward(batch)
    theirs = get_soft_overlong_punishment(longest, buffer)(completion_ids=[[0] * n for n in lengths])
    agree(ours, torch.tensor(theirs, dtype=torch.float64))


# ---- pairs


def paired(seed: int, shape: tuple[int, int, int], holes: bool = False) -> tuple[torch.Tensor, Batch]:
    """Pairs in no order; `reference` far enough from the policy that some margins are negative."""
    logp, batch = drawn(seed, (shape[0], 2, shape[2]), holes)
    preference = torch.tensor([1, -1]).repeat_interleave(shape[0])
    order = torch.randperm(len(batch))
    return logp[order], replace(batch, preference=preference).rows(order)


@every_case
@pytest.mark.parametrize("ours", [{}, {"loss_type": "hinge"}, {"loss_type": "ipo", "length_normalised": True}], ids=str)
def test_dpo_loss(seed, shape, holes, ours) -> None:
    logp, batch = paired(seed, shape, holes)
    algorithm = DPO(beta=0.3, **ours)
    agree(
        lambda at: mean_loss(algorithm, at, batch),
        lambda at: trl_dpo(at, batch, loss_type=algorithm.loss_type, beta=0.3)[0],
        at=logp,
    )


@pytest.mark.parametrize("seed", range(3))
def test_what_dpo_reports(seed) -> None:
    logp, batch = paired(seed, (16, 2, 24))
    _, seen = DPO(beta=0.3).loss(Output(logp), batch)
    _, metrics = trl_dpo(logp, batch, loss_type="sigmoid", beta=0.3)
    for name in ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"):
        agree(seen[name].total / seen[name].count, metrics[name])
