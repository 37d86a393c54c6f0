"""Sampled answers: chosen, grouped by prompt, and what changed from one step to another."""

from __future__ import annotations

import difflib
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from launcher.core.events import Event, Sample
from launcher.core.problems import Problem, Problems

MOST = 10_000
"""Answers of one step that are kept; of more the last."""


@dataclass(frozen=True)
class Wanted:
    """Which answers are looked for. A score that is no number is in no range."""

    search: str = ""
    min_score: float = -math.inf
    max_score: float = math.inf

    @property
    def any(self) -> bool:
        """Whether every answer is wanted."""
        return self == Wanted()

    def has(self, sample: Sample) -> bool:
        if self.search and not any(
            self.search in text for text in (sample.prompt, sample.response, sample.ground_truth)
        ):
            return False
        ranged = self.min_score > -math.inf or self.max_score < math.inf
        return not ranged or self.min_score <= sample.score <= self.max_score


def choose_samples(events: Iterable[Event], step: int | None, wanted: Wanted) -> list[Sample]:
    """The answers of a step, else those that are wanted, else those of the last step that has any."""
    if step is not None:
        return [sample for sample in samples_of_step(events, step) if wanted.has(sample)]
    found = deque[Sample](maxlen=MOST)
    for sample in _samples(events):
        if wanted.any and found and sample.step != found[-1].step:
            found.clear()
        if wanted.has(sample):
            found.append(sample)
    return list(found)


def _samples(events: Iterable[Event]) -> Iterator[Sample]:
    return (event for event in events if isinstance(event, Sample))


def samples_of_step(events: Iterable[Event], step: int) -> list[Sample]:
    """Raises `Problems` where that step has none."""
    found, steps = deque[Sample](maxlen=MOST), set[int]()
    for sample in _samples(events):
        steps.add(sample.step)
        if sample.step == step:
            found.append(sample)
    if not found:
        known = sorted(steps)
        fix = f"use {' or '.join(map(str, known[-8:]))}" if known else "the log has no answers at all"
        raise Problems(Problem(f"step {step}", "has no answers", fix, "not-found"))
    return list(found)


def by_prompt(found: Iterable[Sample]) -> dict[str, list[Sample]]:
    groups = defaultdict[str, list[Sample]](list)
    for sample in found:
        groups[sample.prompt].append(sample)
    return groups


@dataclass(frozen=True)
class ChangedAnswer:
    """The first answers to one prompt at two steps."""

    before: Sample
    after: Sample

    @property
    def change(self) -> float:
        """Of the score; 0 where that is no number."""
        change = self.after.score - self.before.score
        return change if math.isfinite(change) else 0.0

    @property
    def node(self) -> dict[str, Any]:
        a, b = self.before, self.after
        return {"prompt": a.prompt, "step": [a.step, b.step], "score": [a.score, b.score],
                "response": [a.response, b.response]}  # fmt: skip


def compare_samples(
    events: Iterable[Event], again: Iterable[Event], steps: tuple[int, int], wanted: Wanted
) -> list[ChangedAnswer]:
    """The prompts of both steps, those whose score changed most first; `again` has the same events. Raises `Problems`
    where the steps have no prompt in common."""
    old, new = by_prompt(samples_of_step(events, steps[0])), by_prompt(samples_of_step(again, steps[1]))
    pairs = [ChangedAnswer(old[prompt][0], new[prompt][0]) for prompt in old if prompt in new]
    if not pairs:
        fix = "use two steps with answers to the same prompts"
        raise Problems(Problem(f"steps {steps[0]} and {steps[1]}", "have no prompt in common", fix, "not-found"))
    return sorted(
        (pair for pair in pairs if wanted.has(pair.before) or wanted.has(pair.after)),
        key=lambda pair: -abs(pair.change),
    )


def changes_line(pairs: list[ChangedAnswer]) -> str:
    better, worse = (sum(sign * pair.change > 0 for pair in pairs) for sign in (1, -1))
    same = sum(pair.before.response == pair.after.response for pair in pairs)
    counts = f"{better} better, {worse} worse, {len(pairs) - better - worse} of equal score"
    return f"{len(pairs)} prompts of both steps: {counts}; {same} answers are the same"


def changed_words(before: str, after: str) -> Iterator[tuple[Literal["same", "gone", "new"], str]]:
    """The words of both texts in the order of the later one."""
    old, new = before.split(" "), after.split(" ")
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            yield "same", " ".join(old[a:b])
            continue
        if b > a:
            yield "gone", " ".join(old[a:b])
        if d > c:
            yield "new", " ".join(new[c:d])
