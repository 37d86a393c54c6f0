"""The catalogue of metrics: name (verl's names are ours), unit, which direction is better, and what it measures.

Every metric that the engine emits has an entry here; a test trains and fails where one is missing. A metric of a
user's own code needs none: it is shown without a meaning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One name, or one pattern of names (`*` stands for a data source, a number, ...).

    `label` is short enough for a screen; `better` is None where neither direction is; `formula` is how it is computed,
    or the paper that defines it.
    """

    label: str
    meaning: str
    unit: str = ""
    better: Literal["up", "down"] | None = None
    formula: str = ""


_KL = "r = log(reference / policy)"
METRICS: Mapping[str, Metric] = {
    "training/global_step": Metric("step", "number of the step"),
    "training/epoch": Metric("epoch", "passes over the rows that are complete"),
    "critic/score/mean": Metric("score", "mean score of the step's answers", better="up"),
    "critic/score/std": Metric("score std", "standard deviation of the scores of all answers of the step",
        formula="n - 1"),
    "critic/score/*/mean": Metric("part", "mean of one part of the score, named as in the reward"),
    "critic/rewards/mean": Metric("reward", "mean reward: the score less penalties", better="up"),
    "critic/rewards/std": Metric("reward std", "standard deviation of the rewards of all answers of the step",
        formula="n - 1"),
    "critic/rewards/positive_share": Metric("positive", "share of answers whose reward is above 0", better="up"),
    "critic/advantages/mean": Metric("advantage",
        "mean advantage of the answers' tokens: about 0 by construction, as advantages are relative to the mean of"
        " their group (PPO: of the step), whether the reward tells answers apart or not; read critic/advantages/std"
        " and critic/frac_reward_zero_std", formula="GRPO: (r - mean of group) / std of group, arXiv:2402.03300"),
    "critic/advantages/std": Metric("advantage std",
        "standard deviation of the advantages of the answers' tokens; 0 where nothing can be learnt",
        formula="n - 1"),
    "critic/frac_reward_zero_std": Metric("no signal", "share of groups whose answers all have the same score"),
    "train/core/reward/rule_based": Metric("by rules", "weighted part of the mean score that comes from rules"),
    "train/core/reward/rm_based": Metric("by models", "weighted part of the mean score that comes from reward models"),
    "reward/faults": Metric("no score", "answers of the step without a score; their groups are not trained on",
        better="down"),
    "actor/loss": Metric("policy loss",
        "what the update minimises: policy-gradient loss, plus the KL loss, minus the entropy bonus; it need not fall",
        formula="pg_loss + kl_loss_coef * kl_loss - entropy_coeff * entropy"),
    "actor/pg_loss": Metric("pg loss",
        "policy-gradient loss: minus the advantage, weighted by the ratio; it need not fall and is about 0 where each"
        " step is one update, so neither its size nor its sign says how well the policy does",
        formula="-min(ratio * A, clipped ratio * A), arXiv:1707.06347, eq. 7"),
    "actor/kl_loss": Metric("kl to ref", "estimated KL(policy || reference) per token", "nats",
        formula=f"k3: e^r - r - 1, {_KL}"),
    "actor/ppo_kl": Metric("ppo kl",
        "estimated KL(old || new) of this step's updates per token; not to the reference model: that is actor/kl_loss",
        "nats", formula="mean of log(old / new)"),
    "actor/ratio_mean": Metric("ratio",
        "mean ratio of a token's probability now to that when it was sampled, before any clip; GSPO: of an answer's"
        " probability", formula="new / old; GSPO: (new / old)^(1 / length), arXiv:2507.18071, eq. 7"),
    "actor/ratio_max": Metric("ratio max", "largest such ratio of the step"),
    "actor/log_ratio_mean": Metric("log ratio", "mean log of these ratios", "nats", formula="log(new / old)"),
    "actor/log_ratio_max": Metric("log ratio max",
        "largest absolute log-ratio of the step, before any clip or clamp; beyond 10 the ratio is over 22,000 or under"
        " 1 / 22,000, and the step is not PPO's small step any more", "nats", formula="max |log(new / old)|"),
    "actor/seq_log_ratio_max": Metric("seq log ratio max",
        "largest absolute log-ratio of a whole answer to the policy that sampled it; the sum over its tokens, so that"
        " of a long answer is larger", "nats", formula="max |sum of log(new / old)|"),
    "actor/log_ratio_clamped": Metric("log ratio clamped",
        "share of tokens whose log-ratio was beyond algorithm.max_log_ratio; they have no gradient", better="down"),
    "actor/log_prob_mean": Metric("log prob", "mean log-probability of the answers' tokens under the policy", "nats",
        formula="at sampler.temperature"),
    "actor/seq_log_prob_mean": Metric("seq log prob",
        "mean log-probability of whole answers under the policy; it grows with their length, so only its distance from"
        " ref/seq_log_prob_mean says something", "nats", formula="sum over tokens, mean over answers"),
    "ref/log_prob_mean": Metric("ref log prob",
        "mean log-probability of the same tokens under the reference model", "nats"),
    "ref/seq_log_prob_mean": Metric("ref seq log prob",
        "mean log-probability of the same answers under the reference model", "nats",
        formula="sum over tokens, mean over answers"),
    "actor/ref_log_ratio_mean": Metric("log ratio to ref",
        "mean log-ratio of whole answers to the reference model: k1, an estimate of the KL of answers that may be"
        " negative", "nats", formula="mean of sum of log(policy / reference)"),
    "actor/ref_log_ratio_max": Metric("log ratio to ref max",
        "largest absolute log-ratio of a whole answer to the reference model; the sum over its tokens, so that of a"
        " long answer is larger", "nats", formula="max |sum of log(policy / reference)|"),
    "actor/pg_clipfrac": Metric("clipped", "share of tokens whose ratio was clipped",
        formula="arXiv:1707.06347, eq. 7"),
    "actor/pg_clipfrac_lower": Metric("dual clip", "share of tokens limited by the dual clip",
        formula="arXiv:1912.09729, eq. 5"),
    "actor/entropy": Metric("entropy", "mean entropy of the policy per token", "nats"),
    "actor/grad_norm": Metric("grad norm", "norm of the gradient before clipping"),
    "actor/lr": Metric("lr", "learning rate"),
    "actor/dpo_loss": Metric("dpo loss", "loss over the pairs", better="down", formula="arXiv:2305.18290, eq. 7"),
    "actor/reward_kl_penalty": Metric("kl in reward",
        "estimated KL(policy || reference) per token, subtracted from the reward", "nats"),
    "actor/reward_kl_penalty_coeff": Metric("kl coef", "coefficient of the KL penalty in the reward",
        formula="arXiv:1909.08593, section 2.2"),
    "actor/skipped_nonfinite": Metric("skipped", "share of updates skipped because a value was not finite",
        better="down"),
    "critic/vf_loss": Metric("vf loss", "half the squared error of the critic", better="down"),
    "critic/vf_clipfrac": Metric("vf clipped", "share of tokens whose value was clipped"),
    "critic/vpred_mean": Metric("value now", "mean value predicted during the update"),
    "critic/values/mean": Metric("value", "mean value predicted before the update"),
    "critic/vf_explained_var": Metric("explained variance",
        "share of the variance of the returns that the critic foresaw; below 0 it is worse than a constant",
        better="up", formula="1 - Var(returns - values) / Var(returns)"),
    "critic/returns/mean": Metric("return", "mean return, the critic's target", formula="GAE, arXiv:1506.02438"),
    "critic/grad_norm": Metric("critic grad norm", "norm of the critic's gradient before clipping"),
    "critic/lr": Metric("critic lr", "learning rate of the critic"),
    "critic/skipped_nonfinite": Metric("critic skipped", "share of the critic's updates skipped", better="down"),
    "rollout_corr/kl": Metric("kl to sampler", "estimated KL(sampler || trainer) per token", "nats",
        formula="k1: mean of log(sampler / trainer)"),
    "rollout_corr/k3_kl": Metric("kl to sampler k3",
        "estimated KL(sampler || trainer) per token, by an estimator that is never negative", "nats", "down",
        "k3: e^r - r - 1, r = log(trainer / sampler)"),
    "rollout_corr/rollout_is_mean": Metric("importance", "mean importance weight of the tokens",
        formula="min(trainer / sampler, cap)"),
    "rollout_corr/rollout_is_ratio_fraction_high": Metric("importance cut",
        "share of tokens whose weight was truncated at sampler.importance_sampling"),
    "training/rollout_probs_diff_max": Metric("prob diff max",
        "largest difference of a token's probability between sampler and trainer", better="down"),
    "training/rollout_probs_diff_mean": Metric("prob diff",
        "mean absolute difference of a token's probability between sampler and trainer", better="down"),
    "training/rollout_probs_diff_std": Metric("prob diff std",
        "standard deviation of the difference of a token's probability between sampler and trainer", better="down"),
    "sampling/sampling_logp_difference/mean": Metric("logp diff",
        "mean absolute difference of a token's log-probability between sampler and trainer, as TRL logs it", "nats",
        "down"),
    "training/rollout_actor_probs_pearson_corr": Metric("prob corr",
        "Pearson correlation of the tokens' probabilities under sampler and trainer", better="up"),
    "rewards/accuracies": Metric("accuracy", "share of pairs whose chosen answer has the higher implicit reward",
        better="up"),
    "rewards/margins": Metric("margin", "mean difference of the two implicit rewards", better="up"),
    "rewards/chosen": Metric("chosen", "mean implicit reward of the chosen answers",
        formula="beta * log(policy / reference)"),
    "rewards/rejected": Metric("rejected", "mean implicit reward of the rejected answers"),
    "train/num_gen_batches": Metric("rounds", "times the step sampled until it was full"),
    "train/share_full": Metric("full", "share of the step's places filled by groups that are trained on", better="up"),
    "train/groups_kept": Metric("groups kept", "groups that are trained on"),
    "train/groups_filtered": Metric("groups filtered", "groups left out because their rewards hardly differ"),
    "train/trainable_token_share": Metric("token share", "share of the answers' tokens that are trained on"),
    "train/loss_tokens": Metric("tokens learnt from",
        "tokens that had a loss; of sampled answers those whose advantage is not 0", "tokens", "up"),
    "train/gradient_share": Metric("with gradient", "share of groups in which an answer has an advantage", better="up"),
    "train/end_token_share": Metric("ended",
        "share of answers with an end-of-sequence token: one that had a loss, or one that was sampled", better="up"),
    "train/loss": Metric("loss",
        "negative log-likelihood of the answers per token; in logs of RL and DPO what the trainer minimises, which need"
        " not fall", "nats", "down"),
    "train/grad_norm": Metric("grad norm", "norm of the gradient before clipping"),
    "train/lr": Metric("lr", "learning rate"),
    "train/skipped_nonfinite": Metric("skipped", "share of updates skipped because a value was not finite",
        better="down"),
    "val/loss": Metric("val loss", "negative log-likelihood of held-out answers per token", "nats", "down"),
    "val-*/reward/mean@*": Metric("mean@n", "mean score over n answers to each held-out prompt of a source",
        better="up"),
    "val-*/reward/best@*/mean": Metric("best@k", "mean score of the best of k answers (pass@k for right or wrong)",
        better="up", formula="unbiased, from n answers"),
    "val-*/reward/maj@*/mean": Metric("maj@n", "mean score of the most frequent of n answers", better="up"),
    "val-aux/*/reward/std@*": Metric("std@n", "standard deviation of the scores of one prompt's answers"),
    "val-aux/*/reward/scored@*": Metric("scored", "share of held-out prompts whose answers all have a score"),
    "val-aux/*/reward/wilson95_low@*": Metric("95% low", "lower end of the 95% confidence interval of the mean",
        formula="Wilson, 1927"),
    "val-aux/*/reward/wilson95_high@*": Metric("95% high",
        "upper end of the 95% confidence interval of the mean"),
    "val-aux/*/reward/normal95_low@*": Metric("95% low",
        "lower end of the 95% confidence interval of the mean, of scores other than 0 and 1",
        formula="mean - 1.96 std / sqrt(prompts)"),
    "val-aux/*/reward/normal95_high@*": Metric("95% high",
        "upper end of the 95% confidence interval of the mean, of scores other than 0 and 1"),
    "val/test_score/*": Metric("test score",
        "the name in older versions of verl of val-core/*/reward/mean@*: mean score over the held-out prompts of a"
        " source; in console.log beside the new name", better="up"),
    "prompt_length/mean": Metric("prompt", "mean length of the prompts", "tokens"),
    "prompt_length/clip_ratio": Metric("prompt cut",
        "share of prompts of the longest length that is kept, data.max_prompt_length: they may have been cut"),
    "response_length/mean": Metric("length", "mean length of the answers", "tokens"),
    "response_length/clip_ratio": Metric("cut",
        "share of answers cut at their longest length: data.max_response_length, or TRL's max_completion_length"),
    "perf/cpu_s": Metric("cpu s", "processor seconds of the step in one process", "s", "down"),
    "perf/cpu_memory_used_gb": Metric("cpu memory", "peak resident memory of one process", "GiB", "down"),
    "perf/max_memory_allocated_gb": Metric("gpu memory", "peak GPU memory held by tensors", "GiB", "down"),
    "perf/gpu_memory_total_gb": Metric("gpu size",
        "memory of the GPU: where perf/max_memory_reserved_gb comes near it, the run may end by out-of-memory", "GiB"),
    "perf/max_memory_reserved_gb": Metric("gpu reserved", "peak GPU memory reserved by the allocator", "GiB", "down"),
    "perf/throughput": Metric("tokens/s", "tokens processed per second by each process", "tokens/s", "up"),
    "perf/time_per_step": Metric("step time", "duration of the step without validation and checkpoint", "s", "down"),
    "perf/total_num_tokens": Metric("tokens", "tokens of the step, prompts included", "tokens"),
    "timing_s/step": Metric("s/step", "duration of the step", "s", "down"),
    "timing_s/gen": Metric("s sampling", "duration of sampling the step's answers", "s", "down"),
    "timing_s/update_actor": Metric("s policy update", "duration of the step's updates of the policy", "s", "down"),
    "timing_s/update_critic": Metric("s critic update", "duration of the step's updates of the critic", "s", "down"),
    "timing_s/*": Metric("seconds",
        "duration of one part of the step, by verl's name: gen, reward, old_log_prob, ref, ...", "s", "down"),
    "train/core/reward/distribution": Metric("rewards",
        "how the rewards of a step's answers are spread; an event of its own at step 1 and every 10th"),
    "train/core/grad_norm/distribution": Metric("gradient norms",
        "how the gradient norms of the single weights are spread over a step's updates, before clipping; an event of"
        " its own at step 1 and every 10th"),
}  # fmt: skip


