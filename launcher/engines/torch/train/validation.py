"""Validation: the policy's scores and losses on held-out rows."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile

import numpy as np

from launcher.core.episode_record import EpisodeRecord
from launcher.core.events import (
    Event,
    HeldOutEpisodes,
    HeldOutScores,
    Sample,
)
from launcher.core.metrics import normal, wilson
from launcher.core.prompt_scores import held_out_scores, prompt_digest
from launcher.core.rubric import evaluation_of
from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.generator import make_requests
from launcher.engines.torch.train.answering import Prompt, PromptAnswerer, record_of, scored
from launcher.engines.torch.train.collate import collate, read_episodes
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.sources import Rows, prompt_text
from launcher.engines.torch.train.sums import add_sums
from launcher.engines.torch.train.tally import Tally
from launcher.spec.data import Row
from launcher.spec.episode import Episode
from launcher.spec.reward import Answer
from launcher.text.encoder import Pair, Tokens

SHOWN = 4_000
"""Characters of a turn of an episode that are shown."""
READ, READ_TOKENS = 2, 128
"""Prompts that are answered without a score at each validation, and tokens of such an answer."""


@dataclass(frozen=True)
class AnsweredPrompt:
    """A held-out prompt with its answers."""

    place: int
    """Among the held-out rows."""
    source: str
    answers: Sequence[Answer]
    scores: Sequence[float]
    """NaN where there is none."""
    episodes: Sequence[EpisodeRecord] = ()
    """With an environment."""


class Validation:
    """Answers held-out prompts and scores them; where demonstrations or pairs are held out, their loss too.

    Of these the prompts are answered whose right answer is known; where none is, the first ones, to be read beside the
    reference answer.
    """

    def __init__(
        self, rows: Rows, policy: Policy, answerer: PromptAnswerer, seed: int, size: int, shown: int = 0
    ) -> None:
        generator = answerer.generator
        self.rows, self.policy, self.generator, self.answerer = rows, policy, generator, answerer
        self.seed, self.size, self.shown = seed, size, shown
        self.asked = [
            place
            for place, row in enumerate(rows.rows)
            if self._known(row) and (row.response is not None or policy.sampled) and self._prompt(place)
        ]
        self.compared = [tokens for tokens in rows.tokens if isinstance(tokens, Pair) or not policy.sampled]
        """Rows whose loss is measured."""
        self.read = [] if self.asked or policy.sampled or generator.fault() else self._first_answered(min(shown, READ))
        """Places of rows that are answered without a score."""
        self.sources = sorted({rows.rows[place].data_source for place in self.asked})
        self.tally, self.alerts, self.episodes = Tally(), list[str](), list[tuple[int, Episode]]()

    def _known(self, row: Row) -> bool:
        """Whether an answer to the row can be scored."""
        runner = self.answerer.runner
        return row.ground_truth is not None or (runner is not None and runner.environment.scores)

    def _first_answered(self, most: int) -> list[int]:
        rows = range(len(self.rows.rows))
        return [place for place in rows if self._prompt(place) and 1 in self._tokens(place).mask][:most]

    def measure(self, step: int) -> tuple[dict[str, float], list[Event]]:
        """verl's metrics of a validation, over all processes, and events of single prompts: some of the answers, and
        the score of each prompt."""
        self.tally, self.alerts = Tally(), []
        began, self.episodes = time.perf_counter(), []
        metrics, events = self._scores(step) if self.asked else ({}, [])
        if self.answerer.runner:
            self.answerer.runner.pop_metrics()
            episodes = self._episodes(step, time.perf_counter() - began)
            events, evaluation = [*events, episodes], evaluation_of(episodes)
            metrics = metrics | (evaluation.metrics if evaluation else {})
        if self.compared:
            losses, of_rows = self._losses(step)
            metrics, events = metrics | losses, [*events, *of_rows]
        return metrics, events + (self._readable(step) if self.read else [])

    def _episodes(self, step: int, seconds: float) -> HeldOutEpisodes:
        """Of all processes, in the order of the rows."""
        every = sorted((one for part in world.all_gather_object(self.episodes) for one in part), key=lambda one: one[0])
        found = [episode for _, episode in every]
        names = dict.fromkeys(name for one in found for name in one.facts)
        return HeldOutEpisodes(
            step=step, rewards=tuple(math.nan if one.reward is None else one.reward for one in found),
            turns=tuple(len(one.policy_turns) for one in found), outcomes=tuple(str(one.ended) for one in found),
            facts={name: tuple(one.facts.get(name, math.nan) for one in found) for name in names}, seconds=seconds,
        )  # fmt: skip

    def _readable(self, step: int) -> list[Event]:
        """Greedy answers beside the reference answers. All processes compute the same, as weights may be sharded."""
        most, keys = self.generator.max_new, random_streams.stream_keys(self.seed, -step - 1, self.read, 1)
        prompts, longest = list(map(self._prompt, self.read)), max(sum(self._tokens(place).mask) for place in self.read)
        known = getattr(self.generator.model.base.config.get_text_config(), "max_position_embeddings", None) or math.inf
        self.generator.max_new = int(min(most, READ_TOKENS, 2 * longest, known - max(map(len, prompts))))
        try:
            with self.generator.current_weights():
                found = self.generator.answer(make_requests(prompts, keys, 0.0))
        finally:
            self.generator.max_new = most
        return [_sample(step, one, None) for one in map(self._with_reference, self.read, self.generator.texts(found))]

    def _with_reference(self, place: int, text: str) -> Answer:
        """`text` as an answer, with the row's own as its ground truth; of a conversation its first turn with a loss."""
        row, tokens, answer = self.rows.rows[place], self._tokens(place), self.rows.answer(place, text)
        if row.response is not None:
            return replace(answer, ground_truth=row.response)
        asked, decode = len(self._prompt(place)), self.generator.model.tokenizer.decode
        end = asked + len(list(takewhile(bool, tokens.mask[asked:])))
        return replace(answer, prompt=decode(tokens.ids[:asked]), ground_truth=decode(tokens.ids[asked:end]))

    def _scores(self, step: int) -> tuple[dict[str, float], list[Event]]:
        sums: dict[str, dict[str, float]] = {source: {} for source in self.sources}
        samples, scores = list[Event](), list[tuple[int, str, str, float]]()
        mine = self.asked[world.RANK :: world.SIZE]
        with self.generator.current_weights():
            for start in range(0, _share(len(self.asked)), self.size):
                for asked in self._answer(mine[start : start + self.size], step):
                    held = sums[asked.source]
                    found = self._of_prompt(asked)
                    for name, value in found.items():
                        held[name] = held.get(name, 0.0) + value
                    sample = _sample(step, asked.answers[0], asked.scores[0], asked.episodes[:1])
                    if len(samples) < self.shown:
                        samples.append(sample)
                    if (mean := found.get(f"mean@{len(asked.scores)}")) is not None:
                        digest = prompt_digest(sample.prompt, sample.ground_truth)
                        scores.append((asked.place, asked.source, digest, mean))
        metrics = self._metrics(sums)
        self.alerts = self.tally.summary()[1]
        in_order = sorted(score for part in world.all_gather_object(scores) for score in part)
        return metrics, [*samples, *held_out_scores(step, [score[1:] for score in in_order])]

    def _of_prompt(self, asked: AnsweredPrompt) -> dict[str, float]:
        """What one prompt adds to each sum; nothing but itself where an answer has no score."""
        n, scores = len(asked.scores), asked.scores
        if not all(map(math.isfinite, scores)):
            return {"unscored": 1.0}
        mean = math.fsum(scores) / n
        unlike = float(sum(score not in (0.0, 1.0) for score in scores))
        found = {"prompts": 1.0, f"mean@{n}": mean, "squares": mean * mean, "unlike": unlike}
        if n > 1:
            found |= {f"best@{k}/mean": best_of(scores, k) for k in powers(n)[1:]}
            output = [self.answerer.reward.extract_answer(answer.response) for answer in asked.answers]
            found[f"maj@{n}/mean"] = majority(scores, output)
            found[f"std@{n}"] = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (n - 1))
        return found

    def _metrics(self, sums: dict[str, dict[str, float]]) -> dict[str, float]:
        """Means over the prompts of all processes; the chief ones are core, the others auxiliary, as verl has it."""
        found: dict[str, float] = {}
        held = world.all_gather_object(sums)
        for source in self.sources:
            names = sorted({name for part in held for name in part[source]})
            totals = {name: math.fsum(part[source].get(name, 0.0) for part in held) for name in names}
            prompts, squares, unlike, without = (
                totals.pop(name, 0.0) for name in ("prompts", "squares", "unlike", "unscored")
            )
            n = self.generator.sampler.val_n
            if without:
                found[f"val-aux/{source}/reward/scored@{n}"] = prompts / (prompts + without)
            if not prompts:
                continue
            for name, total in totals.items():
                chief = name in (f"mean@{n}", f"best@{n}/mean", f"maj@{n}/mean")
                found[f"val-{'core' if chief else 'aux'}/{source}/reward/{name}"] = total / prompts
            mean = totals[f"mean@{n}"] / prompts
            if not unlike:  # right or wrong, so that the mean is a share of prompts
                kind, ends = "wilson95", wilson(mean, round(prompts))
            elif prompts > 1:
                kind, ends = "normal95", normal(mean, squares, round(prompts))
            else:
                continue
            found |= {
                f"val-aux/{source}/reward/{kind}_{end}@{n}": x for end, x in zip(("low", "high"), ends, strict=True)
            }
        return found

    def _prompt(self, place: int) -> list[int]:
        """Token ids of the prompt."""
        tokens = self._tokens(place)
        return tokens.ids[: tokens.mask.index(1)] if 1 in tokens.mask else tokens.ids

    def _tokens(self, place: int) -> Tokens:
        """Of the prompt with its reference answer, where it has one."""
        tokens = self.rows.tokens[place]
        return tokens if isinstance(tokens, Tokens) else tokens.chosen

    def _answer(self, places: list[int], step: int) -> Iterator[AnsweredPrompt]:
        n, temperature = self.generator.sampler.val_n, self.generator.sampler.val_temperature
        keys = random_streams.stream_keys(self.seed, -step - 1, places, n)  # never a training step's streams
        streams = np.split(keys, len(places)) if places else []
        asked = [
            Prompt(self._prompt(place), self.rows.rows[place], each)
            for place, each in zip(places, streams, strict=True)
        ]
        episodes = self.answerer.sample(asked, temperature)  # which is collective
        if not places:
            return
        every = [place for place in places for _ in range(n)]
        rows = [self.rows.rows[place] for place in every]
        found, texts = self.answerer.score(episodes, rows), self.answerer.texts(episodes)
        answers = [self.rows.answer(place, text) for place, text in zip(every, texts, strict=True)]
        self.tally.note(every, [row.where for row in rows], found)
        if self.answerer.runner:
            self.episodes += zip(every, scored(episodes, found), strict=True)
        for number, place in enumerate(places):
            of = slice(number * n, (number + 1) * n)
            records = [record_of(one, SHOWN) for one in episodes[of][:1] if self.answerer.runner]
            yield AnsweredPrompt(place, self.rows.rows[place].data_source, answers[of], found.total[of], records)

    def _losses(self, step: int) -> tuple[dict[str, float], list[HeldOutScores]]:
        """`val/loss`, and `val/` all else that the algorithm reports of rows; and what each row adds to the loss."""
        mine = list(enumerate(self.compared))[world.RANK :: world.SIZE]
        sums, losses = dict[str, tuple[float, float]](), list[tuple[int, str, float]]()
        for start in range(0, _share(len(self.compared)), self.size):
            rows = mine[start : start + self.size]
            tokens = [row for _, row in rows] or self.compared[:1]
            groups = _sequences(tokens)
            found, of_rows = self.policy.heldout_losses(collate(read_episodes(tokens), self.policy.model), groups)
            for name, (total, count) in found.items() if rows else ():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = before[0] + total, before[1] + count
            losses += [(place, _digest(row), loss) for (place, row), loss in zip(rows, of_rows, strict=False)]
        joined = add_sums(world.all_gather_object(sums))
        metrics = {
            f"val/{name.removeprefix('actor/')}": total / max(count, 1e-300)
            for name, (total, count) in joined.items()
            if "/loss" not in name
        }
        in_order = sorted(loss for part in world.all_gather_object(losses) for loss in part)
        each = len(in_order) / max(joined["loss"][1], 1e-300)  # so that their mean is that of all units
        return metrics, held_out_scores(step, [("", digest, loss * each) for _, digest, loss in in_order], "loss")


