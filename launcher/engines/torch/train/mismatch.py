"""The mismatch between the program that samples and the one that trains."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from launcher.engines.torch.parallel import world
from launcher.spec.algorithm import Batch

FLAT = 1e-24
"""Probabilities that vary less than this (a variance squared) have no correlation but that of rounding."""


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
        sampled = part.mask > 0
        if part.preference is not None:
            sampled = sampled & (part.preference == 0)[:, None]  # pairs are not sampled
        moments, max_diff = self._moments(part.old[sampled], part.rollout[sampled], ratio[sampled])
        self.sums = moments if self.sums is None else self.sums + moments
        self.most = max_diff if self.most is None else self.most.maximum(max_diff)
        return part if self.cap is None else replace(part, importance=ratio.clamp(max=self.cap))

    def _moments(self, old: Tensor, rollout: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """[12] sums over tokens with log-probabilities [N], and [] the largest difference of probabilities."""
        old, rollout, ratio = old.double(), rollout.double(), ratio.double()
        p, q = old.exp(), rollout.exp()
        diff, log_ratio, cap = (p - q).abs(), old - rollout, self.cap or torch.inf
        sums = [
            torch.ones_like(p), -log_ratio, ratio - log_ratio - 1, diff, diff.square(), ratio.clamp(max=cap),
            (ratio > cap).double(), p, q, p.square(), q.square(), p * q,
        ]  # fmt: skip
        return torch.stack([x.sum() for x in sums]), torch.cat([diff, diff.new_zeros(1)]).max()

    def metrics(self, device: torch.device) -> dict[str, float]:
        """Metrics by verl's names, over all processes since the last call; collective. Empty without tokens."""
        sums = torch.zeros(12, dtype=torch.float64, device=device) if self.sums is None else self.sums
        max_diff = world.all_reduce_max(sums.new_zeros(()) if self.most is None else self.most).item()
        tokens, k1, k3, diff, diff_2, weight, clipped, p, q, p_2, q_2, pq = world.all_reduce_sum(sums).tolist()
        self.sums = self.most = None
        if not tokens:
            return {}
        metrics = {
            "rollout_corr/kl": k1 / tokens,
            "rollout_corr/k3_kl": k3 / tokens,
            "training/rollout_probs_diff_max": max_diff,
            "training/rollout_probs_diff_mean": diff / tokens,
            "training/rollout_probs_diff_std": (max(diff_2 - diff**2 / tokens, 0.0) / max(tokens - 1, 1)) ** 0.5,
        }
        spread = max(p_2 - p * p / tokens, 0.0) * max(q_2 - q * q / tokens, 0.0)
        if spread > FLAT * tokens**2:
            metrics["training/rollout_actor_probs_pearson_corr"] = (pq - p * q / tokens) / spread**0.5
        if self.cap is not None:
            metrics["rollout_corr/rollout_is_mean"] = weight / tokens
            metrics["rollout_corr/rollout_is_ratio_fraction_high"] = clipped / tokens
        return metrics
