"""Supervised fine-tuning: raise the probability of the answers' tokens."""

from __future__ import annotations

from launcher.settings import settings
from launcher.spec.algorithm import Algorithm, Batch, Loss, Output


@settings
class SFT(Algorithm):
    """Negative log-likelihood, a mean over all answer tokens of the batch, so a long answer counts for more."""

    data = "answers"

    def loss(self, new: Output, batch: Batch) -> Loss:
        nll = -(new.logp * batch.mask).sum()
        return nll, {"train/loss": nll.detach()}
