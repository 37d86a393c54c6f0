"""Held-out answers in a report: some drawn with a fixed seed, and answers with a low score grouped by kind."""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from collections.abc import Sequence

from launcher.core.events import Sample

DRAWN, SEED = 20, 0
LOW = 0.5
LowAnswers = dict[tuple[str, str], list[Sample]]
"""Answers with a score below LOW by their data source and kind."""


def drawn(samples: Sequence[Sample], count: int = DRAWN) -> list[Sample]:
    """`count` random samples in their order; always the same ones, as the seed is fixed."""
    places = random.Random(SEED).sample(range(len(samples)), min(count, len(samples)))
    return [samples[place] for place in sorted(places)]


def error_groups(samples: Sequence[Sample]) -> LowAnswers:
    """The low answers of these, the largest group first."""
    groups = defaultdict[tuple[str, str], list[Sample]](list)
    for sample in samples:
        if sample.score is not None and not sample.score >= LOW:
            groups[sample.data_source, kind_of(sample)].append(sample)
    return dict(sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])))


def mean_score(samples: Sequence[Sample]) -> float:
    """Mean of the finite scores; NaN without any."""
    scores = [sample.value for sample in samples if math.isfinite(sample.value)]
    return math.fsum(scores) / len(scores) if scores else math.nan


def kind_of(sample: Sample) -> str:
    """What is wrong with a low answer, by its text. Where it holds the expected answer, the reward's rule did not find
    it, or asks for more."""
    if not math.isfinite(sample.value):
        return "no score"
    if not sample.response.strip():
        return "empty"
    truth = re.escape(sample.ground_truth.strip())
    is_there = truth and re.search(rf"(?<!\w){truth}(?!\w)", sample.response)
    return "holds the expected answer" if is_there else "wrong answer"
