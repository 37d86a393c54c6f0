"""Where a step's sequences come from: rows that are imitated, or prompts that the policy answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from launcher.engines.torch import streams, world
from launcher.engines.torch.decode import Decoder, Sampled
from launcher.engines.torch.measure import Clock
from launcher.engines.torch.model import CausalLM
from launcher.engines.torch.rows import Rows
from launcher.engines.torch.tokens import Tokens
from launcher.problems import Problems, shown
from launcher.spec.algorithm import Batch
from launcher.spec.reward import Reward

EXACT = torch.float64  # of masks, rewards and advantages: they are small, and their sums nearly cancel


@dataclass(frozen=True)
class Order:
    """Which rows a step takes: a pure function of the step, so a restart needs no state."""

    rows: int
    batch: int
    seed: int
    shuffle: bool

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches only. With `shuffle` left-over rows come in another epoch; without it, never."""
        return self.rows // self.batch

    def epoch(self, step: int) -> int:
        return (step - 1) // self.steps_per_epoch

    def of(self, step: int) -> list[int]:
        """This process's rows of a step (1-based): every SIZE-th of the batch."""
        start = (step - 1) % self.steps_per_epoch * self.batch
        order = streams.order(self.seed, self.epoch(step), self.rows) if self.shuffle else range(self.rows)
        return [int(row) for row in order[start : start + self.batch]][world.RANK :: world.SIZE]


class Demonstrations:
    """Rows of a dataset, as they are."""

    def __init__(self, rows: Rows, order: Order, model: CausalLM) -> None:
        self.rows, self.order, self.model = rows, order, model

    def batch(self, step: int, clock: Clock) -> Batch:
        return imitated([self.rows.tokens[row] for row in self.order.of(step)], self.model)


def imitated(rows: Sequence[Tokens], model: CausalLM) -> Batch:
    """A batch of demonstrations."""
    return collate([(row.ids, row.mask) for row in rows], model)


class Rollouts:
    """Prompts of a dataset, answered by the policy and scored by the reward."""

    def __init__(self, rows: Rows, order: Order, decoder: Decoder, reward: Reward, seed: int) -> None:
        self.rows, self.order, self.decoder, self.reward, self.seed = rows, order, decoder, reward, seed

    def batch(self, step: int, clock: Clock) -> Batch:
        n, temperature = self.decoder.sampler.n, self.decoder.sampler.temperature
        prompts = [self.rows.tokens[row] for row in self.order.of(step)]
        with clock("gen"):
            keys = streams.keys(self.seed, step, [prompt.row for prompt in prompts], n)
            answers = self.decoder.sample([prompt.ids for prompt in prompts], n, keys, temperature)
        asked = [prompt for prompt in prompts for _ in range(n)]
        with clock("reward"):
            texts = self.decoder.texts(answers)
            scores = self.reward.score(
                [self.rows.answer(prompt, text) for prompt, text in zip(asked, texts, strict=True)]
            )
        check_scores(scores, texts, self.reward)
        batch = collate(
            [joined(prompt, answer) for prompt, answer in zip(asked, answers, strict=True)], self.decoder.model
        )
        place = torch.arange(len(prompts), device=batch.mask.device)
        return replace(batch, group=place.repeat_interleave(n), reward=batch.mask.new_tensor(scores))


def check_scores(scores: Sequence[float], texts: Sequence[str], reward: Reward) -> None:
    """Every answer has one finite score."""
    name = type(reward).__name__
    if len(scores) != len(texts):
        raise Problems([f"reward: {name} gave {len(scores)} scores for {len(texts)} answers; one for each would do"])
    for score, text in zip(scores, texts, strict=True):
        if not math.isfinite(score):
            raise Problems([f"reward: {name} gave {score} for {shown(text)}; a finite number would do"])


def joined(prompt: Tokens, answer: Sampled) -> tuple[list[int], list[int]]:
    """Ids and mask of a prompt with its answer."""
    return prompt.ids + answer.tokens, [0] * len(prompt.ids) + [1] * len(answer.tokens)


def collate(rows: Sequence[tuple[list[int], list[int]]], model: CausalLM) -> Batch:
    """Rows of (ids, mask), right-padded."""
    longest, pad = max(len(ids) for ids, _ in rows), model.tokenizer.pad_token_id
    return Batch(
        tokens=torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows], device=model.device),
        length=torch.tensor([len(ids) for ids, _ in rows], device=model.device),
        mask=torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in rows], device=model.device, dtype=EXACT),
    )
