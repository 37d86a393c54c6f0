"""Rows in memory, and the sources of a step's sequences: demonstrations, pairs, or prompts that the policy answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch

from launcher.core.events import TrainingGroup
from launcher.core.redaction import cut_middle
from launcher.data.refused import RefusedLog
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.generator import Request
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import EXACT, collate, read_episodes
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.tally import Tally, any_scored, unscored_rows
from launcher.engines.torch.train.tokens import TokenLog
from launcher.spec.algorithm import Algorithm, Batch, Kind
from launcher.spec.data import RefusedRow, Row, Split, make_answer, needs_rollout
from launcher.spec.environment import SINGLE, Environment
from launcher.spec.episode import Episode
from launcher.spec.reward import Answer, Reward, why_unscorable
from launcher.text.encoder import Encoder, Pair, Tokens

Sampled = tuple[list[Episode], int]
"""Episodes, and the width of the batch in which they were filtered: sums over wider rows round otherwise."""
ROUNDS = 1000
"""More rounds than a step ever samples, so that `step * ROUNDS + round` is unique."""


@dataclass(frozen=True)
class Rows:
    """Accepted rows and their tokens; equal indices belong together."""

    rows: list[Row] = field(default_factory=list)
    tokens: list[Tokens | Pair] = field(default_factory=list)
    refused: int = 0

    def answer(self, place: int, text: str) -> Answer:
        return make_answer(self.rows[place], text)


def read_rows(
    encoder: Encoder, split: Split, kind: Kind, log: RefusedLog, reward: Reward, environment: Environment = SINGLE
) -> Rows:
    """Every good row of a split, as the policy reads it; the log counts and keeps the others, such as prompts that
    `reward` could not score."""
    accepted, refused_before = Rows(), log.refused
    for row in map(environment.prompt, log.sift(encoder.data.rows(split, kind))):
        encode = encoder.pair if row.rejected else encoder.demonstration if kind == "answers" else encoder.prompt
        needs_score = needs_rollout(row, split, kind) and not environment.scores
        reason = why_unscorable(reward, make_answer(row)) if needs_score else ""
        encoded = RefusedRow(row.where, reason, repr(row)) if reason else encode(len(accepted.rows), row)
        if isinstance(encoded, RefusedRow):
            log.rows -= 1  # it was counted as a good row until its tokens were
            log.keep(encoded)
        else:
            accepted.rows.append(row)
            accepted.tokens.append(encoded)
    return Rows(accepted.rows, accepted.tokens, log.refused - refused_before)


@dataclass(frozen=True)
class Order:
    """The rows of each step: a pure function of the step, so a restart needs no state."""

    rows: int
    batch: int
    seed: int
    shuffle: bool

    @property
    def steps_per_epoch(self) -> int:
        return self.rows // self.batch

    def epoch(self, step: int) -> int:
        return (step - 1) // self.steps_per_epoch

    def step_rows(self, step: int, round_: int = 0) -> list[int]:
        """This process's rows of a step (1-based): every SIZE-th of the batch. In a further round (`round_` > 0) they
        are drawn from a random order that no epoch has."""
        start = (step - 1) % self.steps_per_epoch * self.batch
        rows: np.ndarray = np.arange(start, start + self.batch)
        if round_:
            rows = random_streams.row_order(self.seed, -(step * ROUNDS + round_), self.rows)[: self.batch]
        elif self.shuffle:
            rows = random_streams.row_order(self.seed, self.epoch(step), self.rows)[rows]
        return [int(row) for row in rows[world.RANK :: world.SIZE]]

    def attempt(self, step: int, round_: int) -> int:
        """Number of a draw among those of its epoch: 0 where a row has its turn, and one of its own for each further
        round of a step."""
        return round_ and (step - 1) % self.steps_per_epoch * ROUNDS + round_

    def stream_keys(self, seed: int, row: int, epoch: int, attempt: int, n: int) -> np.ndarray:
        """[n] uint64 random streams of the answers to a row, in whichever step they are asked for.

        They are numbered by the step in which the row has its turn.
        """
        turn, round_ = divmod(attempt, ROUNDS)
        if not attempt:
            place = random_streams.row_places(self.seed, epoch, self.rows)[row] if self.shuffle else row
            turn = int(place) // self.batch
        return random_streams.stream_keys(seed, epoch * self.steps_per_epoch + turn + 1, [row], n, round_)


class Demonstrations:
    """Rows of a dataset, as they are: demonstrations, or pairs of answers."""

    def __init__(self, rows: Rows, order: Order, model: CausalLM) -> None:
        self.rows, self.order, self.model = rows, order, model

    alerts: Sequence[str] = ()

    def batch(self, step: int, clock: Clock) -> tuple[Batch, dict[str, float]]:
        episodes = read_episodes([self.rows.tokens[row] for row in self.order.step_rows(step)])
        return collate(episodes, self.model), {}


class Rollouts:
    """Prompts of a dataset, answered by the policy and scored by the reward; pairs among them stay as they are."""

    def __init__(
        self,
        rows: Rows,
        order: Order,
        answerer: PromptAnswerer,
        algorithm: Algorithm,
        seed: int,
        *,
        shrinks: bool = False,
    ) -> None:
        """`shrinks`: an episode with a fault leaves its group; otherwise the whole group is left out."""
        self.rows, self.order, self.answerer, self.generator = rows, order, answerer, answerer.generator
        self.algorithm, self.seed, self.shrinks = algorithm, seed, shrinks
        self.tally, self.alerts, self.episodes = Tally(), list[str](), list[Episode]()

    def batch(self, step: int, clock: Clock) -> tuple[Batch, dict[str, float]]:
        """The step's scored answers, and their metrics; sets `alerts`, messages for the user."""
        self.tally = Tally("and are left out of their groups") if self.shrinks else Tally()
        with self.generator.current_weights() as sync_metrics:
            (episodes, width), sampling_metrics, groups = self._sample_until_full(step, clock)
        if self.shrinks:  # a faulty episode gets a group of its own, so it is compared with nothing
            episodes = [replace(one, group=-1 - index) if one.fault else one for index, one in enumerate(episodes)]
        self.episodes = episodes
        reward_metrics, self.alerts = self.tally.summary(groups)
        runner_metrics = self.answerer.runner.pop_metrics() if self.answerer.runner else {}
        metrics = {**sync_metrics, **sampling_metrics, **reward_metrics, **runner_metrics}
        return collate(episodes, self.generator.model, width), metrics

    def _sample_until_full(self, step: int, clock: Clock) -> tuple[Sampled, dict[str, float], set[int] | None]:
        """Sample until the step is full of groups that pass the algorithm's filter, for at most `max_num_gen_batches`
        rounds. Returns the episodes with their width, metrics, and the groups used if others were sampled too."""
        max_rounds = self.algorithm.max_num_gen_batches
        first = self._sample_round(step, 0, clock)
        if max_rounds == 1:
            return (first, 0), {}, None
        kept, rejected, rounds = *self._filter_groups(first), 1
        rejected_width = width = _longest(first)
        while (full := self._count_groups(kept)) < self.order.batch and rounds < max_rounds:
            if not any_scored(collate(first, self.generator.model)):
                break  # where the reward fails for all, sampling more is useless
            round_episodes = self._sample_round(step, rounds, clock)
            kept, width = kept + self._filter_groups(round_episodes)[0], max(width, _longest(round_episodes))
            rounds += 1
        metrics = {"train/num_gen_batches": float(rounds), "train/share_full": min(full / self.order.batch, 1.0)}
        chosen = self._choose_groups((kept, width), (rejected, rejected_width))
        mine = chosen[world.RANK :: world.SIZE]
        sampled = [episode for group, _ in mine for episode in group], max(width for _, width in mine)
        return sampled, metrics, {_group_number(one) for one in chosen}

    def _filter_groups(self, episodes: list[Episode]) -> tuple[list[Episode], list[Episode]]:
        """Episodes of groups to train on, and the others, which include groups with an unscored answer."""
        batch = collate(episodes, self.generator.model)
        flags = (self.algorithm.group_filter(batch) & ~unscored_rows(batch)).tolist()
        parts = [[one for one, keep in zip(episodes, flags, strict=True) if keep is kept] for kept in (True, False)]
        return parts[0], parts[1]

    def _count_groups(self, episodes: Sequence[Episode]) -> int:
        count, device = float(len(episodes) // self.generator.sampler.n), self.generator.model.device
        return int(world.all_reduce_sum(torch.tensor(count, dtype=EXACT, device=device)).item())

    def _choose_groups(self, *sampled: Sampled) -> list[Sampled]:
        """As many groups of all processes as a step takes, in the order of their numbers.

        Where too few passed the algorithm's filter, rejected groups fill the empty places.
        """
        n, groups = self.generator.sampler.n, list[Sampled]()
        for episodes, width in sampled:
            mine = [(episodes[start : start + n], width) for start in range(0, len(episodes), n)]
            groups += sorted(chain(*world.all_gather_object(mine)), key=_group_number)
        return sorted(groups[: self.order.batch], key=_group_number)

    def _sample_round(self, step: int, round_: int, clock: Clock) -> list[Episode]:
        """Episodes of answered prompts, then of pairs; their group is the row's number in the step."""
        rows, n = self.order.step_rows(step, round_), self.generator.sampler.n
        numbers = range(round_ * self.order.batch + world.RANK, (round_ + 1) * self.order.batch, world.SIZE)
        epoch, attempt = self.order.epoch(step), self.order.attempt(step, round_)
        requests, pairs, row_of = list[Request](), dict[int, Pair](), dict(zip(numbers, rows, strict=True))
        for number, row in row_of.items():
            tokens = self.rows.tokens[row]
            if isinstance(tokens, Pair):
                pairs[number] = tokens
            else:
                keys = self.order.stream_keys(self.seed, row, epoch, attempt, n)
                requests.append(Request(tokens.ids, keys, self.rows.rows[row], number))
        episodes = self.answerer.answer(requests, self.generator.sampler.temperature, self.tally, clock)
        answered = [replace(one, row=row_of[one.group or 0]) for one in episodes]
        return answered + read_episodes(list(pairs.values()), list(pairs))

    def logged(self, most: int) -> list[list[int]]:
        """Indices of this process's answers to at most `most` prompts of the step, prompt by prompt: the prompts that
        come first in the data."""
        places = dict[tuple[int, int], list[int]]()
        for place, one in enumerate(self.episodes):
            if one.row is not None and one.group is not None and one.group >= 0:
                places.setdefault((one.row, one.group), []).append(place)
        return [mine for _, mine in sorted(places.items())[:most]]

    def groups(self, step: int, prepared: Batch, most: int, characters: int) -> list[TrainingGroup]:
        """Events of the `logged` answers, with their advantages in `prepared`; texts are cut to about `characters`."""
        advantage = torch.full_like(prepared.mask, torch.nan) if prepared.advantage is None else prepared.advantage
        means = ((advantage * prepared.mask).sum(1) / prepared.mask.sum(1)).tolist()  # NaN without a token
        events = list[TrainingGroup]()
        for number, mine in enumerate(self.logged(most), 1):
            episodes = [self.episodes[place] for place in mine]
            assert episodes[0].row is not None
            answer = self.rows.answer(episodes[0].row, "")
            prompt, truth, *texts = (
                cut_middle(text, characters)
                for text in (prompt_text(answer), answer.ground_truth or "", *self.answerer.texts(episodes))
            )
            names = dict.fromkeys(name for one in episodes for name in one.parts)
            events.append(
                TrainingGroup(
                    step=step, group=number, data_source=answer.data_source, prompt=prompt, ground_truth=truth,
                    responses=tuple(texts), scores=tuple(_rounded(one.score) for one in episodes),
                    parts={name: tuple(_rounded(one.parts.get(name, math.nan)) for one in episodes) for name in names},
                    advantages=tuple(_rounded(means[place]) for place in mine),
                    episodes=tuple(self.answerer.records(episodes, characters, advantage[mine])),
                )
            )  # fmt: skip
        return events

    def write_tokens(self, log: TokenLog, step: int, prepared: Batch, most: int, characters: int) -> None:
        """Log facts about each token of the same answers. Raises `OSError` where the log cannot be written."""
        places = self.logged(most)
        episodes = [[self.episodes[place] for place in mine] for mine in places]
        log.write(step, episodes, prepared.rows([*chain(*places)]), characters)


def prompt_text(answer: Answer) -> str:
    return answer.prompt if isinstance(answer.prompt, str) else "\n".join(f"{r}: {c}" for r, c in answer.prompt)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _group_number(sampled: Sampled) -> int:
    return sampled[0][0].group or 0


def _longest(episodes: Sequence[Episode]) -> int:
    return max(len(episode.tokens) for episode in episodes)
