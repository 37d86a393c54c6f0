"""The decode loops of the samplers `OtherTemperature` and `OldWeights`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.generator import Request
from launcher.engines.torch.train.batching import collate
from launcher.spec.episode import Episode, Turn


class OtherTemperatureDecoder(Decoder):
    """Samples, and reports each token's log-probability at another temperature."""

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        other = temperature * self.sampler.factor  # type: ignore[attr-defined]
        sampled = other if self.sampler.samples_with_it else temperature  # type: ignore[attr-defined]
        answers = super().generate(requests, sampled)
        if not temperature or not answers:  # a validation
            return answers
        prompts = [request.prompt for request in requests for _ in request.keys]
        batch = collate([Episode(prompt, (turn,)) for prompt, turn in zip(prompts, answers, strict=True)], self.model)
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
    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        self.steps += temperature > 0
        if not temperature or self.steps < self.sampler.from_step:  # type: ignore[attr-defined]
            return super().generate(requests, temperature)
        new = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.kept = self.kept or new
        self.model.load_state_dict(self.kept)
        answers = super().generate(requests, temperature)
        self.model.load_state_dict(new)
        return answers
