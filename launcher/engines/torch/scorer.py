"""A reward model at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from launcher.models.pretrained import weights_of
from launcher.problems import Problems
from launcher.rewards.model import RewardModel
from launcher.spec.reward import Answer, Reward


class ModelScorer(Reward):
    """Writes prompt and answer with the reward model's own template, and takes its one logit as the score."""

    def __init__(self, settings: RewardModel, device: torch.device, rests: bool = False) -> None:
        self.settings, self.device, self.rests = settings, device, rests
        path, more = weights_of(settings.path), {"revision": settings.revision or "main"}
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(path, **more)
            module = AutoModelForSequenceClassification.from_pretrained(path, use_safetensors=True, **more)
        except (OSError, ValueError, SafetensorError) as error:
            said = " ".join(str(error).split())
            raise Problems([f"reward.path: {settings.path!r} cannot be loaded: {said}"]) from error
        if module.config.num_labels != 1:
            raise Problems([f"reward.path: the model has {module.config.num_labels} outputs; one would do"])
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        module.config.pad_token_id = self.tokenizer.pad_token_id  # the classifier reads the last token before it
        self.module = module.eval().to("cpu" if rests else device)
        self.longest = settings.max_length or getattr(module.config, "max_position_embeddings", None)

    @torch.no_grad()
    def score(self, answers: Sequence[Answer]) -> list[float]:
        """One logit for each answer."""
        self.module.to(self.device)
        texts = [self.text(answer) for answer in answers]
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))  # like lengths together
        scores = [0.0] * len(texts)
        for start in range(0, len(order), self.settings.batch_size):
            places = order[start : start + self.settings.batch_size]
            for place, value in zip(places, self._logits([texts[place] for place in places]), strict=True):
                scores[place] = value
        if self.rests:
            self.module.to("cpu")
        return scores

    def _logits(self, texts: list[str]) -> list[float]:
        templated = self.tokenizer.chat_template is not None
        rows = self.tokenizer(texts, add_special_tokens=not templated).input_ids
        rows = [row[-self.longest :] if self.longest else row for row in rows]
        width, pad = max(map(len, rows)), self.tokenizer.pad_token_id
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=self.device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=self.device)
        return cast("list[float]", self.module(input_ids=ids, attention_mask=mask).logits[:, 0].float().tolist())

    def text(self, answer: Answer) -> str:
        """Prompt and answer as the reward model was taught to read them."""
        turns = [("user", answer.prompt)] if isinstance(answer.prompt, str) else list(answer.prompt)
        if self.tokenizer.chat_template is None:
            return "".join(content for _, content in turns) + answer.response
        messages = [{"role": role, "content": content} for role, content in (*turns, ("assistant", answer.response))]
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False))
