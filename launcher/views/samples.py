"""Sampled answers, to held-out prompts or of training steps: chosen, grouped by prompt, and what changed from one step
to another."""

from __future__ import annotations

import difflib
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from launcher.core.events import Event, HeldOutEpisodes, Loaded, Sample, TrainingGroup
from launcher.core.problems import Problem, Problems
from launcher.core.rubric import Evaluation, evaluation_of
from launcher.core.state import TrainingAnswer, training_answers
from launcher.views.read import LogOrRun

MOST = 10_000
"""Most answers of one step that are kept: the last ones."""


@dataclass(frozen=True)
class SampleFilter:
    """A filter of answers. A score of NaN is in no range."""

    search: str = ""
    min_score: float = -math.inf
    max_score: float = math.inf
    group: int | None = None
    """Number of a training group within its step; implies answers of training steps."""
    training: bool = False
    """Only answers of training steps; else answers to held-out prompts, or of training steps where there are none."""

    @property
    def any(self) -> bool:
        """Whether the filter admits every answer of a step."""
        return replace(self, group=None, training=False) == SampleFilter()

    @property
    def kinds(self) -> tuple[bool, ...]:
        """The kinds of answers to look for, in this order: False for held-out prompts, True for training steps."""
        return (True,) if self.training or self.group is not None else (False, True)

    def admits(self, sample: Sample) -> bool:
        if self.search and not any(
            self.search in text for text in (sample.prompt, sample.response, sample.ground_truth)
        ):
            return False
        if self.group is not None and not (isinstance(sample, TrainingAnswer) and sample.group == self.group):
            return False
        ranged = self.min_score > -math.inf or self.max_score < math.inf
        return not ranged or self.min_score <= sample.value <= self.max_score


def choose_samples(events: Iterable[Event], step: int | None, criteria: SampleFilter) -> list[Sample]:
    """The answers that `criteria` admits: of `step`, else of all steps if it is a filter, else of the last step with
    any. Raises `Problems` where `step` has none."""
    samples_by_kind = {kind: deque[Sample](maxlen=MOST) for kind in criteria.kinds}
    steps = set[int]()
    for event in events:
        kind = isinstance(event, TrainingGroup)
        for sample in _answers(event) if kind in samples_by_kind else ():
            steps.add(sample.step)
            samples = samples_by_kind[kind]
            if step is None and criteria.any and samples and sample.step != samples[-1].step:
                samples.clear()
            if step in (None, sample.step) and criteria.admits(sample):
                samples.append(sample)
    if step is not None and step not in steps:
        logged = sorted(steps)
        fix = f"use {' or '.join(map(str, logged[-8:]))}" if logged else "the log has no answers at all"
        raise Problems(Problem(f"step {step}", "has no answers", fix, "not-found"))
    return list(next(filter(None, samples_by_kind.values()), ()))


def _answers(event: Event) -> Iterable[Sample]:
    if isinstance(event, TrainingGroup):
        return training_answers(event)
    return (event,) if isinstance(event, Sample) else ()


def by_prompt(found: Iterable[Sample]) -> dict[str, list[Sample]]:
    groups = defaultdict[str, list[Sample]](list)
    for sample in found:
        groups[sample.prompt].append(sample)
    return groups


def answers_of(source: LogOrRun, step: int | None, criteria: SampleFilter) -> dict[str, list[Sample]]:
    """The answers that `choose_samples` finds, by prompt. Raises `Problems` where there are none."""
    if samples := choose_samples(source.events(), step, criteria):
        return by_prompt(samples)
    chosen = step is not None or not criteria.any or criteria.group is not None
    reason, fix = _why_no_answers(source)
    fix = f"use other bounds, or {fix}" if chosen else f"use {fix}"
    raise Problems(Problem(source.title, "no such answer" if chosen else f"no answers: {reason}", fix, "not-found"))


