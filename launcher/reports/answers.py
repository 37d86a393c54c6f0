"""Held-out answers in a report: some drawn with a fixed seed, and answers with a low score grouped by kind."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from launcher.core.events import Sample
from launcher.views.record import RunRecord

DRAWN, SEED = 20, 0
LOW = 0.5
EXAMPLES = 3  # most of a group


@dataclass
class ErrorGroup:
    """Answers with a score below LOW, of one data source and one kind."""

    source: str
    kind: str
    samples: list[Sample] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def examples(self) -> list[Sample]:
        return self.samples[:EXAMPLES]

    @property
    def mean(self) -> float:
        scores = [sample.value for sample in self.samples if math.isfinite(sample.value)]
        return math.fsum(scores) / len(scores) if scores else math.nan


def drawn(samples: Sequence[Sample], count: int = DRAWN) -> list[Sample]:
    """`count` random samples in their order; always the same ones, as the seed is fixed."""
    places = random.Random(SEED).sample(range(len(samples)), min(count, len(samples)))
    return [samples[place] for place in sorted(places)]


def error_groups(record: RunRecord) -> list[ErrorGroup]:
    """The low answers of the last validation, the largest group first."""
    groups: dict[tuple[str, str], ErrorGroup] = {}
    for sample in record.samples:
        if sample.score is None or sample.score >= LOW:
            continue
        kind = kind_of(sample)
        groups.setdefault((sample.data_source, kind), ErrorGroup(sample.data_source, kind)).samples.append(sample)
    return sorted(groups.values(), key=lambda group: (-group.count, group.source, group.kind))


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
