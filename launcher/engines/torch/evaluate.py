"""How well the policy does on held-out rows."""

from __future__ import annotations

import torch

from launcher.engines.torch import streams, world
from launcher.engines.torch.decode import Decoder
from launcher.engines.torch.policy import Policy
from launcher.engines.torch.rows import Rows
from launcher.engines.torch.sources import imitated
from launcher.spec.reward import Reward


class Validation:
    """Answers held-out prompts and scores them; where demonstrations are held out, their loss too.

    A demonstration is answered only where its right answer is known.
    """

    def __init__(self, rows: Rows, policy: Policy, decoder: Decoder, reward: Reward, seed: int, size: int) -> None:
        self.rows, self.policy, self.decoder, self.reward = rows, policy, decoder, reward
        self.seed, self.size = seed, size
        self.asked = [
            place
            for place, row in enumerate(rows.rows)
            if row.ground_truth is not None and (row.response is not None or policy.sampled)
        ]
        self.sources = sorted({rows.rows[place].data_source for place in self.asked})

    def measure(self, step: int) -> dict[str, float]:
        """verl's metrics of a validation, over all processes."""
        return (self._scores(step) if self.asked else {}) | (self._loss() if not self.policy.sampled else {})

    def _scores(self, step: int) -> dict[str, float]:
        sums = torch.zeros(len(self.sources), 2, dtype=torch.double, device=self.decoder.model.device)
        mine = self.asked[world.RANK :: world.SIZE]
        for start in range(0, len(mine), self.size):
            part = mine[start : start + self.size]
            for place, score in zip(part, self._answer(part, step), strict=True):
                source = self.sources.index(self.rows.rows[place].data_source)
                sums[source] += sums.new_tensor([score, 1.0])
        totals = world.total(sums).tolist()
        return {
            f"val-core/{source}/reward/mean@1": score / count
            for source, (score, count) in zip(self.sources, totals, strict=True)
        }

    def _answer(self, places: list[int], step: int) -> list[float]:
        prompts = [self.rows.tokens[place] for place in places]
        ids = [prompt.ids[: prompt.mask.index(1)] if 1 in prompt.mask else prompt.ids for prompt in prompts]
        keys = streams.keys(self.seed, -step - 1, places, 1)  # never a training step's streams
        answers = self.decoder.sample(ids, 1, keys, self.decoder.sampler.val_temperature)
        texts = self.decoder.texts(answers)
        return self.reward.score([self.rows.answer(*asked) for asked in zip(prompts, texts, strict=True)])

    def _loss(self) -> dict[str, float]:
        mine = self.rows.tokens[world.RANK :: world.SIZE]
        found = [0.0, 0.0]
        for start in range(0, len(mine), self.size):
            batch = imitated(mine[start : start + self.size], self.policy.model)
            found = [a + b for a, b in zip(found, self.policy.loss(batch), strict=True)]
        nll, tokens = world.total(torch.tensor(found, dtype=torch.double, device=self.policy.model.device)).tolist()
        return {"val/loss": nll / max(tokens, 1)}
