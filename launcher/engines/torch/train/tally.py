"""Scores and faults of the reward.

An answer without a score excludes its whole group from the step, as the others cannot be compared with it: the group's
tokens count in no loss, mean or unit, and other groups learn what they would have learnt without it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from launcher.engines.torch.parallel import world
from launcher.spec.algorithm import Batch
from launcher.spec.episode import Episode

SHOWN = 3  # reasons for missing scores that are reported of one step
SUMMED = {"rule_based", "rm_based"}  # sums of the scores of rules and of networks


def unscored_rows(batch: Batch) -> Tensor:
    """[B] bool: rows of groups in which an answer has no score."""
    if batch.reward is None or batch.group is None:
        return torch.zeros_like(batch.length, dtype=torch.bool)
    return torch.isin(batch.group, batch.group[~batch.reward.isfinite()])


def any_scored(batch: Batch) -> bool:
    """Whether any answer of any process counts. Collective."""
    return world.all_reduce_sum((~unscored_rows(batch)).sum().double()).item() > 0


def mask_unscored(batch: Batch) -> Batch:
    """The batch with a mask of 0 in rows without a score; the batch itself where all have one."""
    excluded = unscored_rows(batch)
    if not excluded.any():
        return batch
    return replace(batch, mask=batch.mask * ~excluded[:, None], reward=batch.reward.masked_fill(excluded, 0.0))


@dataclass
class Tally:
    """Scores and faults of a step or a validation, in this process."""

    excluded: str = "their groups left out"
    """What becomes of answers without a score, in words."""
    answers: int = 0
    faults: list[tuple[int, str, str]] = field(default_factory=list)
    """Place in the step, row and reason of each answer without a score."""
    parts: list[tuple[int, str, float]] = field(default_factory=list)
    """Group, name and value of each part of each answer that has one."""

    def note(self, episodes: Sequence[Episode], reasons: Sequence[str], rows: Sequence[str]) -> None:
        """Scores of some answers, why those without one have none, and the row (file:line) of each."""
        self.answers += len(rows)
        for one, reason, row in zip(episodes, reasons, rows, strict=True):
            assert one.group is not None
            if reason:
                self.faults.append((one.group, row, reason))
            self.parts += [(one.group, name, x) for name, x in one.parts.items() if x == x]

    def summary(self, groups: set[int] | None = None) -> tuple[dict[str, float], list[str]]:
        """Metrics, and lines for a person, over all processes; collective. Parts are those of `groups`,
        without the groups that are left out of the step.
        """
        excluded, sums = {group for group, _, _ in self.faults}, defaultdict[tuple[str, str], float](float)
        for group, name, value in self.parts:
            if group not in excluded and (groups is None or group in groups):
                sums[name, "total"] += value
                sums[name, "count"] += 1
        totals = world.add_sums(sums)
        means = {name: totals[name, "total"] / totals[name, "count"] for name, _ in totals}
        metrics = {
            f"train/core/reward/{name}" if name in SUMMED else f"critic/score/{name}/mean": mean
            for name, mean in means.items()
        }
        processes = world.all_gather_object((self.answers, self.faults))
        faults = sorted(fault for _, faults in processes for fault in faults)
        if not faults:
            return metrics, []
        answers = sum(count for count, _ in processes)
        return metrics | {"reward/faults": float(len(faults))}, _fault_messages(faults, answers, self.excluded)


def _fault_messages(faults: Sequence[tuple[int, str, str]], answers: int, excluded: str) -> list[str]:
    """One line per reason, with the first row that has it."""
    counts = Counter(reason for _, _, reason in faults)
    first = {reason: row for _, row, reason in reversed(faults)}
    lines = [
        f"{first[reason]}: {reason}; {count} of {answers} answers are without a score, {excluded}"
        for reason, count in counts.most_common(SHOWN)
    ]
    if more := sum(count for _, count in counts.most_common()[SHOWN:]):
        lines.append(f"{more} more answers are without a score, for {len(counts) - SHOWN} other reasons")
    return lines
