"""Metrics of a step: means and extremes over all processes, and durations."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor

from launcher.algorithms import ops
from launcher.engines.torch.parallel import world
from launcher.engines.torch.train.tally import unscored_rows
from launcher.spec.algorithm import Batch


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


def batch_metrics(raw: Batch, prepared: Batch, sampled: bool, max_response: int) -> dict[str, float]:
    """verl's metrics of a step's data: as it came, and as the algorithm made it. Both are what this process holds.

    Scores are those of groups whose answers all have one.
    """
    if sampled:  # pairs among sampled answers have no score
        raw, prepared = (batch.rows(batch.preference == 0) for batch in (raw, prepared))
    answer = raw.mask.sum(-1)  # [B]
    values = {"prompt_length": raw.length - answer, "response_length": answer}
    if not sampled:
        return mean_max_min(values)
    values["response_length/clip_ratio"] = answer >= max_response
    known = ~unscored_rows(raw)
    raw, prepared = raw.rows(known), prepared.rows(known)
    same = ops.same_in_group(raw.reward, ops.group_index(raw.group)) if len(raw) else raw.group > 0
    values |= {"critic/score": raw.reward, "critic/rewards": prepared.reward, "critic/frac_reward_zero_std": same}
    for name, values_of in (
        ("advantages", prepared.advantage),
        ("returns", prepared.target),
        ("values", prepared.value),
    ):
        if values_of is not None:
            values[f"critic/{name}"] = values_of[prepared.mask > 0]
    found = mean_max_min(values)
    for name in ("response_length/clip_ratio", "critic/frac_reward_zero_std"):
        if f"{name}/mean" in found:
            found[name] = found.pop(f"{name}/mean")
            del found[f"{name}/max"], found[f"{name}/min"]
    return found


def mean_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over those of a step's updates that have it."""
    names = dict.fromkeys(name for update in updates for name in update)
    return {name: fmean(update[name] for update in updates if name in update) for name in names}


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
    return found
