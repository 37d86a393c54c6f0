"""Rows in memory, and the sources of a step's sequences: demonstrations, pairs, or prompts that the policy answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from launcher.data.refused import RefusedLog
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.generator import Completion, Generator
from launcher.engines.torch.train.measure import Clock, Tally, unscored_rows
from launcher.spec.algorithm import Algorithm, Batch, Kind
from launcher.spec.data import RefusedRow, Row, Split, make_answer, needs_rollout
from launcher.spec.reward import Answer, Reward, score_safely, why_unscorable
from launcher.spec.run import whole_batches
from launcher.text.encoder import Encoder, Pair, Tokens

EXACT = torch.float64  # of masks, rewards and advantages: they are small, and their sums nearly cancel


@dataclass(frozen=True)
class Rows:
    """Good rows and their tokens, place by place."""

    rows: list[Row] = field(default_factory=list)
    tokens: list[Tokens | Pair] = field(default_factory=list)
    refused: int = 0

    def answer(self, place: int, text: str) -> Answer:
        return make_answer(self.rows[place], text)


def read_rows(
    encoder: Encoder, split: Split, kind: Kind, log: RefusedLog, reward: Reward,
    reason_of: Callable[[Reward, Answer], str] = why_unscorable,
) -> Rows:  # fmt: skip
    """Every good row of a split; the log counts and keeps the others, such as prompts that `reward` could not score
    for the reason that `reason_of` says."""
    found, before = Rows(), log.refused
    for row in log.sift(encoder.data.read(split, kind)):
        encode = encoder.pair if row.rejected else encoder.demonstration if kind == "answers" else encoder.prompt
        reason = reason_of(reward, make_answer(row)) if needs_rollout(row, split, kind) else ""
        made = RefusedRow(row.where, reason, repr(row)) if reason else encode(len(found.rows), row)
        if isinstance(made, RefusedRow):
            log.good, log.rows = log.good - 1, log.rows - 1  # it was a good row until its tokens were counted
            log.keep(made)
        else:
            found.rows.append(row)
            found.tokens.append(made)
    return Rows(found.rows, found.tokens, log.refused - before)


@dataclass(frozen=True)
class Order:
    """The rows of each step: a pure function of the step, so a restart needs no state."""

    rows: int
    batch: int
    seed: int
    shuffle: bool

    @property
    def steps_per_epoch(self) -> int:
        return whole_batches(self.rows, self.batch)

    def epoch(self, step: int) -> int:
        return (step - 1) // self.steps_per_epoch

    def step_rows(self, step: int) -> list[int]:
        """This process's rows of a step (1-based): every SIZE-th of the batch."""
        start = (step - 1) % self.steps_per_epoch * self.batch
        order = random_streams.row_order(self.seed, self.epoch(step), self.rows) if self.shuffle else range(self.rows)
        return [int(row) for row in order[start : start + self.batch]][world.RANK :: world.SIZE]

    def resampled_rows(self, step: int, round_: int) -> list[int]:
        """This process's rows when a step samples once more: drawn anew, and apart from every epoch's order."""
        drawn = random_streams.row_order(self.seed, -(step * 1000 + round_), self.rows)[: self.batch]
        return [int(row) for row in drawn][world.RANK :: world.SIZE]


class Demonstrations:
    """Rows of a dataset, as they are: demonstrations, or pairs of answers."""

    def __init__(self, rows: Rows, order: Order, model: CausalLM) -> None:
        self.rows, self.order, self.model = rows, order, model

    alerts: Sequence[str] = ()

    def batch(self, step: int, clock: Clock) -> tuple[Batch, dict[str, float]]:
        return collate_rows([self.rows.tokens[row] for row in self.order.step_rows(step)], self.model), {}


