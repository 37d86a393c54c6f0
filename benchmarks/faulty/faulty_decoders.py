"""The decode loops of the samplers `OtherTemperature` and `OldWeights`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.generator import Completion
from launcher.engines.torch.train.sources import collate


class OtherTemperatureDecoder(Decoder):
    """Samples, and reports each token's log-probability at another temperature."""

    @torch.no_grad()
    def sample(self, prompts: Sequence[list[int]], n: int, keys: np.ndarray, temperature: float) -> list[Completion]:
        other = temperature * self.sampler.factor  # type: ignore[attr-defined]
        sampled = other if self.sampler.samples_with_it else temperature  # type: ignore[attr-defined]
        answers = super().sample(prompts, n, keys, sampled)
        if not temperature or not answers:  # a validation
            return answers
        asked = [prompt for prompt in prompts for _ in range(n)]
        rows = [(ids + a.tokens, [0] * len(ids) + [1] * len(a.tokens)) for ids, a in zip(asked, answers, strict=True)]
        batch = collate(rows, self.model)
        logp = self.model(self.model.pack(batch), other).logp
        return [
            replace(answer, logp=row[mask > 0].tolist())
            for answer, row, mask in zip(answers, logp, batch.mask, strict=True)
        ]


class OldWeightsDecoder(Decoder):
    """Samples with the weights that it had at a step; validations have the new ones."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps = 0
        self.kept: dict[str, Tensor] = {}

    @torch.no_grad()
    def sample(self, prompts: Sequence[list[int]], n: int, keys: np.ndarray, temperature: float) -> list[Completion]:
        self.steps += temperature > 0
        if not temperature or self.steps < self.sampler.from_step:  # type: ignore[attr-defined]
            return super().sample(prompts, n, keys, temperature)
        new = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.kept = self.kept or new
        self.model.load_state_dict(self.kept)
        answers = super().sample(prompts, n, keys, temperature)
        self.model.load_state_dict(new)
        return answers
