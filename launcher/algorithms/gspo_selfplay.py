"""GSPO on prompts and DPO on pairs in one file: our reading of the "Group Self-Play" data mode.

No paper: with only prompts it equals GSPO (arXiv:2507.18071), with only pairs DPO (arXiv:2305.18290), exactly.
The loss is (N_answers GSPO + w N_pairs DPO) / (N_answers + w N_pairs).
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from launcher.algorithms.dpo import DPO, Smoothing
from launcher.algorithms.gspo import GSPO
from launcher.core.settings import Positive, settings
from launcher.spec.algorithm import Batch, Largest, Loss, Mean, Output

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.spec.algorithm import Need


@settings
class GSPOSelfPlay(GSPO):
    """GSPO on prompts and DPO on pairs, from one file that holds both."""

    beta: Positive = 0.1
    """DPO's beta for the pairs: strength of the constraint towards the reference model."""
    label_smoothing: Smoothing = 0.0
    """Assumed fraction of pairs with swapped labels."""
    pair_weight: Positive = 1.0
    """Weight of a pair in the loss, relative to a sampled answer."""

    data = "mixed"
    whole_groups = True
    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})

    @property
    def pairs(self) -> DPO:
        return DPO(beta=self.beta, label_smoothing=self.label_smoothing)

    def group_filter(self, batch: Batch) -> Tensor:
        return super().group_filter(batch) | (batch.preference != 0)

    def loss(self, new: Output, batch: Batch) -> Loss:
        sampled, paired = batch.preference == 0, batch.preference != 0
        parts = []
        if sampled.any():
            parts.append((1.0, super().loss(_rows(new, sampled), batch.rows(sampled))))
        if paired.any():
            parts.append((self.pair_weight, self.pairs.loss(_rows(new, paired), batch.rows(paired))))
        loss = sum((weight * part for weight, (part, _) in parts), new.logp.sum() * 0)
        metrics: dict[str, Mean | Largest] = {}
        for _, (_, part_metrics) in parts:
            metrics |= part_metrics
        return loss, metrics

    def units(self, batch: Batch) -> Tensor:
        sampled, paired = batch.preference == 0, batch.preference != 0
        return super().units(batch.rows(sampled)) + self.pair_weight * self.pairs.units(batch.rows(paired))


def _rows(new: Output, selected: Any) -> Output:
    tensors = {f.name: value for f in fields(new) if (value := getattr(new, f.name)) is not None}
    return Output(**{name: value[selected] for name, value in tensors.items()})
