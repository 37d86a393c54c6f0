"""Scoring with a reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from launcher.core.problems import Problem, Problems
from launcher.engines.torch.model.whole import load_whole
from launcher.models.pretrained import weights_of
from launcher.rewards.combined import Combined
from launcher.rewards.model import RewardModel
from launcher.spec.reward import Answer, Reward


class ModelScorer(Reward):
    """Formats prompt and answer with the reward model's own chat template; its single logit is the score."""

    learned = True
    cheap = False

    def __init__(self, settings: RewardModel, device: torch.device, offloaded: bool = False) -> None:
        self.settings, self.device, self.offloaded = settings, device, offloaded
        path, options = weights_of(settings.path), {"revision": settings.revision or "main"}
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(path, **options)
            module = load_whole(AutoModelForSequenceClassification, path, "reward.path", **options)
        except (OSError, ValueError, SafetensorError) as error:
            got = f"{settings.path!r} cannot be loaded: {' '.join(str(error).split())}"
            raise Problems(Problem("reward.path", got, code="bad-file")) from error
        module.config.pad_token_id = -1  # the model scores the last token before padding, and nothing here is padded
        self.module = module.eval().to("cpu" if offloaded else device)
        self.longest = settings.max_length or getattr(module.config, "max_position_embeddings", None)

    @torch.no_grad()
    def score(self, answers: Sequence[Answer]) -> list[float]:
        """One logit for each answer."""
        if not answers:
            return []
        self.module.to(self.device)
        rows = self._ids([self.text(answer) for answer in answers])
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        scores = [0.0] * len(rows)
        for _, same in groupby(order, key=lambda place: len(rows[place])):  # equal lengths together: nothing is padded
            places = list(same)
            for start in range(0, len(places), self.settings.batch_size):
                part = places[start : start + self.settings.batch_size]
                ids = torch.tensor([rows[place] for place in part], device=self.device)
                for place, value in zip(part, self.module(input_ids=ids).logits[:, 0].tolist(), strict=True):
                    scores[place] = value
        if self.offloaded:
            self.module.to("cpu")
        return scores

    def _ids(self, texts: list[str]) -> list[list[int]]:
        templated = self.tokenizer.chat_template is not None  # a template writes the special tokens itself
        rows: list[list[int]] = self.tokenizer(texts, add_special_tokens=not templated).input_ids
        return [row[-self.longest :] if self.longest else row for row in rows]

    def text(self, answer: Answer) -> str:
        """Prompt and answer in the reward model's format."""
        turns = [("user", answer.prompt)] if isinstance(answer.prompt, str) else list(answer.prompt)
        if self.tokenizer.chat_template is None:
            return "".join(content for _, content in turns) + answer.response
        messages = [{"role": role, "content": content} for role, content in (*turns, ("assistant", answer.response))]
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False))


def load_reward_models(reward: Reward, device: torch.device, offloaded: bool = False) -> Reward:
    """The reward, with all of its models loaded."""
    if isinstance(reward, RewardModel):
        return ModelScorer(reward, device, offloaded)
    if isinstance(reward, Combined):
        return replace(
            reward, parts={name: load_reward_models(part, device, offloaded) for name, part in reward.parts.items()}
        )
    return reward
