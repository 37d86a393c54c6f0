"""Prompts answered and scored, as training and validation both do it: one turn, or episodes with an environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from launcher.core.episode_record import CalledTool, EpisodeRecord, EpisodeTurn
from launcher.core.redaction import cut_middle
from launcher.engines.torch.rollout.episodes import EpisodeRunner, Prompt
from launcher.engines.torch.rollout.generator import Generator, Request
from launcher.spec.data import Row, make_answer
from launcher.spec.episode import Episode
from launcher.spec.reward import Reward, Scores, score_safely


class PromptAnswerer:
    """Answers prompts and scores the answers. Its methods are collective, as the generator's are."""

    def __init__(self, generator: Generator, reward: Reward, runner: EpisodeRunner | None = None) -> None:
        self.generator, self.reward, self.runner = generator, reward, runner

    def close(self) -> None:
        self.generator.close()
        if self.runner:
            self.runner.close()

    def sample(self, prompts: Sequence[Prompt], temperature: float) -> list[Episode]:
        """The answers to all prompts, prompt by prompt; an environment's score is in them."""
        if self.runner:
            return self.runner.run(prompts, temperature)
        return self.generator.answer([Request(prompt.ids, prompt.keys, temperature) for prompt in prompts])

    def score(self, episodes: Sequence[Episode], rows: Sequence[Row]) -> Scores:
        """A score for each episode, or NaN and the reason. It is the environment's where that gave one, otherwise the
        reward's for the last turn; an episode with a fault has none."""
        open_ = [place for place, one in enumerate(episodes) if not one.fault and _has_no_score(one)]
        texts = self.generator.texts([episodes[place] for place in open_]) if open_ else []
        answers = [make_answer(rows[place], text) for place, text in zip(open_, texts, strict=True)]
        scores = score_safely(self.reward, answers)
        return self._merge_scores(episodes, open_, scores) if self.runner else scores

    @staticmethod
    def _merge_scores(episodes: Sequence[Episode], open_: Sequence[int], scores: Scores) -> Scores:
        """The environment's scores, with the reward's `scores` of the episodes `open_`, to which it gave none."""
        total = [math.nan if one.reward is None else one.reward for one in episodes]
        faults, parts = [one.fault for one in episodes], [dict(one.parts) for one in episodes]
        for number, place in enumerate(open_):
            total[place], faults[place] = scores.total[number], scores.faults[number]
            parts[place] |= {name: values[number] for name, values in scores.parts.items()}
        names = dict.fromkeys(name for each in parts for name in each)
        return Scores(total, {name: [each.get(name, math.nan) for each in parts] for name in names}, faults)

    def texts(self, episodes: Sequence[Episode]) -> list[str]:
        """The text of each episode to display: its answer, or its turns with the environment's observations."""
        if not self.runner:
            return self.generator.texts(episodes)
        return ["\n".join(turn.text for turn in one.turns) for one in episodes]


def _has_no_score(one: Episode) -> bool:
    return one.reward is None or math.isnan(one.reward)


def scored(episodes: Sequence[Episode], scores: Scores) -> list[Episode]:
    """The episodes with their scores and parts."""
    parts = [dict(zip(scores.parts, values, strict=True)) for values in zip(*scores.parts.values(), strict=True)]
    rows = zip(episodes, scores.total, parts or [{}] * len(episodes), strict=True)
    return [replace(one, reward=reward, parts=named) for one, reward, named in rows]


def record_of(one: Episode, characters: int, advantage: Tensor | None = None) -> EpisodeRecord:
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