def collate_rows(rows: Sequence[Tokens | Pair], model: CausalLM, numbers: Sequence[int] | None = None) -> Batch:
    """A batch of demonstrations or of pairs; a pair's two answers form a group, and the sequences of a demonstration
    where one has several."""
    if not any(isinstance(row, Pair) for row in rows):
        found = [(place, one) for place, row in enumerate(rows) if isinstance(row, Tokens) for one in row.sequences]
        batch = collate([(one.ids, one.mask) for _, one in found], model)
        if len(found) == len(rows):
            return batch
        return replace(batch, group=torch.tensor([place for place, _ in found], device=batch.mask.device))
    pairs = [row for row in rows if isinstance(row, Pair)]
    batch = collate([(side.ids, side.mask) for pair in pairs for side in (pair.chosen, pair.rejected)], model)
    group = torch.tensor(numbers or range(len(pairs)), device=batch.mask.device).repeat_interleave(2)
    preference = 1 - 2 * (torch.arange(len(batch), device=group.device) % 2)
    return replace(batch, group=group, preference=preference, reward=batch.mask.new_zeros(len(batch)))


class Rollouts:
    """Prompts of a dataset, answered by the policy and scored by the reward; pairs among them stay as they are."""

    def __init__(
        self, rows: Rows, order: Order, generator: Generator, reward: Reward, algorithm: Algorithm, seed: int
    ) -> None:
        self.rows, self.order, self.generator, self.reward = rows, order, generator, reward
        self.algorithm, self.seed = algorithm, seed
        self.tally, self.alerts = Tally(), list[str]()

    def batch(self, step: int, clock: Clock) -> tuple[Batch, dict[str, float]]:
        """The step's scored answers, and their metrics; sets `alerts`, messages for the user."""
        self.tally = Tally()
        with self.generator.current_weights() as sync_metrics:
            batch, sampling_metrics, groups = self._sample_until_full(step, clock)
        reward_metrics, self.alerts = self.tally.summary(groups)
        return batch, {**sync_metrics, **sampling_metrics, **reward_metrics}

    def _sample_until_full(self, step: int, clock: Clock) -> tuple[Batch, dict[str, float], set[int] | None]:
        """Sample until the step is full of groups that pass the algorithm's filter, for at most `max_num_gen_batches`
        rounds. Returns the batch, metrics, and the groups used if others were sampled too."""
        max_rounds = self.algorithm.max_num_gen_batches
        first = self._sample_round(self.order.step_rows(step), step, 0, clock)
        if max_rounds == 1:
            return first, {}, None
        keeps = self._group_filter(first)
        kept, left, rounds = first.rows(keeps), first.rows(~keeps), 1
        while (full := self._count_groups(kept)) < self.order.batch and rounds < max_rounds and self._any_scored(first):
            more = self._sample_round(self.order.resampled_rows(step, rounds), step, rounds, clock)
            kept, rounds = _concatenated([kept, more.rows(self._group_filter(more))]), rounds + 1
        metrics = {"train/num_gen_batches": float(rounds), "train/share_full": min(full / self.order.batch, 1.0)}
        batch, groups = self._distribute_groups(kept, left)
        return batch, metrics, groups

    def _group_filter(self, batch: Batch) -> Tensor:
        """[B] bool: rows of groups to train on; groups with an unscored answer are excluded."""
        return self.algorithm.group_filter(batch) & ~unscored_rows(batch)

    def _count_groups(self, batch: Batch) -> int:
        return int(world.all_reduce_sum(batch.mask.new_tensor(float(len(batch) // self.generator.sampler.n))).item())

    def _any_scored(self, first: Batch) -> bool:
        """Whether any answer was scored: if the reward fails for all, sampling more is useless."""
        return world.all_reduce_sum((~unscored_rows(first)).sum().double()).item() > 0

    def _distribute_groups(self, kept: Batch, left: Batch) -> tuple[Batch, set[int]]:
        """As many groups as a step takes, in the order of their numbers and as many to each process.

        Where too few were kept, groups that the algorithm leaves out hold the empty places.
        """
        n, groups = self.generator.sampler.n, list[Batch]()
        for rows in (kept, left):
            parts = world.all_gather_object([_moved_to(part, "cpu") for part in rows.split(n)])
            groups += sorted(chain(*parts), key=lambda part: int(part.group[0]))
        chosen = sorted(groups[: self.order.batch], key=lambda part: int(part.group[0]))
        mine = _moved_to(_concatenated(chosen[world.RANK :: world.SIZE]), self.generator.model.device)
        return mine, {int(part.group[0]) for part in chosen}

    def _sample_round(self, rows: Sequence[int], step: int, round_: int, clock: Clock) -> Batch:
        given = [self.rows.tokens[row] for row in rows]
        numbers = [round_ * self.order.batch + place * world.SIZE + world.RANK for place in range(len(rows))]
        prompts = {number: row for number, row in zip(numbers, given, strict=True) if isinstance(row, Tokens)}
        pairs = {number: row for number, row in zip(numbers, given, strict=True) if isinstance(row, Pair)}
        parts = [self._answer_prompts(prompts, step, round_, clock)] if prompts else []
        if not prompts:  # sampling may be collective
            self.generator.sample([], 1, random_streams.stream_keys(self.seed, step, [], 1), 0.0)
        if pairs:
            made = collate_rows(list(pairs.values()), self.generator.model, list(pairs))
            both = parts and parts[0].rollout is not None
            parts.append(replace(made, rollout=torch.zeros_like(made.mask)) if both else made)
        return _concatenated(parts)

    def _answer_prompts(self, numbered: Mapping[int, Tokens], step: int, round_: int, clock: Clock) -> Batch:
        prompts = list(numbered.values())
        n, temperature = self.generator.sampler.n, self.generator.sampler.temperature
        with clock("gen"):
            keys = random_streams.stream_keys(self.seed, step, [prompt.row for prompt in prompts], n, round_)
            answers = self.generator.sample([prompt.ids for prompt in prompts], n, keys, temperature)
        asked = [prompt for prompt in prompts for _ in range(n)]
        with clock("reward"):
            texts = zip(asked, self.generator.texts(answers), strict=True)
            scores = score_safely(self.reward, [self.rows.answer(prompt.row, text) for prompt, text in texts])
        joined = [join_completion(prompt, answer) for prompt, answer in zip(asked, answers, strict=True)]
        batch = collate(joined, self.generator.model)
        if not self.generator.sampler.logprobs_match_trainer:
            rollout = torch.zeros_like(batch.mask)
            rollout[batch.mask > 0] = rollout.new_tensor([logp for answer in answers for logp in answer.logp])
            batch = replace(batch, rollout=rollout)
        numbers = [number for number in numbered for _ in range(n)]
        self.tally.note(numbers, [self.rows.rows[prompt.row].where for prompt in asked], scores)
        return replace(
            batch, group=torch.tensor(numbers, device=batch.mask.device), reward=batch.mask.new_tensor(scores.total),
            preference=torch.zeros_like(batch.length),
        )  # fmt: skip


def join_completion(prompt: Tokens, answer: Completion) -> tuple[list[int], list[int]]:
    """Ids and mask of a prompt with its answer."""
    return prompt.ids + answer.tokens, [0] * len(prompt.ids) + [1] * len(answer.tokens)


def collate(rows: Sequence[tuple[list[int], list[int]]], model: CausalLM) -> Batch:
    """Rows of (ids, mask), right-padded."""
    longest, padding = max(len(ids) for ids, _ in rows), model.tokenizer.pad_token_id
    return Batch(
        tokens=torch.tensor([ids + [padding] * (longest - len(ids)) for ids, _ in rows], device=model.device),
        length=torch.tensor([len(ids) for ids, _ in rows], device=model.device),
        mask=torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in rows], device=model.device, dtype=EXACT),
    )


def _concatenated(parts: Sequence[Batch]) -> Batch:
    """Batches concatenated along the rows, padded alike."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.tokens.shape[1] for part in parts)
    padded = [
        {name: pad(x, (0, width - x.shape[1])) if x.ndim == 2 else x for name, x in _tensors(part).items()}
        for part in parts
    ]
    return Batch(**{name: torch.cat([part[name] for part in padded]) for name in padded[0]})


def _moved_to(batch: Batch, device: Any) -> Batch:
    """A copy on `device`: a slice would be sent as the whole."""
    return Batch(**{name: x.to(device, copy=True) for name, x in _tensors(batch).items()})


def _tensors(batch: Batch) -> dict[str, Tensor]:
    return {f.name: value for f in fields(batch) if isinstance(value := getattr(batch, f.name), Tensor)}
