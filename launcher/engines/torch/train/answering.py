"""Prompts answered and scored, as training and validation both do it: one turn, or episodes with an environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from launcher.core.episode_record import CalledTool, EpisodeRecord, EpisodeTurn
from launcher.core.redaction import cut_middle
from launcher.engines.torch.rollout.episodes import EpisodeRunner
from launcher.engines.torch.rollout.generator import Generator, Request
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.tally import Tally
from launcher.spec.data import Row, make_answer
from launcher.spec.episode import Episode
from launcher.spec.reward import Reward, score_safely


class PromptAnswerer:
    """Answers prompts and scores the answers. Its methods are collective, as the generator's are."""

    def __init__(self, generator: Generator, reward: Reward, runner: EpisodeRunner | None = None) -> None:
        self.generator, self.reward, self.runner = generator, reward, runner

    def close(self) -> None:
        self.generator.close()
        if self.runner:
            self.runner.close()

    def answer(self, requests: Sequence[Request], temperature: float, tally: Tally, clock: Clock) -> list[Episode]:
        """The answers to all prompts, prompt by prompt, with their scores, which the tally notes, too."""
        with clock("gen"):
            answer = self.runner.run if self.runner else self.generator.answer
            episodes = answer(requests, temperature)
        rows = [request.row for request in requests for _ in request.keys if request.row]
        with clock("reward"):
            episodes, reasons = self.score(episodes, rows)
        tally.note(episodes, reasons, [row.where for row in rows])
        return episodes

    def score(self, episodes: Sequence[Episode], rows: Sequence[Row]) -> tuple[list[Episode], list[str]]:
        """The episodes with a score each, or NaN, and the reason of each that has none. The score is the environment's
        where that gave one, otherwise the reward's for the last turn; an episode with a fault has none."""
        scored, reasons = list(episodes), [one.fault for one in episodes]
        places = [place for place, one in enumerate(episodes) if not one.fault and math.isnan(one.score)]
        texts = self.generator.texts([episodes[place] for place in places]) if places else []
        answers = [make_answer(rows[place], text) for place, text in zip(places, texts, strict=True)]
        scores = score_safely(self.reward, answers)
        for number, (place, total, fault) in enumerate(zip(places, scores.total, scores.faults, strict=True)):
            parts = {name: values[number] for name, values in scores.parts.items()}
            scored[place] = replace(episodes[place], reward=total, parts={**episodes[place].parts, **parts})
            reasons[place] = fault
        return scored, reasons

    def texts(self, episodes: Sequence[Episode]) -> list[str]:
        """The text of each episode to display: its answer, or its turns with the environment's observations."""
        if not self.runner:
            return self.generator.texts(episodes)
        return ["\n".join(turn.text for turn in one.turns) for one in episodes]

    def records(
        self, episodes: Sequence[Episode], characters: int, advantage: Tensor | None = None
    ) -> list[EpisodeRecord]:
        """The episodes as people see them, each text of about `characters` at most; `advantage` [B, T] is of their
        tokens. None without an environment."""
        if not self.runner:
            return []
        return [
            _record_of(one, characters, None if advantage is None else advantage[row])
            for row, one in enumerate(episodes)
        ]


def _record_of(one: Episode, characters: int, advantage: Tensor | None = None) -> EpisodeRecord:
    """The episode as people see it, each text of about `characters` at most; `advantage` [T] is of its tokens."""
    turns, position = list[EpisodeTurn](), len(one.prompt)
    for turn in one.turns:
        text, span = cut_middle(turn.text, characters), slice(position, position + len(turn.tokens))
        position = span.stop
        if turn.writer != "policy":
            turns[-1] = replace(turns[-1], observation=text)
            continue
        mean = math.nan if advantage is None else advantage[span].mean().item()
        calls = tuple(
            CalledTool(use.name, cut_middle(use.arguments, characters), round(use.seconds, 4), use.error)
            for use in turn.uses
        )
        shown = None if math.isnan(mean) else float(f"{mean:.6g}")
        turns.append(EpisodeTurn(text, "", float(f"{turn.reward:.6g}"), shown, calls))
    return EpisodeRecord(str(one.ended), tuple(turns), cut_middle(one.fault, characters))
