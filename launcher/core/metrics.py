"""What each metric is called (verl's names are ours), its unit, and which direction is better."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One canonical name. `label` is short enough for a screen; `better` is None where neither direction is."""

    label: str
    meaning: str
    unit: str = ""
    better: Literal["up", "down"] | None = None


METRICS: Mapping[str, Metric] = {
    "critic/score/mean": Metric("score", "mean score of the step's answers", better="up"),
    "critic/rewards/mean": Metric("reward", "mean reward, penalties taken off", better="up"),
    "critic/frac_reward_zero_std": Metric("no signal", "share of groups whose answers all scored the same"),
    "train/core/reward/rule_based": Metric("by rules", "mean of what rules gave of the score, weights counted"),
    "train/core/reward/rm_based": Metric("by models", "mean of what reward models gave of it, weights counted"),
    "reward/faults": Metric(
        "no score", "answers of the step without a score; their groups are left out", better="down"
    ),
    "actor/pg_loss": Metric("pg loss", "policy-gradient loss; it need not fall"),
    "actor/kl_loss": Metric("kl to ref", "estimated KL(policy || reference) per token", "nats"),
    "actor/ppo_kl": Metric("ppo kl", "estimated KL(old || new) of this step's updates per token", "nats"),
    "actor/pg_clipfrac": Metric("clipped", "share of tokens whose ratio was clipped"),
    "actor/entropy": Metric("entropy", "mean entropy of the policy per token", "nats"),
    "actor/grad_norm": Metric("grad norm", "length of the gradient before it was clipped"),
    "actor/lr": Metric("lr", "learning rate"),
    "actor/dpo_loss": Metric("dpo loss", "loss over the pairs", better="down"),
    "actor/pg_clipfrac_lower": Metric("dual clip", "share of tokens that the dual clip bounded"),
    "actor/reward_kl_penalty": Metric("kl in reward", "mean distance from the reference per token", "nats"),
    "actor/reward_kl_penalty_coeff": Metric("kl price", "what a nat of that distance costs"),
    "actor/skipped_nonfinite": Metric("skipped", "share of updates not taken, as something was not finite"),
    "critic/vf_loss": Metric("vf loss", "half the squared error of the critic", better="down"),
    "critic/vf_clipfrac": Metric("vf clipped", "share of tokens whose value was clipped"),
    "critic/values/mean": Metric("value", "mean of what the critic expects"),
    "critic/returns/mean": Metric("return", "mean of what it should have expected"),
    "rollout_corr/kl": Metric("kl to sampler", "estimated KL(sampler || trainer) per token, by k1", "nats"),
    "rollout_corr/k3_kl": Metric("kl to sampler k3", "the same by k3, which is never negative", "nats", "down"),
    "rollout_corr/rollout_is_mean": Metric("weight", "mean weight of a token that another program sampled"),
    "rollout_corr/rollout_is_ratio_fraction_high": Metric(
        "weights cut", "share of tokens whose weight was cut at sampler.importance_sampling"
    ),
    "training/rollout_probs_diff_max": Metric(
        "most apart", "largest difference of a token's probability between sampler and trainer", better="down"
    ),
    "training/rollout_probs_diff_mean": Metric("apart", "mean of that difference", better="down"),
    "training/rollout_probs_diff_std": Metric("apart, std", "standard deviation of that difference", better="down"),
    "training/rollout_actor_probs_pearson_corr": Metric(
        "correlation", "of a token's probability to the sampler and to the trainer", better="up"
    ),
    "rewards/accuracies": Metric("accuracy", "share of pairs whose chosen answer gained more", better="up"),
    "rewards/margins": Metric("margin", "mean difference of what the two answers gained", better="up"),
    "train/num_gen_batches": Metric("rounds", "times the step sampled until it was full"),
    "train/share_full": Metric("full", "share of the step's groups that teach", better="up"),
    "train/groups_kept": Metric("kept", "groups that were learnt from"),
    "train/groups_filtered": Metric("left out", "groups whose rewards spread too little"),
    "train/trainable_token_share": Metric("learnt", "share of the answers' tokens that were learnt from"),
    "train/loss": Metric("loss", "negative log-likelihood of the answers per token", "nats", "down"),
    "train/grad_norm": Metric("grad norm", "length of the gradient before it was clipped"),
    "train/lr": Metric("lr", "learning rate"),
    "val/loss": Metric("val loss", "negative log-likelihood of held-out answers per token", "nats", "down"),
    "response_length/mean": Metric("length", "mean length of the answers", "tokens"),
    "response_length/clip_ratio": Metric("cut", "share of answers cut at data.max_response_length"),
    "perf/cpu_s": Metric("cpu s", "processor seconds of the step in one process", "s", "down"),
    "perf/throughput": Metric("tokens/s", "tokens processed a second by each process", "tokens/s", "up"),
    "timing_s/step": Metric("s/step", "duration of the step", "s", "down"),
}

