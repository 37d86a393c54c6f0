"""Metrics of a step: means and extremes over all processes, durations, the mismatch between sampler and trainer, and
the scores and faults of the reward.

An answer without a score excludes its whole group from the step, as the others cannot be compared with it: the group's
tokens count in no loss, mean or unit, and other groups learn what they would have learnt without it.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import fsum
from statistics import fmean

import torch
from torch import Tensor

from launcher.algorithms import ops
from launcher.core.events import Distribution
from launcher.engines.torch.parallel import world
from launcher.spec.algorithm import Batch, Largest, LossMetrics
from launcher.spec.reward import Scores

SHOWN = 3  # reasons for missing scores that are reported of one step
SUMMED = {"rule_based", "rm_based"}  # sums of the scores of rules and of networks
SHARES = (
    "prompt_length/clip_ratio", "response_length/clip_ratio", "critic/frac_reward_zero_std",
    "critic/rewards/positive_share", "train/gradient_share", "train/end_token_share",
)  # fmt: skip
SPREADS = ("critic/score", "critic/rewards", "critic/advantages")
"""Metrics whose standard deviation is reported, too."""
DISTRIBUTION_STEPS = 10
"""A step of so many shows distributions, and the first does."""
BINS = 20
FLAT = 1e-24
"""Probabilities that vary less than this (a variance squared) have no correlation but that of rounding."""


@dataclass
class Clock:
    """Seconds spent under each name since `start`."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def pop_timings(self) -> dict[str, float]:
        """`timing_s/<name>` of everything measured since the last call."""
        taken = {f"timing_s/{name}": value for name, value in self.seconds.items()}
        self.seconds.clear()
        return taken


