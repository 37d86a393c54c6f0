"""Rewards that combine others: a weighted sum, or one chosen for each row by its data source or its style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from difflib import get_close_matches
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
    """Base of rewards that combine several."""

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

    def problems(self) -> list[Problem]:
        problems = [Problem("reward.parts", f"{short_repr(name)} cannot name a metric", "use letters, digits and '_'")
                    for name in self.parts if not is_metric_name(name) or name in SUMS.values()]  # fmt: skip
        for name, part in self.parts.items():
            problems += [replace(problem, where=f"reward.parts.{name}{problem.where.removeprefix('reward')}")
                         for problem in part.problems()]  # fmt: skip
        return problems

    def on_trial(self) -> Self:
        return replace(self, parts={name: part.on_trial() for name, part in self.parts.items()})

    def with_absolute_paths(self) -> Self:
        return replace(self, parts={name: part.with_absolute_paths() for name, part in self.parts.items()})

    def within(self, folder: Path) -> Self:
        return replace(self, parts={name: part.within(folder) for name, part in self.parts.items()})


@settings
class Weighted(Combined):
    """The sum of each part's score times its weight."""

    weights: dict[str, Weight] = field(default_factory=dict)
    """Weights by the parts' names; the default is 1. A part of weight 0 is reported but not added."""

    @property
    def span(self) -> float | None:  # type: ignore[override]
        return self._span_of(self.parts)

    def _span_of(self, parts: Mapping[str, Reward]) -> float | None:
        spans = [abs(self.weights.get(name, 1.0)) * part.span for name, part in parts.items() if part.span]
        return sum(spans) if len(spans) == len(parts) else None

    def _scorers(self, answer: Answer) -> Mapping[str, Reward]:
        """The parts that score this answer, by name."""
        return self.parts

    def problems(self) -> list[Problem]:
        part_names = list(self.parts)
        problems = [Problem("reward.weights", f"no part {name!r}", suggest(name, part_names)) for name in self.weights
                    if name not in part_names]  # fmt: skip
        if all(self.weights.get(name, 1.0) == 0 for name in part_names):
            got, fix = "all parts weigh 0, so nothing can be learnt", f"use reward.weights.{part_names[0]}=1"
            problems.append(Problem("reward.weights", got, fix))
        return [*problems, *super().problems()]

    def judge(self, answers: Sequence[Answer]) -> Scores:
        """Scores [N] of N answers; NaN, with the fault, where a part of non-zero weight cannot score the answer."""
        scorers = [self._scorers(answer) for answer in answers]
        faults = ["" if parts else _MISSING[answer.asks_model] for answer, parts in zip(answers, scorers, strict=True)]
        total, columns = [0.0] * len(answers), dict[str, list[float]]()
        sums = {name: [0.0] * len(answers) for name in SUMS.values()}
        for name, part in self.parts.items():
            weight, own_sum = self.weights.get(name, 1.0), sums[SUMS[part.learned]]
            indices = [index for index, parts in enumerate(scorers) if name in parts]
            scores = score_safely(part, [answers[index] for index in indices])
            _add_columns(columns, name, scores, indices, len(answers))
            if weight == 0:
                continue
            for index, value, fault in zip(indices, scores.total, scores.faults, strict=True):
                if fault:
                    faults[index] = faults[index] or f"{name}: {fault}"
                else:
                    total[index] += weight * value
                    own_sum[index] += weight * value
        known_sums = {name: _known(values, faults) for name, values in sums.items()}
        return Scores(_known(total, faults), {**columns, **known_sums}, faults)

    def weight_by_name(self) -> dict[str, float]:
        return {name: self.weights.get(name, 1.0) for name in self.parts}

    def unscorable_reason(self, answer: Answer) -> str:
        parts = self._scorers(answer)
        reasons = (part.unscorable_reason(answer) for name, part in parts.items() if self.weights.get(name, 1.0))
        return next(filter(None, reasons), "") if parts else _MISSING[answer.asks_model]

    def cheap_for(self, answer: Answer) -> bool:
        parts = self._scorers(answer).values()
        return bool(parts) and all(part.cheap_for(answer) for part in parts)

    def reference_response(self, answer: Answer) -> str | None:
        """The reference response of the first part that has one, formatted by each of the other parts."""
        for name, part in self._scorers(answer).items():
            if (text := part.reference_response(answer)) is not None:
                return self._formatted(text, skip=name)
        return None

    def format_response(self, text: str) -> str:
        return self._formatted(text)

    def _formatted(self, text: str, skip: str = "") -> str:
        for name, part in self.parts.items():
            text = text if name == skip else part.format_response(text)
        return text

    def extract_answer(self, response: str) -> str:
        """The final answer by the rule with the largest weight, or by the heaviest model where no part is a rule."""
        rules = [name for name, part in self.parts.items() if not part.learned]
        heaviest = max(rules or self.parts, key=lambda name: self.weights.get(name, 1.0))
        return self.parts[heaviest].extract_answer(response)


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

    def judge(self, answers: Sequence[Answer]) -> Scores:
        faults = [self.unscorable_reason(answer) for answer in answers]
        total, columns = [math.nan] * len(answers), dict[str, list[float]]()
        for name, part in self.parts.items():
            indices = [i for i, answer in enumerate(answers) if self._rule(answer) == name and not faults[i]]
            scores = score_safely(part, [answers[index] for index in indices])
            _add_columns(columns, name, scores, indices, len(answers))
            for index, value, fault in zip(indices, scores.total, scores.faults, strict=True):
                total[index], faults[index] = value, fault
        return Scores(total, columns, faults)

    def unscorable_reason(self, answer: Answer) -> str:
        name = self._rule(answer)
        if name is None or name not in self.parts:
            matches = get_close_matches(answer.data_source, [*self.routes, *ROUTES], n=1)
            add = f"add 'reward.routes={{{answer.data_source}: {next(iter(self.parts))}}}'"
            fix = f"did you mean {matches[0]}?" if matches else add
            return f"data_source {short_repr(answer.data_source)} has no reward; {fix}"
        part = self.parts[name]
        return next(map(str, part.problems()), "") or part.unscorable_reason(answer)

    def cheap_for(self, answer: Answer) -> bool:
        name = self._rule(answer)
        return name in self.parts and self.parts[name].cheap_for(answer)

    def reference_response(self, answer: Answer) -> str | None:
        name = self._rule(answer)
        return self.parts[name].reference_response(answer) if name in self.parts else None

    def _rule(self, answer: Answer) -> str | None:
        return route(answer.data_source, self.routes)


@settings
class ByStyle(Weighted):
    """Rows whose `reward_model.style` is model are scored by the parts that are models, all others by those that are
    rules: of each the weighted sum. A row without a style is a rule's where it has a ground truth."""

    @property
    def span(self) -> float | None:  # type: ignore[override]
        """The larger span of the two sums, as each row has one style."""
        spans = [self._span_of(self._parts_of_kind(kind)) for kind in {part.learned for part in self.parts.values()}]
        return None if None in spans else max(span for span in spans if span is not None)

    def _scorers(self, answer: Answer) -> Mapping[str, Reward]:
        return self._parts_of_kind(answer.asks_model)

    def _parts_of_kind(self, learned: bool) -> Mapping[str, Reward]:
        return {name: part for name, part in self.parts.items() if part.learned == learned}

    def judge(self, answers: Sequence[Answer]) -> Scores:
        scores = super().judge(answers)
        sums = {name: [value if answer.asks_model == learned else math.nan
                       for answer, value in zip(answers, scores.parts[name], strict=True)]
                for learned, name in SUMS.items()}  # fmt: skip
        return replace(scores, parts={**scores.parts, **sums})


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