def _sequences(rows: Sequence[Tokens | Pair]) -> list[range]:
    """The places of each row's sequences in their batch."""
    ends = list(accumulate(2 if isinstance(row, Pair) else len(row.sequences) for row in rows))
    return [range(start, end) for start, end in pairwise([0, *ends])]


def _digest(row: Tokens | Pair) -> str:
    sides = [row.chosen, row.rejected] if isinstance(row, Pair) else row.sequences
    return prompt_digest(str([side.ids for side in sides]), "")


def _share(rows: int) -> int:
    """The largest number of rows on a process: with sharded weights all must compute equally often."""
    return -(-rows // world.SIZE)


def _sample(step: int, answer: Answer, score: float | None, episodes: Sequence[EpisodeRecord] = ()) -> Sample:
    return Sample(
        step=step, data_source=answer.data_source, prompt=prompt_text(answer), response=answer.response,
        ground_truth=answer.ground_truth or "", score=score, episodes=tuple(episodes),
    )  # fmt: skip


# ---- statistics of several scored answers to a prompt


def best_of(scores: Sequence[float], k: int) -> float:
    """Expected best of `k` answers drawn without return from those given; for scores of 0 and 1 this is pass@k.

    Unbiased (arXiv:2107.03374, eq. 1, of which this is the form for any scores): the i-th smallest of n is the
    best in C(i - 1, k - 1) of C(n, k) draws.
    """
    n = len(scores)
    if not 1 <= k <= n:
        raise ValueError(f"k is {k} of {n} scores; use 1 to {n}")
    draws = math.comb(n, k)
    return sum(math.comb(i, k - 1) / draws * score for i, score in enumerate(sorted(scores)))


def majority(scores: Sequence[float], output: Sequence[Hashable]) -> float:
    """Score of the most frequent answer; of equally frequent ones, of the first."""
    winner, _ = Counter(output).most_common(1)[0]
    return scores[output.index(winner)]


def powers(n: int) -> list[int]:
    """1, 2, 4, ... and n: the numbers of answers for which scores are reported."""
    return sorted({*(1 << bit for bit in range(n.bit_length())), n})