def mean_max_min(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Mean, maximum and minimum of each tensor's elements, over all processes; nothing of what has none."""
    names = list(values)
    flat = [values[name].double().flatten() for name in names]
    nothing = flat[0].new_full((1,), -torch.inf)
    sums = world.all_reduce_sum(torch.stack([torch.stack([x.sum(), x.new_tensor(len(x))]) for x in flat]))  # [names, 2]
    tops = world.all_reduce_max(
        torch.stack([torch.stack([torch.cat([x, nothing]).max(), torch.cat([-x, nothing]).max()]) for x in flat])
    )
    found: dict[str, float] = {}
    for name, (total, count), (top, bottom) in zip(names, sums.tolist(), tops.tolist(), strict=True):
        if count:
            found |= {f"{name}/mean": total / count, f"{name}/max": top, f"{name}/min": -bottom}
    return found


def spreads(values: Mapping[str, Tensor], found: Mapping[str, float]) -> dict[str, float]:
    """Standard deviation (n - 1) of each of SPREADS, and what share of the variance of the returns the critic explains;
    over all processes. `found` has the means: deviations from them lose no digits."""
    centres = {name: found[f"{name}/mean"] for name in SPREADS if f"{name}/mean" in found}
    flat = {name: values[name].double().flatten() for name in centres}
    if "critic/values/mean" in found and "critic/returns/mean" in found:
        returns, predicted = values["critic/returns"].double(), values["critic/values"].double()
        flat |= {"returns": returns, "errors": returns - predicted}
        centres |= {"returns": found["critic/returns/mean"]}
        centres |= {"errors": found["critic/returns/mean"] - found["critic/values/mean"]}
    if not flat:
        return {}
    sums = [torch.stack([(x - centres[name]).square().sum(), x.new_tensor(len(x))]) for name, x in flat.items()]
    totals = dict(zip(flat, world.all_reduce_sum(torch.stack(sums)).tolist(), strict=True))
    metrics = {}
    for name in SPREADS:
        if name in totals:
            square, count = totals[name]
            equal = found[f"{name}/max"] == found[f"{name}/min"]  # else a mean's rounding error is a deviation
            metrics[f"{name}/std"] = 0.0 if equal else (square / max(count - 1, 1)) ** 0.5
    if "returns" in totals and found["critic/returns/max"] != found["critic/returns/min"]:
        metrics["critic/vf_explained_var"] = 1 - totals["errors"][0] / totals["returns"][0]
    return metrics


def batch_metrics(
    raw: Batch, prepared: Batch, sampled: bool, max_response: int, eos: Sequence[int] = (),
    max_prompt: int | None = None,
) -> dict[str, float]:  # fmt: skip
    """verl's metrics of a step's data: as sampled, and as the algorithm prepared it; of all processes.

    Scores are those of groups whose answers all have one. `eos` are the end-of-sequence tokens.
    """
    if sampled:  # pairs among sampled answers have no score
        raw, prepared = (batch.rows(batch.preference == 0) for batch in (raw, prepared))
    answer = raw.mask.sum(-1)  # [B]
    values = {"prompt_length": raw.length - answer, "response_length": answer}
    ends = torch.isin(raw.tokens, raw.tokens.new_tensor(eos)) & (raw.mask > 0)  # [B, T]
    values["train/end_token_share"] = ends.any(-1)
    if max_prompt is not None:
        values["prompt_length/clip_ratio"] = values["prompt_length"] >= max_prompt
    if not sampled:
        return _shares(mean_max_min(values))
    values["response_length/clip_ratio"] = answer >= max_response
    if prepared.advantage is not None:
        learnt = loss_tokens(prepared).any(-1)  # [B]
        values["train/gradient_share"] = torch.isin(prepared.group, prepared.group[learnt])
    known = ~unscored_rows(raw)
    raw, prepared = raw.rows(known), prepared.rows(known)
    values["critic/rewards/positive_share"] = prepared.reward > 0
    same = ops.same_in_group(raw.reward, ops.group_index(raw.group)) if len(raw) else raw.group > 0
    values |= {"critic/score": raw.reward, "critic/rewards": prepared.reward, "critic/frac_reward_zero_std": same}
    computed = {"advantages": prepared.advantage, "returns": prepared.target, "values": prepared.value}
    values |= {f"critic/{name}": x[prepared.mask > 0] for name, x in computed.items() if x is not None}
    found = mean_max_min(values)
    return _shares(found | spreads(values, found))


def _shares(found: dict[str, float]) -> dict[str, float]:
    """Shares by their mean alone."""
    for name in SHARES:
        if f"{name}/mean" in found:
            found[name] = found.pop(f"{name}/mean")
            del found[f"{name}/max"], found[f"{name}/min"]
    return found


def loss_tokens(batch: Batch) -> Tensor:
    """[B, T] bool: tokens that are trained on; sampled ones by their advantage."""
    seen = batch.mask > 0
    return seen if batch.advantage is None else seen & (batch.advantage != 0)


def mean_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over those of a step's updates that have it."""
    names = dict.fromkeys(name for update in updates for name in update)
    return {name: fmean(update[name] for update in updates if name in update) for name in names}


def largest_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The largest value of each metric over a step's updates."""
    names = dict.fromkeys(name for update in updates for name in update)
    return {name: max(update[name] for update in updates if name in update) for name in names}


def perf_metrics(tokens: int, seconds: float, cpu: float, device: torch.device, processes: int) -> dict[str, float]:
    """verl's perf metrics; `tokens` are those of all `processes`, `cpu` the processor seconds of this one."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = kilobytes * (1 if sys.platform == "darwin" else 1024)
    found = {
        "perf/total_num_tokens": float(tokens),
        "perf/time_per_step": seconds,
        "perf/throughput": tokens / seconds / processes,
        "perf/cpu_s": cpu,
        "perf/cpu_memory_used_gb": memory / 2**30,
    }
    if device.type == "cuda":
        found["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated(device) / 2**30
        found["perf/max_memory_reserved_gb"] = torch.cuda.max_memory_reserved(device) / 2**30
        found["perf/gpu_memory_total_gb"] = torch.cuda.get_device_properties(device).total_memory / 2**30
    return found


class Sums:
    """Metrics of a process's micro-batches: totals and counts, and largest values."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.means: dict[str, Tensor] = {}  # [2] total and count
        self.largest: dict[str, Tensor] = {}  # []

    def add(self, metrics: LossMetrics) -> None:
        """Add those of one micro-batch."""
        for name, metric in metrics.items():
            if isinstance(metric, Largest):
                value = metric.value.double()
                self.largest[name] = value.maximum(self.largest[name]) if name in self.largest else value
            else:
                self.means[name] = self.means.get(name, 0) + torch.stack([x.double() for x in metric])

    def reduced(self) -> tuple[dict[str, float], dict[str, float]]:
        """Means and largest values over all processes, without those that nothing was measured of. Collective."""
        held = world.all_gather_object((sorted(self.means), sorted(self.largest)))
        of_means, of_largest = (sorted({name for names in held for name in names[which]}) for which in (0, 1))
        nothing = torch.zeros(2, dtype=torch.float64, device=self.device)
        if not of_means and not of_largest:
            return {}, {}
        means, largest = dict[str, float](), dict[str, float]()
        if of_means:
            totals = world.all_reduce_sum(torch.stack([self.means.get(name, nothing) for name in of_means])).tolist()
            means = {name: total / count for name, (total, count) in zip(of_means, totals, strict=True) if count}
        if of_largest:
            least = nothing.new_tensor(-torch.inf)
            tops = world.all_reduce_max(torch.stack([self.largest.get(name, least) for name in of_largest])).tolist()
            largest = {name: top for name, top in zip(of_largest, tops, strict=True) if top > -torch.inf}
        return means, largest


# ---- distributions


def shows_distributions(step: int) -> bool:
    return step == 1 or step % DISTRIBUTION_STEPS == 0


def distribution(step: int, name: str, values: Tensor, shared: bool) -> Distribution | None:
    """How finite `values` [N] are spread over at most BINS equal bins; of those of all processes, unless they are
    `shared` and all have the same. None where there are none. Collective unless shared.
    """
    values = values.detach().double().flatten().cpu()
    values = values[values.isfinite()]
    ends = torch.cat([torch.stack([-values, values]), values.new_full((2, 1), -torch.inf)], dim=1).amax(1)
    low, high = (ends if shared else world.all_reduce_max(ends)).tolist()
    if -low > high:
        return None
    edges = bin_edges(-low, high)
    places = torch.bucketize(values, values.new_tensor(edges), right=True) - 1
    counts = torch.bincount(places, minlength=len(edges) - 1)
    counts = counts if shared else world.all_reduce_sum(counts)
    return Distribution(step=step, name=name, edges=edges, counts=tuple(counts.tolist()))


def bin_edges(low: float, high: float) -> tuple[float, ...]:
    """The edges of at most BINS equal bins, of which the first begins at `low` and the last ends just above `high`; of
    equal numbers one bin around them, wide enough for a picture."""
    if low == high:
        return min(low - 0.5, math.nextafter(low, -math.inf)), max(low + 0.5, math.nextafter(low, math.inf))
    inner = (low * (1 - place / BINS) + high * (place / BINS) for place in range(BINS))
    return *sorted({min(max(edge, low), high) for edge in inner}), math.nextafter(high, math.inf)


# ---- sampler and trainer


class Mismatch:
    """Mismatch between the program that samples and the one that trains, with equal weights, over the tokens of a step.

    Kernels, number formats and the order of sums differ, so a token's probability is not the same in both. Truncated
    importance sampling (TIS; Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training")
    gives each token's policy loss the weight min(p_trainer / p_sampler, cap), without gradient.
    """

    def __init__(self, cap: float | None) -> None:
        self.cap = cap
        self.sums: Tensor | None = None  # [12], see `_moments`
        self.most: Tensor | None = None  # [] largest difference of probabilities

    def record_and_weight(self, part: Batch) -> Batch:
        """Record the part; with a cap, weight its tokens."""
        ratio = (part.old - part.rollout).exp()  # [B, T]
        seen = part.mask > 0
        if part.preference is not None:
            seen = seen & (part.preference == 0)[:, None]  # pairs are not sampled
        moments, most = self._moments(part.old[seen], part.rollout[seen], ratio[seen])
        self.sums = moments if self.sums is None else self.sums + moments
        self.most = most if self.most is None else self.most.maximum(most)
        return part if self.cap is None else replace(part, importance=ratio.clamp(max=self.cap))

    def _moments(self, old: Tensor, rollout: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Of log-probabilities [N]: sums over the tokens, and the largest difference."""
        old, rollout, ratio = old.double(), rollout.double(), ratio.double()
        p, q = old.exp(), rollout.exp()
        apart, log_ratio, cap = (p - q).abs(), old - rollout, self.cap or torch.inf
        sums = [
            torch.ones_like(p), -log_ratio, ratio - log_ratio - 1, apart, apart.square(), ratio.clamp(max=cap),
            (ratio > cap).double(), p, q, p.square(), q.square(), p * q,
        ]  # fmt: skip
        return torch.stack([x.sum() for x in sums]), torch.cat([apart, apart.new_zeros(1)]).max()

    def metrics(self, device: torch.device) -> dict[str, float]:
        """verl's names, over all processes since the last call; collective. Empty without tokens."""
        sums = torch.zeros(12, dtype=torch.float64, device=device) if self.sums is None else self.sums
        most = world.all_reduce_max(sums.new_zeros(()) if self.most is None else self.most).item()
        tokens, k1, k3, apart, apart_2, weight, cut, p, q, p_2, q_2, pq = world.all_reduce_sum(sums).tolist()
        self.sums = self.most = None
        if not tokens:
            return {}
        found = {
            "rollout_corr/kl": k1 / tokens,
            "rollout_corr/k3_kl": k3 / tokens,
            "training/rollout_probs_diff_max": most,
            "training/rollout_probs_diff_mean": apart / tokens,
            "training/rollout_probs_diff_std": (max(apart_2 - apart**2 / tokens, 0.0) / max(tokens - 1, 1)) ** 0.5,
        }
        spread = max(p_2 - p * p / tokens, 0.0) * max(q_2 - q * q / tokens, 0.0)
        if spread > FLAT * tokens**2:
            found["training/rollout_actor_probs_pearson_corr"] = (pq - p * q / tokens) / spread**0.5
        if self.cap is not None:
            found["rollout_corr/rollout_is_mean"] = weight / tokens
            found["rollout_corr/rollout_is_ratio_fraction_high"] = cut / tokens
        return found


# ---- the reward


def unscored_rows(batch: Batch) -> Tensor:
    """[B] bool: rows of groups in which an answer has no score."""
    if batch.reward is None or batch.group is None:
        return torch.zeros_like(batch.length, dtype=torch.bool)
    return torch.isin(batch.group, batch.group[~batch.reward.isfinite()])


def mask_unscored(batch: Batch) -> Batch:
    """The batch with a mask of 0 in rows without a score; the batch itself where all have one."""
    excluded = unscored_rows(batch)
    if not excluded.any():
        return batch
    return replace(batch, mask=batch.mask * ~excluded[:, None], reward=batch.reward.masked_fill(excluded, 0.0))


@dataclass
class Tally:
    """Scores and faults of a step or a validation, in this process."""

    answers: int = 0
    faults: list[tuple[int, str, str]] = field(default_factory=list)
    """Place in the step, row and reason of each answer without a score."""
    parts: list[tuple[int, str, float]] = field(default_factory=list)
    """Group, name and value of each part of each answer that has one."""

    def note(self, groups: Sequence[int], rows: Sequence[str], scores: Scores) -> None:
        """Scores of some answers, with the group and the row (file:line) of each."""
        self.answers += len(rows)
        for group, row, reason in zip(groups, rows, scores.faults, strict=True):
            if reason:
                self.faults.append((group, row, reason))
        for name, values in scores.parts.items():
            self.parts += [(group, name, x) for group, x in zip(groups, values, strict=True) if x == x]

    def summary(self, groups: set[int] | None = None) -> tuple[dict[str, float], list[str]]:
        """Metrics, and lines for a person, over all processes; collective. Parts are those of `groups`,
        without the groups that are left out of the step.
        """
        excluded, sums = {group for group, _, _ in self.faults}, dict[str, tuple[float, int]]()
        for group, name, value in self.parts:
            if group not in excluded and (groups is None or group in groups):
                total, count = sums.get(name, (0.0, 0))
                sums[name] = total + value, count + 1
        processes = world.all_gather_object((self.answers, self.faults, sums))
        metrics = {
            f"train/core/reward/{name}" if name in SUMMED else f"critic/score/{name}/mean": total / count
            for name, (total, count) in add_sums([sums for _, _, sums in processes]).items()
        }
        faults = sorted(fault for _, faults, _ in processes for fault in faults)
        if not faults:
            return metrics, []
        answers = sum(count for count, _, _ in processes)
        return metrics | {"reward/faults": float(len(faults))}, _lines(faults, answers)


def add_sums(parts: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Total and count of each name over all `parts`, exactly rounded."""
    names = sorted({name for part in parts for name in part})
    pairs = {name: [part[name] for part in parts if name in part] for name in names}
    return {name: (fsum(total for total, _ in each), fsum(count for _, count in each)) for name, each in pairs.items()}


def _lines(faults: Sequence[tuple[int, str, str]], answers: int) -> list[str]:
    """One line per reason, with the first row that has it."""
    often = Counter(reason for _, _, reason in faults)
    first = {reason: row for _, row, reason in reversed(faults)}
    lines = [
        f"{first[reason]}: {reason}; {count} of {answers} answers are without a score, their groups left out"
        for reason, count in often.most_common(SHOWN)
    ]
    if more := sum(count for _, count in often.most_common()[SHOWN:]):
        lines.append(f"{more} more answers are without a score, for {len(often) - SHOWN} other reasons")
    return lines