TIMES = ("timing_s/", "timing_per_token_ms/", "perf/")
"""Prefixes of metrics of the machine and the clock; all others are equal in equal runs."""

HELD_OUT = ("val-core/", "val-aux/", "val/")
"""Prefixes of metrics of held-out data."""

LEARNT_FROM = ("train/loss_tokens", "train/gradient_share", "train/end_token_share")
"""What a step had to learn from."""

_SCORES = ("critic/score/mean", "rewards/accuracies", "train/loss")
WATCHED = (
    "critic/score/mean", "rewards/accuracies", "train/loss", "actor/dpo_loss", "rewards/margins", "actor/entropy",
    "actor/kl_loss", "critic/vf_loss", "train/share_full", "critic/frac_reward_zero_std", "actor/grad_norm",
    "train/grad_norm", "response_length/mean", "train/lr", "perf/throughput", "timing_s/step",
)  # fmt: skip


def main_score(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """The metric whose curve is shown: the score, or the loss where nothing is scored."""
    return next(((name, metrics[name]) for name in _SCORES if name in metrics), None)


def watched(metrics: Mapping[str, float], count: int = 6) -> list[tuple[str, float]]:
    """The `count` numbers of a step that matter most, most important first."""
    return [(name, metrics[name]) for name in WATCHED if name in metrics][:count]


def validation(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of held-out data."""
    return {name: value for name, value in metrics.items() if name.startswith(HELD_OUT)}


def metric(name: str) -> Metric | None:
    """The entry of an emitted name; None for a metric that only a user's own code knows."""
    if name in METRICS:
        return METRICS[name]
    stem, _, ending = name.rpartition("/")
    if ending in ("max", "min") and (mean := metric(f"{stem}/mean")):
        word = {"max": "largest", "min": "smallest"}[ending]
        return replace(mean, label=f"{mean.label} {ending}", meaning=f"{word} value; see {stem}/mean", better=None)
    if name.startswith("val/test_score/"):
        return METRICS["val/test_score/*"]
    if name.startswith("val/"):  # a training metric, measured on held-out rows
        bare = name.removeprefix("val/")
        return METRICS.get(bare) or METRICS.get(f"actor/{bare}")
    return next((found for pattern, found in METRICS.items() if "*" in pattern and fnmatchcase(name, pattern)), None)


def matching(text: str = "") -> dict[str, Metric]:
    """Entries whose name holds `text` or matches it as a glob pattern; the entry of an emitted name by that name."""
    found = {name: entry for name, entry in METRICS.items() if text in name or fnmatchcase(name, text)}
    entry = metric(text)
    return found or ({text: entry} if entry else {})


def better(name: str) -> Literal["up", "down"] | None:
    """Which direction of a metric is better; a metric of held-out data has that of the same metric in training."""
    entry = metric(name)
    return entry.better if entry else None


def held_out_score(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """The main score of a validation: the mean score over the data sources, else the accuracy on pairs, else the
    loss."""
    if means := _means(metrics):
        name = next(iter(means))
        return name if len(means) == 1 else "val-core/*/reward/mean", math.fsum(means.values()) / len(means)
    return next(((name, metrics[name]) for name in ("val/rewards/accuracies", "val/loss") if name in metrics), None)


def _means(metrics: Mapping[str, float]) -> dict[str, float]:
    """The mean score of each data source."""
    return {name: metrics[name] for name in metrics if name.startswith("val-core/") and _MEAN.fullmatch(name)}


_MEAN = re.compile(r"val-core/.+/reward/mean@[0-9]+")


Z95 = 1.959963984540054


def normal(mean: float, squares: float, n: int) -> tuple[float, float]:
    """Bounds of the 95 % interval of a mean of `n` values, at least 2, whose squares add up to `squares`: mean ± 1.96
    standard errors."""
    apart = Z95 * math.sqrt(max(squares - n * mean * mean, 0.0) / (n - 1) / n)
    return mean - apart, mean + apart


def wilson(share: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Bounds of the 95 % interval of a share of `n` trials (Wilson 1927); (0, 1) of none."""
    if n == 0:
        return 0.0, 1.0
    centre, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


@dataclass(frozen=True)
class HeldOut:
    """The main score of a validation, with the ends of its 95 % interval where that is known."""

    step: int
    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def shown(self) -> str:
        """`0.915 [0.868-0.946]`"""
        text = f"{self.value:.4g}"
        return text if self.low is None or self.high is None else f"{text} [{self.low:.3g}-{self.high:.3g}]"


def mean_of_validations(some: Sequence[HeldOut]) -> HeldOut:
    """The mean of several validations of one metric, at the step of the last; its interval is narrower."""
    value, count = math.fsum(each.value for each in some) / len(some), len(some)
    if any(each.low is None or each.high is None for each in some):
        return HeldOut(some[-1].step, some[-1].name, value)
    below = math.hypot(*(each.value - (each.low or 0.0) for each in some)) / count
    above = math.hypot(*((each.high or 0.0) - each.value for each in some)) / count
    return HeldOut(some[-1].step, some[-1].name, value, value - below, value + above)


def better_than(one: HeldOut, other: HeldOut) -> bool:
    """Whether a validation is better than another of the same metric."""
    return one.value < other.value if better(one.name) == "down" else one.value > other.value


def held_out(step: int, metrics: Mapping[str, float]) -> HeldOut | None:
    """The main score of a step's validation; None where nothing was measured, or it is not finite."""
    found = held_out_score(metrics)
    if found is None or not math.isfinite(found[1]):
        return None
    name, value = found
    if (low := _apart(metrics, "low")) is None or (high := _apart(metrics, "high")) is None:
        return HeldOut(step, name, value)
    return HeldOut(step, name, value, value - low, value + high)


def _apart(metrics: Mapping[str, float], end: str) -> float | None:
    """How far this end of the 95 % interval is from the main score; of several data sources that of their mean. None
    where a source has no interval."""
    found = list[float]()
    for name, mean in _means(metrics).items():
        stem = name.replace("val-core/", "val-aux/", 1)
        bounds = (metrics.get(stem.replace("/mean@", f"/{kind}95_{end}@")) for kind in ("wilson", "normal"))
        bound = next((bound for bound in bounds if bound is not None), None)
        if bound is None:
            return None
        found.append(abs(mean - bound))
    return math.hypot(*found) / len(found) if found else None


def grade(metrics: Mapping[str, float], wanted: str | None = None) -> float | None:
    """How good a validation is, higher is better: by the metric `wanted`, by default by its main score. None where that
    was not measured, is not finite, or has no better direction, and where a held-out prompt has no score: a mean over
    the prompts that could be scored is not that of all."""
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
    """Short name for a screen: `val-core/openai/gsm8k/reward/mean@1` is `openai/gsm8k`, and what is not that mean has
    its own name, too: `openai/gsm8k wilson95_low@1`."""
    if name in METRICS:
        return METRICS[name].label
    if name.startswith(("val-core/", "val-aux/")) and "/reward/" in name:
        source, _, what = name.split("/", 1)[1].rpartition("/reward/")
        if source == "*":
            return "all sources"
        return source if what.startswith("mean@") else f"{source} {what.removesuffix('/mean')}"
    if name.startswith("critic/score/"):  # a part of the score, by the name it has in the reward
        return name.removeprefix("critic/score/").removesuffix("/mean")
    return name
