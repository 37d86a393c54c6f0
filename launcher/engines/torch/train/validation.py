"""Validation: the policy's scores and losses on held-out rows."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, takewhile

from launcher.core.episode_record import EpisodeRecord
from launcher.core.events import Event, HeldOutEpisodes, HeldOutScores, Sample
from launcher.core.metrics import normal, wilson
from launcher.core.prompt_scores import held_out_scores, prompt_digest
from launcher.core.rubric import evaluation_of
from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.generator import Request, make_requests
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import collate, read_episodes
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.sources import Rows, prompt_text
from launcher.engines.torch.train.tally import Tally
from launcher.spec.data import Row
from launcher.spec.episode import Episode
from launcher.spec.reward import Answer
from launcher.text.encoder import Pair, Tokens

SHOWN = 4_000
"""Characters of a turn of an episode that are shown."""
READ, READ_TOKENS = 2, 128
"""Prompts that are answered without a score at each validation, and tokens of such an answer."""


class Validation:
    """Answers held-out prompts and scores them; where demonstrations or pairs are held out, their loss too.

    Prompts are answered where the answer can be scored. Where none can, the first demonstrations are answered without a
    score, to be read beside their reference answers.
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
            if self._can_be_scored(row) and (row.response is not None or policy.sampled) and self._prompt(place)
        ]
        self.compared = [tokens for tokens in rows.tokens if isinstance(tokens, Pair) or not policy.sampled]
        """Rows whose loss is measured."""
        self.read = [] if self.asked or policy.sampled or generator.fault() else self._first_labelled(min(shown, READ))
        """Places of rows that are answered without a score."""
        self.sources = sorted({rows.rows[place].data_source for place in self.asked})
        self.tally, self.alerts, self.episodes = Tally(), list[str](), list[Episode]()

    def _can_be_scored(self, row: Row) -> bool:
        """Whether an answer to the row can be scored."""
        runner = self.answerer.runner
        return row.ground_truth is not None or (runner is not None and runner.environment.scores)

    def _first_labelled(self, most: int) -> list[int]:
        rows = range(len(self.rows.rows))
        return [place for place in rows if self._prompt(place) and 1 in self._tokens(place).mask][:most]

    def measure(self, step: int) -> tuple[dict[str, float], list[Event]]:
        """verl's metrics of a validation, over all processes, and events of single prompts: some of the answers, and
        the score of each prompt."""
        self.tally, self.alerts = Tally(), []
        started, self.episodes = time.perf_counter(), []
        metrics, events = self._measure_scores(step) if self.asked else ({}, [])
        if self.answerer.runner:
            self.answerer.runner.pop_metrics()
            episodes = self._gather_episodes(step, time.perf_counter() - started)
            events, evaluation = [*events, episodes], evaluation_of(episodes)
            metrics = metrics | (evaluation.metrics if evaluation else {})
        if self.compared:
            losses, row_scores = self._measure_losses(step)
            metrics, events = metrics | losses, [*events, *row_scores]
        return metrics, events + (self._sample_unscored(step) if self.read else [])

    def _gather_episodes(self, step: int, seconds: float) -> HeldOutEpisodes:
        """The episodes of all processes, in the order of their rows."""
        every = (one for part in world.all_gather_object(self.episodes) for one in part)
        episodes = sorted(every, key=lambda one: one.group or 0)
        names = dict.fromkeys(name for one in episodes for name in one.facts)
        return HeldOutEpisodes(
            step=step, rewards=tuple(one.score for one in episodes),
            turns=tuple(len(one.policy_turns) for one in episodes), outcomes=tuple(str(one.ended) for one in episodes),
            facts={name: tuple(one.facts.get(name, math.nan) for one in episodes) for name in names}, seconds=seconds,
        )  # fmt: skip

    def _sample_unscored(self, step: int) -> list[Event]:
        """Greedy answers beside the reference answers. Each process computes all, as weights may be sharded."""
        max_new, keys = self.generator.max_new, random_streams.stream_keys(self.seed, -step - 1, self.read, 1)
        prompts, longest = list(map(self._prompt, self.read)), max(sum(self._tokens(place).mask) for place in self.read)
        limit = getattr(self.generator.model.base.config.get_text_config(), "max_position_embeddings", None) or math.inf
        self.generator.max_new = int(min(max_new, READ_TOKENS, 2 * longest, limit - max(map(len, prompts))))
        try:
            with self.generator.current_weights():
                answers = self.generator.answer(make_requests(prompts, keys), 0.0)
        finally:
            self.generator.max_new = max_new
        return [_sample(step, one, None) for one in map(self._with_reference, self.read, self.generator.texts(answers))]

    def _with_reference(self, place: int, text: str) -> Answer:
        """`text` as an answer, with the row's response as ground truth; in a conversation, the first trained turn."""
        row, tokens, answer = self.rows.rows[place], self._tokens(place), self.rows.answer(place, text)
        if row.response is not None:
            return replace(answer, ground_truth=row.response)
        start, decode = len(self._prompt(place)), self.generator.model.tokenizer.decode
        end = start + len(list(takewhile(bool, tokens.mask[start:])))
        return replace(answer, prompt=decode(tokens.ids[:start]), ground_truth=decode(tokens.ids[start:end]))

    def _measure_scores(self, step: int) -> tuple[dict[str, float], list[Event]]:
        sums = defaultdict[tuple[str, str], float](float)
        samples, scores = list[Event](), list[tuple[int, str, str, float]]()
        mine, n = self.asked[world.RANK :: world.SIZE], self.generator.sampler.val_n
        with self.generator.current_weights():
            for start in range(0, _rows_per_process(len(self.asked)), self.size):
                places = mine[start : start + self.size]
                episodes = self._answer_prompts(places, step)
                for place, first in zip(places, range(0, len(episodes), n), strict=True):
                    answered, source = episodes[first : first + n], self.rows.rows[place].data_source
                    texts = self.answerer.texts(answered)
                    added = self._prompt_sums(texts, [one.score for one in answered])
                    for name, value in added.items():
                        sums[source, name] += value
                    records = self.answerer.records(answered[:1], SHOWN)
                    sample = _sample(step, self.rows.answer(place, texts[0]), answered[0].score, records)
                    if len(samples) < self.shown:
                        samples.append(sample)
                    if (mean := added.get(f"mean@{n}")) is not None:
                        scores.append((place, source, prompt_digest(sample.prompt, sample.ground_truth), mean))
        metrics = self._metrics(sums)
        self.alerts = self.tally.summary()[1]
        in_order = sorted(score for part in world.all_gather_object(scores) for score in part)
        return metrics, [*samples, *held_out_scores(step, [score[1:] for score in in_order])]

    def _answer_prompts(self, places: list[int], step: int) -> list[Episode]:
        """`val_n` scored answers to each held-out row. Collective, so called without rows, too."""
        sampler = self.generator.sampler
        keys = random_streams.stream_keys(self.seed, -step - 1, places, sampler.val_n)  # no training step's streams
        requests = [
            Request(self._prompt(place), streams, self.rows.rows[place], place)
            for place, streams in zip(places, keys.reshape(len(places), sampler.val_n), strict=True)
        ]
        episodes = self.answerer.answer(requests, sampler.val_temperature, self.tally, Clock())
        self.episodes += episodes if self.answerer.runner else []
        return episodes

    def _prompt_sums(self, texts: Sequence[str], scores: Sequence[float]) -> dict[str, float]:
        """What one prompt adds to each sum; it adds only to `unscored` where an answer has no score."""
        n = len(scores)
        if not all(map(math.isfinite, scores)):
            return {"unscored": 1.0}
        mean = math.fsum(scores) / n
        not_binary = float(sum(score not in (0.0, 1.0) for score in scores))
        sums = {"prompts": 1.0, f"mean@{n}": mean, "squares": mean * mean, "unlike": not_binary}
        if n > 1:
            sums |= {f"best@{k}/mean": best_of(scores, k) for k in powers(n)[1:]}
            output = list(map(self.answerer.reward.extract_answer, texts))
            sums[f"maj@{n}/mean"] = majority(scores, output)
            sums[f"std@{n}"] = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (n - 1))
        return sums

    def _metrics(self, sums: Mapping[tuple[str, str], float]) -> dict[str, float]:
        """Means over the prompts of all processes, named `val-core` and `val-aux` as in verl."""
        metrics, all_sums = dict[str, float](), world.add_sums(sums)
        for source in self.sources:
            totals = {name: total for (of, name), total in sorted(all_sums.items()) if of == source}
            prompts, squares, not_binary, unscored = (
                totals.pop(name, 0.0) for name in ("prompts", "squares", "unlike", "unscored")
            )
            n = self.generator.sampler.val_n
            if unscored:
                metrics[f"val-aux/{source}/reward/scored@{n}"] = prompts / (prompts + unscored)
            if not prompts:
                continue
            for name, total in totals.items():
                is_core = name in (f"mean@{n}", f"best@{n}/mean", f"maj@{n}/mean")
                metrics[f"val-{'core' if is_core else 'aux'}/{source}/reward/{name}"] = total / prompts
            mean = totals[f"mean@{n}"] / prompts
            if not not_binary:  # right or wrong, so that the mean is a share of prompts
                kind, interval = "wilson95", wilson(mean, round(prompts))
            elif prompts > 1:
                kind, interval = "normal95", normal(mean, squares, round(prompts))
            else:
                continue
            metrics |= {
                f"val-aux/{source}/reward/{kind}_{end}@{n}": x for end, x in zip(("low", "high"), interval, strict=True)
            }
        return metrics

    def _prompt(self, place: int) -> list[int]:
        """Token ids of the prompt."""
        tokens = self._tokens(place)
        return tokens.ids[: tokens.mask.index(1)] if 1 in tokens.mask else tokens.ids

    def _tokens(self, place: int) -> Tokens:
        """Tokens of the prompt with its reference answer, if it has one; of a pair, with the chosen answer."""
        tokens = self.rows.tokens[place]
        return tokens if isinstance(tokens, Tokens) else tokens.chosen

    def _measure_losses(self, step: int) -> tuple[dict[str, float], list[HeldOutScores]]:
        """`val/loss` and the algorithm's other metrics under `val/`; and the loss of each row."""
        mine = list(enumerate(self.compared))[world.RANK :: world.SIZE]
        sums, losses = defaultdict[tuple[str, str], float](float), list[tuple[int, str, float]]()
        for start in range(0, _rows_per_process(len(self.compared)), self.size):
            rows = mine[start : start + self.size]
            tokens = [row for _, row in rows] or self.compared[:1]
            groups = _sequences(tokens)
            totals, row_losses = self.policy.heldout_losses(collate(read_episodes(tokens), self.policy.model), groups)
            for name, (total, count) in totals.items() if rows else ():
                sums[name, "total"] += total
                sums[name, "count"] += count
            losses += [(place, _digest(row), loss) for (place, row), loss in zip(rows, row_losses, strict=False)]
        all_sums = world.add_sums(sums)
        metrics = {
            f"val/{name.removeprefix('actor/')}": total / max(all_sums[name, "count"], 1e-300)
            for (name, what), total in all_sums.items()
            if what == "total" and "/loss" not in name
        }
        in_order = sorted(loss for part in world.all_gather_object(losses) for loss in part)
        scale = len(in_order) / max(all_sums["loss", "count"], 1e-300)  # so that the mean over rows is that over units
        return metrics, held_out_scores(step, [("", digest, loss * scale) for _, digest, loss in in_order], "loss")


