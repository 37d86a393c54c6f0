"""Supervised fine-tuning: raise the probability of the answers' tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from launcher.algorithms import ops
from launcher.core.settings import settings
from launcher.spec.algorithm import Algorithm, Batch, Loss, Mean, Output

if TYPE_CHECKING:
    from torch import Tensor


@settings
class SFT(Algorithm):
    """Supervised Fine-Tuning: negative log-likelihood of the answers."""

    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean"] = "token-mean"
    """`token-mean`: mean over all answer tokens of the batch; `seq-mean-token-mean`: each answer has equal weight."""

    data = "answers"
    usual_lr = 2e-5
    verl = {}  # it has no other loss

    def loss(self, new: Output, batch: Batch) -> Loss:
        weight, units = ops.token_weights(self.loss_agg_mode, batch.mask)
        nll = -(new.logp * weight).sum()
        return nll, {"train/loss": Mean(nll.detach(), units)}

    def units(self, batch: Batch) -> Tensor:
        return ops.token_weights(self.loss_agg_mode, batch.mask)[1]
