"""The held-out prompts that two validations have in common, with their scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.core.events import prompt_digest
from launcher.views.read import samples_at, scores_at
from launcher.views.record import KEPT_SAMPLES, RunRecord

PromptKey = tuple[str, str, int]
"""Data source, digest of prompt and ground truth, and number among equal rows."""


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
    a, b = _means(one, step), _means(other, other_step)
    if means := bool(a and b):
        return _common(a, b, means)
    return _common(_first_answers(one, step), _first_answers(other, other_step), means)


def _common(a: dict[PromptKey, float], b: dict[PromptKey, float], means: bool) -> CommonItems:
    both = [key for key, score in a.items() if math.isfinite(score) and math.isfinite(b.get(key, math.nan))]
    return CommonItems([(key[0], a[key], b[key]) for key in both], (len(a), len(b)), means)


def _means(record: RunRecord, step: int) -> dict[PromptKey, float]:
    kept = next((each for each in (record.scores, record.first_scores) if each and each[0].step == step), None)
    events = scores_at(record.folder, step) if kept is None and record.scores else kept or []
    return numbered(
        (each.data_source, *item) for each in events for item in zip(each.prompts, each.scores, strict=True)
    )


def _first_answers(record: RunRecord, step: int) -> dict[PromptKey, float]:
    kept = next((each for each in (record.samples, record.first_samples) if each and each[0].step == step), [])
    if len(kept) >= KEPT_SAMPLES or (not kept and step in record.sample_steps):
        kept = list(samples_at(record.folder, step))
    return numbered((each.data_source, prompt_digest(each.prompt, each.ground_truth), each.value) for each in kept)


def numbered(items: Iterable[tuple[str, str, float]]) -> dict[PromptKey, float]:
    """Each score by its prompt; equal rows are counted."""
    count, found = Counter[tuple[str, str]](), dict[PromptKey, float]()
    for source, digest, score in items:
        count[source, digest] += 1
        found[source, digest, count[source, digest]] = score
    return found
