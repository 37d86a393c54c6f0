"""The model under training, with its optimizer and the reference that stands beside it."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from launcher.engines.torch import world
from launcher.engines.torch.measure import Clock
from launcher.engines.torch.model import CausalLM, entropy
from launcher.engines.torch.packing import pack
from launcher.spec.algorithm import Algorithm, Batch, Output
from launcher.spec.run import Optim


class Policy:
    """Equal on every process: each holds all weights and takes the same optimizer steps."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: CausalLM,
        optim: Optim,
        *,
        micro: int,
        steps: int,
        temperature: float = 1.0,
        reference: CausalLM | None = None,
    ) -> None:
        self.algorithm, self.model, self.optim, self.reference = algorithm, model, optim, reference
        self.micro, self.steps, self.temperature = micro, steps, temperature
        self.sampled = algorithm.data == "prompts"
        self.prefix = "actor" if self.sampled else "train"
        self.optimizer = torch.optim.AdamW(
            model.module.parameters(), lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=True
        )

    @torch.no_grad()
    def annotate(self, batch: Batch, clock: Clock, *, on_policy: bool) -> Batch:
        """Log-probabilities as they stand before the update; `old` is left to the update when it is on-policy."""
        if self.sampled and not on_policy:
            with clock("old_log_prob"):
                batch = replace(batch, old=self._logp(self.model, batch))
        if self.reference:
            with clock("ref"):
                batch = replace(batch, reference=self._logp(self.reference, batch))
        return batch

    def _logp(self, model: CausalLM, batch: Batch) -> Tensor:
        model.module.eval()
        return torch.cat([model.logp(pack(part), self.temperature)[0] for part in batch.split(self.micro)])

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """One optimizer step. The sum of the parts' losses is divided once, by what all processes hold together."""
        self.model.module.train()
        counts = torch.stack([self.algorithm.units(batch), batch.mask.sum()]).double()
        units, tokens = world.total(counts).clamp(min=torch.finfo(torch.double).tiny).tolist()
        sums: dict[str, Tensor] = {}
        for part in batch.split(self.micro):
            for name, value in self._backward(part, units).items():
                sums[name] = sums.get(name, 0) + value.double()
        weights = [weight for weight in self.model.module.parameters() if weight.requires_grad]
        world.total_in_place([weight.grad for weight in weights if weight.grad is not None])
        norm = nn.utils.clip_grad_norm_(weights, self.optim.clip_grad)
        rate = self.learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if finite := bool(torch.isfinite(norm)):  # one update with NaN or Inf would end the model
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        names = sorted(sums)
        totals = world.total(torch.stack([sums[name] for name in names])).tolist()
        means = {
            name.removesuffix("@token"): value / (tokens if name.endswith("@token") else units)
            for name, value in zip(names, totals, strict=True)
        }
        return means | {
            f"{self.prefix}/grad_norm": norm.item(),
            f"{self.prefix}/lr": rate,
            f"{self.prefix}/skipped_nonfinite": float(not finite),
        }

    def _backward(self, part: Batch, units: float) -> dict[str, Tensor]:
        """Add a micro-batch's share of the gradient; the sums it reports."""
        logp, logits = self.model.logp(pack(part), self.temperature)
        if self.sampled and part.old is None:  # on-policy: these weights sampled the answers
            part = replace(part, old=logp.detach())
        loss, seen = self.algorithm.loss(Output(logp), part)
        (loss / units).backward()
        return {**seen, "actor/entropy@token": entropy(logits).sum()} if self.sampled else dict(seen)

    @torch.no_grad()
    def loss(self, batch: Batch) -> tuple[float, float]:
        """Summed negative log-likelihood of a local batch, and its number of answer tokens."""
        return -self._logp(self.model, batch).double().sum().item(), batch.mask.sum().item()

    def learning_rate(self, step: int) -> float:
        """Rate of a step (1-based): linear warm-up from 0, then constant, linear or half a cosine down."""
        optim, warm = self.optim, self.optim.lr_warmup_steps
        if step <= warm:
            return optim.lr * step / warm
        if optim.lr_scheduler_type == "constant":
            return optim.lr
        done = (step - warm) / max(self.steps - warm, 1)
        left = 1 - done if optim.lr_scheduler_type == "linear" else (1 + math.cos(math.pi * done)) / 2
        return optim.lr * (optim.min_lr_ratio + (1 - optim.min_lr_ratio) * left)
