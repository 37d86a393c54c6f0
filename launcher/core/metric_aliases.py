"""What other projects call our metrics: verl (also its old names), TRL, OpenRLHF, NeMo-RL, prime-rl, ms-swift, slime,
SkyRL, DeepSpeed-Chat, and the documents behind the requirements (S1, S2, S4).

Our names are those of the catalogue (`core/metrics.py`), so `label`, `better` and `metric` know what `canonical`
returns. Names are compared without case, and blanks count as underscores. A spelling stands for one metric. Where a log
has several spellings of a metric on one line, the one that stands first in `spellings` is the metric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

ALIASES: Mapping[str, tuple[str, ...]] = {
    "critic/score/mean": (
        "reward", "reward_mean", "mean_reward", "reward/mean", "reward/all/mean", "avg_reward", "average_reward",
        "objective/scores", "env/all/reward/total", "rm", "rollout/raw_reward", "reward/avg_raw_reward",
        "average_reward_score",
    ),
    "critic/rewards/mean": ("train/core/reward/mean", "train-core/reward/mean", "objective/rlhf_reward"),
    "critic/score/std": ("reward_std", "std_reward", "reward/std"),
    "critic/score/max": ("max_reward", "reward/max"),
    "critic/score/min": ("min_reward", "reward/min"),
    "critic/advantages/mean": ("adv_mean", "mean_advantage", "advantage_mean", "advantages/mean"),
    "critic/advantages/max": ("advantages/max", "adv_max"),
    "critic/advantages/min": ("advantages/min", "adv_min"),
    "critic/advantages/std": ("advantages/std", "adv_std"),
    "critic/returns/mean": ("return", "returns", "mean_return", "ret"),
    "critic/frac_reward_zero_std": ("frac_reward_zero_std", "groups_zero_std_frac", "zero_std_frac"),
    "critic/vf_loss": ("vf_loss", "value_loss", "critic_loss", "loss/value_avg"),
    "critic/vf_explained_var": ("vf_explained_var", "explained_variance"),
    "critic/lr": ("critic_lr",),
    "train/loss": ("loss", "loss/mean", "training_loss", "sft_loss", "lm_loss"),
    "actor/loss": ("total_loss",),
    "actor/pg_loss": (
        "pg_loss", "policy_loss", "train/core/policy_loss", "train-core/policy_loss", "actor/policy_loss", "act_loss",
        "loss/policy_avg", "actor_loss", "train/pg_loss",
    ),
    "actor/entropy": (
        "actor/entropy_loss", "entropy", "entropy/mean", "entropy/all/mean", "approx_entropy",
        "policy/entropy_avg", "train/core/entropy", "train-core/entropy", "policy_entropy", "mean_entropy",
        "train/entropy_loss",
    ),
    "actor/kl_loss": (
        "kl_loss", "kl", "kl_divergence", "kl_penalty", "kl_mean", "mean_kl",
        "train/core/kl_loss", "kl_to_ref", "train/kl_loss",
    ),
    "actor/ppo_kl": ("ppo_kl", "approx_kl", "policy/approxkl_avg", "old_approx_kl", "train/ppo_kl"),
    "actor/reward_kl_penalty": ("critic/kl", "reward_kl_penalty"),
    "actor/reward_kl_penalty_coeff": ("critic/kl_coeff",),
    "actor/kl_coef": ("kl_coef", "kl_beta"),
    "actor/pg_clipfrac": (
        "clip_ratio/region_mean", "clip_fraction", "clipfrac", "pg_clipfrac", "policy/clipfrac_avg", "ppo_clip_ratio",
        "clip_ratio", "clip_frac", "train/pg_clipfrac",
    ),
    "actor/ratio_mean": ("mean_ratio", "ratio_mean", "val/ratio", "probs_ratio", "ratio", "actor/ratio/mean"),
    "actor/seq_log_prob_mean": ("mean_log_prob_current", "log_prob_current"),
    "ref/seq_log_prob_mean": ("mean_log_prob_ref", "log_prob_ref"),
    "ref/log_prob_mean": ("actor/ref_log_prob_mean",),
    "actor/ref_log_ratio_mean": ("objective/kl",),
    "actor/grad_norm": (
        "grad_norm", "optim/grad_norm", "train/core/grad_norm", "gradient_norm", "grad._norm", "actor_grad_norm",
    ),
    "actor/lr": ("learning_rate", "lr", "optim/lr", "actor_lr", "learning_rate/actor", "train/lr-pg_0"),
    "rewards/accuracies": ("reward_accuracies", "preference_accuracy"),
    "response_length/mean": (
        "completions/mean_length", "completion_length", "response_length", "seq_len/all/mean", "mean_response_length",
        "glen", "mean_generation_length", "avg_response_length",
        "rollout/response_lengths", "rollout/response_len/mean",
    ),
    "response_length/max": ("completions/max_length", "max_response_length"),
    "response_length/min": ("completions/min_length", "min_response_length"),
    "response_length/clip_ratio": (
        "completions/clipped_ratio", "truncated", "truncated_ratio", "is_truncated/all/mean", "truncation_rate",
        "rollout/truncated", "rollout/truncated_ratio",
    ),
    "response/aborted_ratio": ("errored_rollouts/all", "aborted_ratio"),
    "rollout_corr/k3_kl": ("mismatch_kl/all/mean", "gen_kl_error", "mismatch_kl"),
    "sampling/sampling_logp_difference/mean": ("train/train_rollout_logprob_abs_diff",),
    "training/epoch": ("epoch",),
    "training/global_step": ("global_step", "train/global_step"),
    "timing_s/step": ("step_time", "time/step", "total_step_time", "s/it", "seconds_per_step"),
    "timing_s/gen": ("generation_time", "time/generate_completions"),
    "perf/throughput": ("throughput", "tokens_per_second", "tokens/s", "perf/tokens_per_sec"),
    "perf/max_memory_allocated_gb": (
        "actor/perf/max_memory_allocated_gb", "peak_memory_gb", "max_memory_allocated_gb", "peak_mem.",
        "maxmemallocated",
    ),
    "perf/max_memory_reserved_gb": ("actor/perf/max_memory_reserved_gb", "max_memory_reserved_gb"),
    "perf/cpu_memory_used_gb": ("actor/perf/cpu_memory_used_gb", "cpu_memory_used_gb"),
    "perf/mfu/actor": ("mfu/actor", "mfu", "perf/mfu"),
    "perf/mfu/critic": ("mfu/critic",),
    "val/loss": ("eval_loss", "val_loss", "validation_loss", "eval/loss", "lm_loss_value"),
    "val/rewards/accuracies": ("eval_rewards/accuracies",),
    "val-core/eval/reward/mean@1": ("eval_reward", "eval_mean_reward"),
}  # fmt: skip
"""Our name of a metric, and those that other logs have for it, best first. Two of ours that one log may hold side by
side, such as critic/score/mean and critic/rewards/mean, are no aliases of each other."""

_PATTERNS = tuple(
    (re.compile(pattern), ours)
    for pattern, ours in (
        (r"timing/(.+)", r"timing_s/\1"),
        (r"(?:val/)?test_score/(.+)", r"val-core/\1/reward/mean@1"),
        (r"val-core/(.+)/(?:acc|score)/mean@([0-9]{1,9})", r"val-core/\1/reward/mean@\2"),
        (r"val[/-]core/reward/mean@([0-9]{1,9})", r"val-core/all/reward/mean@\1"),
        (r"eval/(.{1,200})/avg@([0-9]{1,9})", r"val-core/\1/reward/mean@\2"),
    )
)
_OURS = {alias: name for name, aliases in ALIASES.items() for alias in (name, *aliases)}


@lru_cache(maxsize=2**14)
def canonical(name: str) -> str:
    """Our name of a metric; `name` itself where it is unknown.

    `val/test_score/openai/gsm8k` is `val-core/openai/gsm8k/reward/mean@1`, `timing/gen` is `timing_s/gen`.
    """
    if found := _OURS.get(name) or _OURS.get(name.casefold().replace(" ", "_")):
        return found
    for pattern, ours in _PATTERNS:
        if match := pattern.fullmatch(name):
            return match.expand(ours)
    return name


def spellings(canonical: str) -> tuple[str, ...]:
    """All names of the metric that we call `canonical`, that one first; patterns are left out."""
    return canonical, *ALIASES.get(canonical, ())


def by_our_names(metrics: Iterable[str]) -> dict[str, str]:
    """Of each metric of a step, by our name, the spelling that counts: of several the one that `spellings` has
    first."""
    chosen = dict[str, str]()
    for name in metrics:
        ours = canonical(name)
        if ours not in chosen or _rank(ours, name) < _rank(ours, chosen[ours]):
            chosen[ours] = name
    return chosen


def _rank(ours: str, name: str) -> int:
    names = spellings(ours)
    return names.index(name) if name in names else len(names)


def known(name: str) -> bool:
    """Whether some project is known to have a metric of this name."""
    return name in _OURS or name.casefold().replace(" ", "_") in _OURS or canonical(name) != name
