"""The held-out prompts that two validations have in common, with their scores."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.core.events import HeldOutScores, Sample
from launcher.core.prompt_scores import prompt_digest
from launcher.health.paired import PromptKey, by_prompt, numbered, pairs_of
from launcher.views.record import KEPT_SAMPLES, RunRecord


@dataclass(frozen=True)
class CommonItems:
    """Prompts whose answers have a score in both validations, in the order of the first."""

    pairs: list[tuple[str, float, float]]
    """(data source, score in the first validation, score in the second)."""
    logged: tuple[int, int]
    """Number of logged prompts of each validation."""
    means: bool
    """Whether a score is the mean over all answers to a prompt; else it is that of the first answer."""

    def scores(self, source: str = "") -> list[tuple[float, float]]:
        return [(a, b) for each, a, b in self.pairs if source in ("", each)]

    @property
    def sources(self) -> list[str]:
        return sorted({source for source, _, _ in self.pairs})


def common_items(one: RunRecord, step: int, other: RunRecord, other_step: int) -> CommonItems:
    """The common prompts, from the scores of all prompts if both logs have them, else from the logged answers."""
    a, b = prompt_scores(one, step), prompt_scores(other, other_step)
    if not (means := bool(a and b)):
        a, b = _first_answers(one, step), _first_answers(other, other_step)
    return CommonItems(pairs_of(a, b), (len(a), len(b)), means)


def prompt_scores(record: RunRecord, step: int) -> dict[PromptKey, float]:
    """The mean score of each prompt at a step; empty where they are not logged."""
    events = next((event for event in (record.scores, record.first_scores) if event and event[0].step == step), None)
    if events is None and record.scores:
        events = [event for event in record.events() if isinstance(event, HeldOutScores) and event.step == step]
    return by_prompt(events or [])


def _first_answers(record: RunRecord, step: int) -> dict[PromptKey, float]:
    samples = next((each for each in (record.samples, record.first_samples) if each and each[0].step == step), [])
    if len(samples) >= KEPT_SAMPLES or (not samples and step in record.sample_steps):
        samples = [each for each in record.events() if isinstance(each, Sample) and each.step == step]
    return numbered((each.data_source, prompt_digest(each.prompt, each.ground_truth), each.value) for each in samples)
