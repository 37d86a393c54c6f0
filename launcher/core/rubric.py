"""The evaluation of an agent that searches e-mails, from the facts of its episodes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, pstdev
from types import SimpleNamespace

from launcher.core.events import HeldOutEpisodes

RUBRIC = "ever_found_right_email"
"""A fact that only the environment of such an agent counts."""
_DIGITS = {"_reward": 3, "avg_turns_correct": 2, "avg_turns_idk": 2, "avg_search_attempts": 2, "eval_time": 1}
_NOT_METRICS = ("step", "total_samples", "eval_time", "beat_rate")


class Evaluation(SimpleNamespace):
    """Its attributes are the keys of eval_logs/eval_step_NNNN.json, in their order (`evaluation_of`). Episodes that
    ended by a fault are not samples; a mean over no sample is None."""

    @property
    def json(self) -> str:
        return (
            "{\n" + ",\n".join(f'  "{name}": {_to_json(name, value)}' for name, value in vars(self).items()) + "\n}\n"
        )

    @property
    def metrics(self) -> dict[str, float]:
        """The evaluation as metrics, `eval/KEY`, without values that are None."""
        values = {name: value for name, value in vars(self).items() if name not in _NOT_METRICS and value is not None}
        return {f"eval/{name}": float(value) for name, value in values.items()}


def _to_json(name: str, value: float | None) -> str:
    digits = next((digits for ending, digits in _DIGITS.items() if name.endswith(ending)), None)
    if value is None:
        return "null"
    return str(value if isinstance(value, int) else round(value, 4)) if digits is None else f"{value:.{digits}f}"


def evaluation_of(event: HeldOutEpisodes, first_reward: float | None = None) -> Evaluation | None:
    """The evaluation in a validation; None where its environment counts other facts, or no episode has a reward.
    `first_reward` is the mean reward of the run's first evaluation, by default of this one."""
    known = [place for place, reward in enumerate(event.rewards) if math.isfinite(reward)]
    if RUBRIC not in event.facts or not known:
        return None
    rewards = [event.rewards[place] for place in known]

    def of(name: str) -> list[float]:
        return [event.facts[name][place] for place in known]

    def turns(chosen: Sequence[float]) -> float | None:
        chosen_turns = [event.turns[place] for place, is_chosen in zip(known, chosen, strict=True) if is_chosen]
        return fmean(chosen_turns) if chosen_turns else None

    correct, idk = of("answer_correct"), of("returned_i_dont_know")
    searches, repeated = round(sum(of("num_searches"))), round(sum(of("num_repeated_searches")))
    reference = fmean(rewards) if first_reward is None else first_reward
    return Evaluation(
        step=event.step,
        accuracy=sum(correct) / len(known),
        correct_answers=round(sum(correct)),
        total_samples=len(known),
        attempted_answer=round(sum(of("attempted_answer"))),
        avg_reward=fmean(rewards),
        median_reward=median(rewards),
        std_reward=pstdev(rewards),  # of the population, divided by n
        min_reward=min(rewards),
        max_reward=max(rewards),
        found_correct_email=round(sum(of(RUBRIC))),
        read_correct_email=round(sum(of("ever_read_right_email"))),
        total_repeated_searches=repeated,
        total_unique_searches=searches - repeated,
        total_searches=searches,
        avg_turns_correct=turns(correct),
        avg_turns_idk=turns(idk),
        avg_search_attempts=searches / len(known),
        num_idk=round(sum(idk)),
        eval_time=event.seconds,
        beat_rate=sum(reward > reference for reward in rewards) / len(known),  # above the first evaluation's mean
    )
