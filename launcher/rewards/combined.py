"""Rewards that combine others: a weighted sum, or one chosen for each row by its data source or its style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from difflib import get_close_matches
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field

from launcher.core.problems import Problem, short_repr, suggest
from launcher.core.settings import Chosen, settings
from launcher.spec.reward import Answer, DetailedReward, Reward, Scores, is_metric_name, score_safely
from launcher.spec.routes import ROUTES, route

RewardT = TypeVar("RewardT")
Whole = TypeVar("Whole")
Parts = Annotated[dict[str, Chosen[Reward]], Field(min_length=1)]
Weight = Annotated[float, Field(allow_inf_nan=False)]
SUMS = {False: "rule_based", True: "rm_based"}  # metric of a part's sum, by `Reward.learned`
_MISSING = {False: "no part of reward.parts is a rule", True: "no part of reward.parts is a model"}


@settings
class Combined(DetailedReward):
    """Base of rewards that combine several: an answer's score is the weighted sum of the parts that score it."""

    parts: Parts
    """The rewards, by name. A config file composes them from the group's other choices; on the command line
    `reward=weighted reward.parts={gsm8k:1.0,format:0.2}` gives choices and their weights."""

    @property
    def learned(self) -> bool:  # type: ignore[override]  # the base class names a constant
        return all(part.learned for part in self.parts.values())

    @property
    def cheap(self) -> bool:  # type: ignore[override]
        return all(part.cheap for part in self.parts.values())

    @property
    def uses_ground_truth(self) -> bool:  # type: ignore[override]
        return any(part.uses_ground_truth for part in self.parts.values())

    def leaves(self) -> Iterator[Reward]:
        for part in self.parts.values():
            yield from part.leaves()

    def on_trial(self) -> Self:
        return self._with_each(lambda part: part.on_trial())

    def with_absolute_paths(self) -> Self:
        return self._with_each(lambda part: part.with_absolute_paths())

    def within(self, folder: Path) -> Self:
        return self._with_each(lambda part: part.within(folder))

    def _with_each(self, change: Callable[[Reward], Reward]) -> Self:
        return replace(self, parts={name: change(part) for name, part in self.parts.items()})

    def scorers(self, answer: Answer) -> Mapping[str, Reward]:
        """The parts that score this answer, by name; `unscorable_reason` says why there are none."""
        return self.parts

    def weight_of(self, name: str) -> float:
        return 1.0

    def judge(self, answers: Sequence[Answer]) -> Scores:
        """Scores [N] of N answers; NaN, with the fault, where a part of non-zero weight cannot score the answer."""
        scorers = [self.scorers(answer) for answer in answers]
        faults = ["" if each else self.unscorable_reason(answer) for each, answer in zip(scorers, answers, strict=True)]
        total, columns = [0.0] * len(answers), dict[str, list[float]]()
        for name, part in self.parts.items():
            weight, indices = self.weight_of(name), [index for index, each in enumerate(scorers) if name in each]
            scores = score_safely(part, [answers[index] for index in indices])
            _add_columns(columns, name, scores, indices, len(answers))
            for index, value, fault in zip(indices, scores.total, scores.faults, strict=True) if weight else ():
                faults[index] = faults[index] or (f"{name}: {fault}" if fault else "")
                total[index] += weight * value
        return Scores(_known(total, faults), columns, faults)

    def cheap_for(self, answer: Answer) -> bool:
        parts = self.scorers(answer).values()
        return bool(parts) and all(part.cheap_for(answer) for part in parts)

    def reference_response(self, answer: Answer) -> str | None:
        """The reference response of the first part that has one, formatted by each of the other parts."""
        parts = self.scorers(answer)
        for name, part in parts.items():
            if (text := part.reference_response(answer)) is not None:
                return _formatted(text, [other for other_name, other in parts.items() if other_name != name])
        return None