def evaluations_of(source: LogOrRun) -> list[Evaluation]:
    """The result of each validation of an e-mail agent, in the order of the steps. Raises `Problems` where there is
    none."""
    evaluations, first = list[Evaluation](), None
    for event in source.events():
        if isinstance(event, HeldOutEpisodes) and (evaluation := evaluation_of(event, first)):
            first = evaluation.avg_reward if first is None else first
            evaluations.append(evaluation)
    if not evaluations:
        fix = "use a run with environment=email_search that has validated"
        raise Problems(Problem(source.title, "no evaluation of an e-mail agent", fix, "not-found"))
    return evaluations


def _why_no_answers(source: LogOrRun) -> tuple[str, str]:
    """(why a log has no answers, how to get some)."""
    if source.log is not None:
        return "the log prints none", "a log with answers: verl prints them with trainer.log_val_generations"
    loaded = next((event for event in source.events() if isinstance(event, Loaded)), None)
    if loaded and not loaded.val_rows:
        return "no rows are held out", "data.val_files=FILE; SFT and DPO answer held-out prompts only"
    return "none is logged yet", "trainer.log_val_generations, or trainer.log_groups where answers are sampled"


@dataclass(frozen=True)
class ChangedAnswer:
    """The first answers to one prompt at two steps."""

    before: Sample
    after: Sample
    scores: tuple[float, float]
    """Mean score of the answers to the prompt, at each step."""

    @property
    def change(self) -> float:
        """Change of the mean score; 0 where it is not finite."""
        change = self.scores[1] - self.scores[0]
        return change if math.isfinite(change) else 0.0

    @property
    def node(self) -> dict[str, Any]:
        a, b = self.before, self.after
        return {"prompt": a.prompt, "step": [a.step, b.step], "score": list(self.scores),
                "response": [a.response, b.response]}  # fmt: skip


def compare_samples(
    events: Callable[[], Iterable[Event]], steps: tuple[int, int], criteria: SampleFilter
) -> list[ChangedAnswer]:
    """The prompts of both steps, those whose score changed most first; `events` reads them from the beginning. Raises
    `Problems` where the steps have no prompt in common."""
    every = SampleFilter(training=criteria.kinds == (True,))
    old, new = (by_prompt(choose_samples(events(), step, every)) for step in steps)
    pairs = [
        ChangedAnswer(old[prompt][0], new[prompt][0], (_mean(old[prompt]), _mean(new[prompt])))
        for prompt in old
        if prompt in new
    ]
    if not pairs and not every.training:
        with suppress(Problems):  # one of the steps has only answers of training
            return compare_samples(events, steps, replace(criteria, training=True))
    if not pairs:
        fix = "use two steps with answers to the same prompts"
        raise Problems(Problem(f"steps {steps[0]} and {steps[1]}", "have no prompt in common", fix, "not-found"))
    return sorted(
        (pair for pair in pairs if criteria.admits(pair.before) or criteria.admits(pair.after)),
        key=lambda pair: -abs(pair.change),
    )


def _mean(answers: Iterable[Sample]) -> float:
    values = [answer.value for answer in answers]
    return sum(values) / len(values)


def changes_line(pairs: list[ChangedAnswer]) -> str:
    better, worse = (sum(sign * pair.change > 0 for pair in pairs) for sign in (1, -1))
    same = sum(pair.before.response == pair.after.response for pair in pairs)
    counts = f"{better} better, {worse} worse, {len(pairs) - better - worse} of equal score"
    return f"{len(pairs)} prompts of both steps: {counts}; {same} answers are the same"


def changed_words(before: str, after: str) -> Iterator[tuple[Literal["same", "gone", "new"], str]]:
    """A diff of two texts by words: (same, gone or new; the words), in the order of the later text."""
    old, new = before.split(" "), after.split(" ")
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            yield "same", " ".join(old[a:b])
            continue
        if b > a:
            yield "gone", " ".join(old[a:b])
        if d > c:
            yield "new", " ".join(new[c:d])
