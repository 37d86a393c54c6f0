"""Metrics that add up: over micro-batches, over the updates of a step, over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

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

    def totals(self) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
        """Totals with their counts, and largest values, over all processes, without metrics of which nothing was
        measured. Collective."""
        held = world.all_gather_object((sorted(self.means), sorted(self.largest)))
        mean_names, largest_names = (sorted({name for names in held for name in names[which]}) for which in (0, 1))
        nothing = torch.zeros(2, dtype=torch.float64, device=self.device)
        totals, largest = dict[str, tuple[float, float]](), dict[str, float]()
        if mean_names:
            sums = world.all_reduce_sum(torch.stack([self.means.get(name, nothing) for name in mean_names])).tolist()
            totals = {name: (total, count) for name, (total, count) in zip(mean_names, sums, strict=True) if count}
        if largest_names:
            least = nothing.new_tensor(-torch.inf)
            tops = world.all_reduce_max(torch.stack([self.largest.get(name, least) for name in largest_names])).tolist()
            largest = {name: top for name, top in zip(largest_names, tops, strict=True) if top != -torch.inf}
        return totals, largest

    def reduced(self) -> tuple[dict[str, float], dict[str, float]]:
        """Means and largest values over all processes. Collective."""
        totals, largest = self.totals()
        return {name: total / count for name, (total, count) in totals.items()}, largest


def join_metrics(updates: Sequence[Mapping[str, float]], join: Callable[[Iterable[float]], float]) -> dict[str, float]:
    """Each metric of a step, joined (`fmean`, `max`) over those of its updates that have it."""
    names = dict.fromkeys(name for update in updates for name in update)
    return {name: join([update[name] for update in updates if name in update]) for name in names}