def _sequences(rows: Sequence[Tokens | Pair]) -> list[range]:
    """Indices in the batch of each row's sequences."""
    ends = list(accumulate(2 if isinstance(row, Pair) else len(row.sequences) for row in rows))
    return [range(start, end) for start, end in pairwise([0, *ends])]


def _digest(row: Tokens | Pair) -> str:
    sides = [row.chosen, row.rejected] if isinstance(row, Pair) else row.sequences
    return prompt_digest(str([side.ids for side in sides]), "")


def _rows_per_process(rows: int) -> int:
    """The largest number of rows on a process: with sharded weights all must compute equally often."""
    return -(-rows // world.SIZE)


def _sample(step: int, answer: Answer, score: float | None, episodes: Sequence[EpisodeRecord] = ()) -> Sample:
    return Sample(
        step=step, data_source=answer.data_source, prompt=prompt_text(answer), response=answer.response,
        ground_truth=answer.ground_truth or "", score=score, episodes=tuple(episodes),
    )  # fmt: skip


# ---- statistics of several scored answers to a prompt


def best_of(scores: Sequence[float], k: int) -> float:
    """Expected best of `k` answers drawn without replacement from those given; for scores of 0 and 1 this is pass@k.

    Unbiased (arXiv:2107.03374, eq. 1, of which this is the form for any scores): the i-th smallest of n is the
    best in C(i - 1, k - 1) of C(n, k) draws.
    """
    draws = math.comb(len(scores), k)
    return sum(math.comb(i, k - 1) / draws * score for i, score in enumerate(sorted(scores)))


def majority(scores: Sequence[float], output: Sequence[Hashable]) -> float:
    """Score of the most frequent answer; of equally frequent ones, of the first."""
    winner, _ = Counter(output).most_common(1)[0]
    return scores[output.index(winner)]


def powers(n: int) -> list[int]:
    """1, 2, 4, ... and n: the numbers of answers for which scores are reported."""
    return sorted({*(1 << bit for bit in range(n.bit_length())), n})
