"""Metrics of a step's data and its updates, over all processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from launcher.algorithms import ops
from launcher.core.events import Distribution
from launcher.engines.torch.parallel import world
from launcher.engines.torch.train.sums import Sums
from launcher.engines.torch.train.tally import unscored_rows
from launcher.spec.algorithm import Batch, Largest, Mean

SHARES = (
    "prompt_length/clip_ratio", "response_length/clip_ratio", "critic/frac_reward_zero_std",
    "critic/rewards/positive_share", "train/gradient_share", "train/end_token_share",
)  # fmt: skip
SPREADS = ("critic/score", "critic/rewards", "critic/advantages")
"""Metrics whose standard deviation is reported, too."""
DISTRIBUTION_STEPS = 10
"""Distributions are reported at the first step and at multiples of this."""
BINS = 20


def mean_max_min(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Mean, maximum and minimum of each tensor's elements, over all processes; of shares the mean alone, and none of an
    empty tensor."""
    sums = Sums(next(iter(values.values())).device)
    for name, elements in values.items():
        x = elements.double().flatten()
        ends = torch.cat([torch.stack([x, -x]), x.new_full((2, 1), -torch.inf)], dim=1).amax(1)
        mean = Mean(x.sum(), x.new_tensor(len(x)))
        if name in SHARES:
            sums.add({name: mean})
        else:
            sums.add({f"{name}/mean": mean, f"{name}/max": Largest(ends[0]), f"{name}/min": Largest(ends[1])})
    means, largest = sums.reduced()
    for name in [name for name in values if f"{name}/mean" in means]:  # an end that is -inf is none of `largest`
        means[f"{name}/max"] = largest.get(f"{name}/max", -torch.inf)
        means[f"{name}/min"] = -largest.get(f"{name}/min", -torch.inf)
    return means


def spreads(values: Mapping[str, Tensor], found: Mapping[str, float]) -> dict[str, float]:
    """Standard deviation (n - 1) of each of SPREADS, and the share of the returns' variance that the critic explains,
    over all processes. `found` has the means: deviations from them lose no digits."""
    centres = {name: found[f"{name}/mean"] for name in SPREADS if f"{name}/mean" in found}
    flat = {name: values[name] for name in centres}
    if "critic/values/mean" in found and "critic/returns/mean" in found:
        returns, predicted = values["critic/returns"].double(), values["critic/values"].double()
        flat |= {"returns": returns, "errors": returns - predicted}
        centres |= {"returns": found["critic/returns/mean"]}
        centres |= {"errors": found["critic/returns/mean"] - found["critic/values/mean"]}
    if not flat:
        return {}
    sums = Sums(next(iter(flat.values())).device)
    sums.add({name: Mean((x.double() - centres[name]).square().sum(), x.new_tensor(x.numel()))
              for name, x in flat.items()})  # fmt: skip
    totals, _ = sums.totals()
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
    prompt = raw.length - answer
    if raw.turn is not None:  # observations between the turns are not part of the prompt
        prompt = torch.where(answer > 0, (raw.mask > 0).int().argmax(1).to(prompt), prompt)
    values = {"prompt_length": prompt, "response_length": answer}
    ends = torch.isin(raw.tokens, raw.tokens.new_tensor(eos)) & (raw.mask > 0)  # [B, T]
    values["train/end_token_share"] = ends.any(-1)
    if max_prompt is not None:
        values["prompt_length/clip_ratio"] = values["prompt_length"] >= max_prompt
    if not sampled:
        return mean_max_min(values)
    values["response_length/clip_ratio"] = answer >= max_response
    if prepared.advantage is not None:
        learnt = loss_tokens(prepared).any(-1)  # [B]
        values["train/gradient_share"] = torch.isin(prepared.group, prepared.group[learnt])
    scored = ~unscored_rows(raw)
    raw, prepared = raw.rows(scored), prepared.rows(scored)
    values["critic/rewards/positive_share"] = raw.reward > 0  # without the KL penalty, which makes no answer wrong
    uniform = ops.same_in_group(raw.reward, ops.group_index(raw.group)) if len(raw) else raw.group > 0
    values |= {"critic/score": raw.reward, "critic/rewards": prepared.reward, "critic/frac_reward_zero_std": uniform}
    computed = {"advantages": prepared.advantage, "returns": prepared.target, "values": prepared.value}
    values |= {f"critic/{name}": x[prepared.mask > 0] for name, x in computed.items() if x is not None}
    metrics = mean_max_min(values)
    return metrics | spreads(values, metrics)


def loss_tokens(batch: Batch) -> Tensor:
    """[B, T] bool: tokens that are trained on; sampled ones by their advantage."""
    in_mask = batch.mask > 0
    return in_mask if batch.advantage is None else in_mask & (batch.advantage != 0)


# ---- distributions


def shows_distributions(step: int) -> bool:
    return step == 1 or step % DISTRIBUTION_STEPS == 0


def distribution(step: int, name: str, values: Tensor, shared: bool) -> Distribution | None:
    """Histogram of the finite `values` [N] in at most BINS equal bins, over all processes, unless the values are
    `shared`, that is equal in all. None where no value is finite. Collective unless shared.
    """
    values = values.detach().double().flatten().cpu()
    values = values[values.isfinite()]
    ends = torch.cat([torch.stack([-values, values]), values.new_full((2, 1), -torch.inf)], dim=1).amax(1)
    low, high = (ends if shared else world.all_reduce_max(ends)).tolist()
    if -low > high:
        return None
    edges = bin_edges(-low, high)
    bins = torch.bucketize(values, values.new_tensor(edges), right=True) - 1
    counts = torch.bincount(bins, minlength=len(edges) - 1)
    counts = counts if shared else world.all_reduce_sum(counts)
    return Distribution(step=step, name=name, edges=edges, counts=tuple(counts.tolist()))


def bin_edges(low: float, high: float) -> tuple[float, ...]:
    """The edges of at most BINS equal bins, of which the first begins at `low` and the last ends just above `high`; of
    equal numbers one bin around them, wide enough for a picture."""
    if low == high:
        return min(low - 0.5, math.nextafter(low, -math.inf)), max(low + 0.5, math.nextafter(low, math.inf))
    inner = (low * (1 - place / BINS) + high * (place / BINS) for place in range(BINS))
    return *sorted({min(max(edge, low), high) for edge in inner}), math.nextafter(high, math.inf)