TIMES = ("timing_s/", "timing_per_token_ms/", "perf/")
"""Names that begin so tell of the machine and the clock; all others are equal in equal runs."""

HELD_OUT = ("val-core/", "val-aux/", "val/")
"""Names that begin so speak of held-out data."""

_SCORES = ("critic/score/mean", "rewards/accuracies", "train/loss")
_WATCHED = (
    "critic/score/mean",
    "rewards/accuracies",
    "train/loss",
    "actor/dpo_loss",
    "rewards/margins",
    "actor/entropy",
    "actor/kl_loss",
    "critic/vf_loss",
    "train/share_full",
    "critic/frac_reward_zero_std",
    "actor/grad_norm",
    "train/grad_norm",
    "response_length/mean",
    "train/lr",
    "perf/throughput",
    "timing_s/step",
)


def main_score(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """The one number whose curve a person looks at first: the score, or the loss where nothing is scored."""
    return next(((name, metrics[name]) for name in _SCORES if name in metrics), None)


def watched(metrics: Mapping[str, float], count: int = 6) -> list[tuple[str, float]]:
    """The `count` numbers of a step that matter most, most important first."""
    return [(name, metrics[name]) for name in _WATCHED if name in metrics][:count]


def validation(metrics: Mapping[str, float]) -> dict[str, float]:
    """Those metrics that speak of held-out data."""
    return {name: value for name, value in metrics.items() if name.startswith(HELD_OUT)}


def better(name: str) -> Literal["up", "down"] | None:
    """Which direction of a metric is better; of held-out data it is that of the same metric in training."""
    if name.startswith(("val-core/", "val-aux/")):
        return "up" if re.search(r"/reward/(mean|best|maj)@", name) else None
    bare = name.removeprefix("val/")
    known = (METRICS[full] for full in (name, bare, f"actor/{bare}") if full in METRICS)
    return next((metric.better for metric in known), None)


def held_out_score(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """The one number that a validation is judged by: the mean score over the data sources, else the share of pairs
    told apart, else the loss."""
    means = {name: value for name, value in metrics.items() if re.fullmatch(r"val-core/.+/reward/mean@[0-9]+", name)}
    if means:
        name = next(iter(means))
        return name if len(means) == 1 else "val-core/*/reward/mean", math.fsum(means.values()) / len(means)
    return next(((name, metrics[name]) for name in ("val/rewards/accuracies", "val/loss") if name in metrics), None)


def grade(metrics: Mapping[str, float], wanted: str | None = None) -> float | None:
    """How good a validation is, the more the better: by the metric `wanted`, by default by its main score. None where
    that was not measured, is not finite, or has no better direction, and of scores where a prompt has none: a mean
    over the prompts that could be scored is not that of all."""
    found = held_out_score(metrics) if wanted is None else (wanted, metrics.get(wanted, math.nan))
    if found is None or not math.isfinite(found[1]):
        return None
    if found[0].startswith("val-core/") and any(
        value < 1 for name, value in metrics.items() if name.startswith("val-aux/") and "/reward/scored@" in name
    ):
        return None
    way = "up" if found[0].startswith("val-core/*") else better(found[0])
    return {"up": found[1], "down": -found[1], None: None}[way]


def label(name: str) -> str:
    """Short name for a screen: `val-core/openai/gsm8k/reward/mean@1` is `openai/gsm8k`."""
    if name in METRICS:
        return METRICS[name].label
    if name.startswith(("val-core/", "val-aux/")):
        return name.split("/", 1)[1].rsplit("/", 2)[0]
    if name.startswith("critic/score/"):  # a part of the score, by the name it has in the reward
        return name.removeprefix("critic/score/").removesuffix("/mean")
    return name
