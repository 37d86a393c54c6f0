"""The scores of single held-out prompts as events, by which two validations are compared prompt by prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from launcher.core.events import HeldOutScores

MOST_PROMPTS = 5_000
"""Most held-out prompts of a validation whose single scores are logged, at about 20 bytes each."""


def prompt_digest(prompt: str, ground_truth: str) -> str:
    """8 hex digits of a sha256; two of 5,000 prompts have the same digest in 3 of 1,000 cases."""
    return hashlib.sha256(f"{prompt}\0{ground_truth}".encode("utf-8", "backslashreplace")).hexdigest()[:8]


def held_out_scores(step: int, scores: Sequence[tuple[str, str, float]], metric: Any = "score") -> list[HeldOutScores]:
    """An event for each data source in `scores` of (data source, digest, mean score); none beyond `MOST_PROMPTS`."""
    by_source = dict[str, list[tuple[str, float]]]()
    for source, digest, score in scores if len(scores) <= MOST_PROMPTS else ():
        by_source.setdefault(source, []).append((digest, score))
    return [
        HeldOutScores(step=step, data_source=source, prompts=prompts, scores=means, metric=metric)
        for source, digests_and_scores in by_source.items()
        for prompts, means in [zip(*digests_and_scores, strict=True)]
    ]
