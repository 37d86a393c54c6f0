"""Metrics that add up: over micro-batches, over the updates of a step, over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum

import torch
from torch import Tensor

from launcher.engines.torch.parallel import world
from launcher.spec.algorithm import Largest, LossMetrics


class Sums:
    """Metrics of a process's micro-batches: totals and counts, and largest values."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.means: dict[str, Tensor] = {}  # [2] total and count
        self.largest: dict[str, Tensor] = {}  # []

    def add(self, metrics: LossMetrics) -> None:
        """Add the metrics of one micro-batch."""
        for name, metric in metrics.items():
            if isinstance(metric, Largest):
                value = metric.value.double()
                self.largest[name] = value.maximum(self.largest[name]) if name in self.largest else value
            else:
                self.means[name] = self.means.get(name, 0) + torch.stack([x.double() for x in metric])

    def reduced(self) -> tuple[dict[str, float], dict[str, float]]:
        """Means and largest values over all processes, without metrics that nothing was counted in. Collective."""
        held = world.all_gather_object((sorted(self.means), sorted(self.largest)))
        mean_names, largest_names = (sorted({name for names in held for name in names[which]}) for which in (0, 1))
        nothing = torch.zeros(2, dtype=torch.float64, device=self.device)
        if not mean_names and not largest_names:
            return {}, {}
        means, largest = dict[str, float](), dict[str, float]()
        if mean_names:
            totals = world.all_reduce_sum(torch.stack([self.means.get(name, nothing) for name in mean_names])).tolist()
            means = {name: total / count for name, (total, count) in zip(mean_names, totals, strict=True) if count}
        if largest_names:
            least = nothing.new_tensor(-torch.inf)
            tops = world.all_reduce_max(torch.stack([self.largest.get(name, least) for name in largest_names])).tolist()
            largest = {name: top for name, top in zip(largest_names, tops, strict=True) if top > -torch.inf}
        return means, largest


def join_metrics(updates: Sequence[Mapping[str, float]], join: Callable[[Iterable[float]], float]) -> dict[str, float]:
    """Each metric of a step, joined (`fmean`, `max`) over those of its updates that have it."""
    names = dict.fromkeys(name for update in updates for name in update)
    return {name: join([update[name] for update in updates if name in update]) for name in names}


def add_sums(parts: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Total and count of each name over all `parts`, exactly rounded."""
    names = sorted({name for part in parts for name in part})
    pairs = {name: [part[name] for part in parts if name in part] for name in names}
    return {name: (fsum(total for total, _ in each), fsum(count for _, count in each)) for name, each in pairs.items()}
