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
    """Data source and both scores."""
    logged: tuple[int, int]
    """Prompts of each."""
    means: bool
    """Over all answers to a prompt; otherwise the scores are those of the first answers."""

    def scores(self, source: str = "") -> list[tuple[float, float]]:
        return [(a, b) for each, a, b in self.pairs if source in ("", each)]

    @property
    def sources(self) -> list[str]:
        return sorted({source for source, _, _ in self.pairs})


def common_items(one: RunRecord, step: int, other: RunRecord, other_step: int) -> CommonItems:
    """From the scores of all prompts where both logs have them, else from the answers that were logged."""
    a, b = prompt_scores(one, step), prompt_scores(other, other_step)
    if not (means := bool(a and b)):
        a, b = _first_answers(one, step), _first_answers(other, other_step)
    return CommonItems(pairs_of(a, b), (len(a), len(b)), means)


def prompt_scores(record: RunRecord, step: int) -> dict[PromptKey, float]:
    """The mean score of each prompt at a step; empty where they are not logged."""
    kept = next((each for each in (record.scores, record.first_scores) if each and each[0].step == step), None)
    if kept is None and record.scores:
        kept = [each for each in record.events() if isinstance(each, HeldOutScores) and each.step == step]
    return by_prompt(kept or [])


def _first_answers(record: RunRecord, step: int) -> dict[PromptKey, float]:
    kept = next((each for each in (record.samples, record.first_samples) if each and each[0].step == step), [])
    if len(kept) >= KEPT_SAMPLES or (not kept and step in record.sample_steps):
        kept = [each for each in record.events() if isinstance(each, Sample) and each.step == step]
    return numbered((each.data_source, prompt_digest(each.prompt, each.ground_truth), each.value) for each in kept)