@settings
class Weighted(Combined):
    """The sum of each part's score times its weight."""

    weights: dict[str, Weight] = field(default_factory=dict)
    """Weights by the parts' names; the default is 1. A part of weight 0 is reported but not added."""

    @property
    def span(self) -> float | None:  # type: ignore[override]
        return self._span_of(self.parts)

    def _span_of(self, parts: Mapping[str, Reward]) -> float | None:
        spans = [abs(self.weight_of(name)) * part.span for name, part in parts.items() if part.span]
        return sum(spans) if len(spans) == len(parts) else None

    def weight_of(self, name: str) -> float:
        return self.weights.get(name, 1.0)

    def problems(self) -> list[Problem]:
        part_names = list(self.parts)
        problems = [Problem("reward.weights", f"no part {name!r}", suggest(name, part_names)) for name in self.weights
                    if name not in part_names]  # fmt: skip
        if not any(map(self.weight_of, part_names)):
            got, fix = "all parts weigh 0, so nothing can be learnt", f"use reward.weights.{part_names[0]}=1"
            problems.append(Problem("reward.weights", got, fix))
        problems += [Problem("reward.parts", f"{short_repr(name)} cannot name a metric", "use letters, digits and '_'")
                     for name in self.parts if not is_metric_name(name) or name in SUMS.values()]  # fmt: skip
        for name, part in self.parts.items():
            problems += [replace(problem, where=f"reward.parts.{name}{problem.where.removeprefix('reward')}")
                         for problem in part.problems()]  # fmt: skip
        return problems

    def judge(self, answers: Sequence[Answer]) -> Scores:
        """The scores, with the sums of the parts that are rules and of those that are models: a kind that scored
        nothing has no sum."""
        scores, sums = super().judge(answers), dict[str, list[float]]()
        for name, part in self.parts.items():
            if (weight := self.weight_of(name)) and (column := scores.parts.get(name)):
                kind, weighted = SUMS[part.learned], [weight * value for value in column]
                sums[kind] = list(map(add, sums.get(kind, [0.0] * len(answers)), weighted))
        known_sums = {kind: _known(sums[kind], scores.faults) for kind in SUMS.values() if kind in sums}
        return replace(scores, parts={**scores.parts, **known_sums})

    def _parts_of_kind(self, learned: bool) -> Mapping[str, Reward]:
        return {name: part for name, part in self.parts.items() if part.learned == learned}

    def weight_by_name(self) -> dict[str, float]:
        return {name: self.weight_of(name) for name in self.parts}

    def unscorable_reason(self, answer: Answer) -> str:
        parts = self.scorers(answer)
        reasons = (part.unscorable_reason(answer) for name, part in parts.items() if self.weight_of(name))
        return next(filter(None, reasons), "") if parts else _MISSING[answer.asks_model]

    def format_response(self, text: str) -> str:
        return _formatted(text, self.parts.values())

    def extract_answer(self, response: str) -> str:
        """The final answer by the rule with the largest weight, or by the heaviest model where no part is a rule."""
        return self.parts[max(self._parts_of_kind(False) or self.parts, key=self.weight_of)].extract_answer(response)


@settings
class Auto(Combined):
    """For each row the rule of its data_source, as in verl's default; a row that names none is of its
    file's name."""

    routes: dict[str, str] = field(default_factory=dict)
    """data_source -> part, in addition to the table in launcher/spec/routes.py, and before it."""

    def problems(self) -> list[Problem]:
        """Errors of its routes; a part that this machine cannot run is an error only once a row needs it."""
        names = list(self.parts)
        return [Problem("reward.routes", f"{source!r} leads to {part!r}, which is not a part", suggest(part, names))
                for source, part in self.routes.items() if part not in names]  # fmt: skip

    def scorers(self, answer: Answer) -> Mapping[str, Reward]:
        name = route(answer.data_source, self.routes) or ""
        return {} if self.unscorable_reason(answer) else {name: self.parts[name]}

    def unscorable_reason(self, answer: Answer) -> str:
        part = self.parts.get(route(answer.data_source, self.routes) or "")
        if part:
            return next(map(str, part.problems()), "") or part.unscorable_reason(answer)
        matches = get_close_matches(answer.data_source, [*self.routes, *ROUTES], n=1)
        add = f"add 'reward.routes={{{answer.data_source}: {next(iter(self.parts))}}}'"
        fix = f"did you mean {matches[0]}?" if matches else add
        return f"data_source {short_repr(answer.data_source)} has no reward; {fix}"


@settings
class ByStyle(Weighted):
    """Rows whose `reward_model.style` is model are scored by the parts that are models, all others by those that are
    rules: of each the weighted sum. A row without a style is a rule's where it has a ground truth."""

    @property
    def span(self) -> float | None:  # type: ignore[override]
        """The larger span of the two sums, as each row has one style."""
        spans = [self._span_of(self._parts_of_kind(kind)) for kind in {part.learned for part in self.parts.values()}]
        return None if None in spans else max(span for span in spans if span is not None)

    def scorers(self, answer: Answer) -> Mapping[str, Reward]:
        return self._parts_of_kind(answer.asks_model)


def _formatted(text: str, parts: Iterable[Reward]) -> str:
    """`text` in the format of each of the parts, one after the other."""
    return reduce(lambda inner, part: part.format_response(inner), parts, text)


def replace_each(reward: Whole, kind: type[RewardT], change: Callable[[RewardT], Any]) -> Whole:
    """`reward` (any part of a run) with `change` applied to each instance of `kind`: itself, or among the parts of a
    `Combined`."""
    if isinstance(reward, kind):
        changed: Whole = change(reward)
        return changed
    if isinstance(reward, Combined):
        return replace(reward, parts={name: replace_each(part, kind, change) for name, part in reward.parts.items()})
    return reward


def _known(values: Sequence[float], faults: Sequence[str]) -> list[float]:
    """`values`, with NaN where there is a fault."""
    return [math.nan if fault else value for value, fault in zip(values, faults, strict=True)]


def _add_columns(
    columns: dict[str, list[float]], name: str, scores: Scores, indices: Sequence[int], count: int
) -> None:
    """Add the total and the parts of a reward that scored some of `count` answers, those with these indices; the others
    have NaN."""
    added = {name: scores.total, **{f"{name}/{inner}": values for inner, values in scores.parts.items()}}
    for key, values in added.items() if indices else ():
        column = columns.setdefault(key, [math.nan] * count)
        for index, value in zip(indices, values, strict=True):
            column[index] = value
