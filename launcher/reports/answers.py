"""Held-out answers in a report: some drawn with a fixed seed, and answers with a low score grouped by kind."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from launcher.core.events import Sample
from launcher.core.settings import Chosen, from_node, settings
from launcher.spec.reward import Reward
from launcher.views.record import RunRecord

DRAWN, SEED = 20, 0
LOW = 0.5
EXAMPLES, GROUPS = 3, 12  # most examples of a group; most groups that are shown
_OURS = "launcher.rewards."
_CODE = "launcher.rewards.python."
TARGET = "_target_"


@settings
class _RewardHolder:
    reward: Chosen[Reward]


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
    reward = reward_of(record.settings)
    groups: dict[tuple[str, str], ErrorGroup] = {}
    for sample in record.samples:
        if sample.score is None or sample.score >= LOW:
            continue
        kind = kind_of(sample, reward)
        groups.setdefault((sample.data_source, kind), ErrorGroup(sample.data_source, kind)).samples.append(sample)
    return sorted(groups.values(), key=lambda group: (-group.count, group.source, group.kind))


def kind_of(sample: Sample, reward: Reward | None) -> str:
    """What is wrong with a low answer, by its text; the reward's own rule extracts the answer."""
    if not math.isfinite(sample.value):
        return "no score"
    if not sample.response.strip():
        return "empty"
    answer = reward.extract_answer(sample.response) if reward else sample.response.strip()
    if not answer:
        return "no answer found"
    truth = sample.ground_truth.strip()
    right = {truth} | ({reward.extract_answer(reward.format_response(truth))} if reward and truth else set())
    return "expected answer, low score" if answer in right else "wrong answer"


def reward_of(settings: Mapping[str, Any]) -> Reward | None:
    """The reward that spec.yaml names, if all its classes are of this project, as a copied folder must not run code
    here; else None, also where it cannot be built."""
    node = settings.get("reward")
    if not isinstance(node, dict):
        return None
    ours = (isinstance(name, str) and name.startswith(_OURS) and not name.startswith(_CODE) for name in _targets(node))
    try:
        return from_node(_RewardHolder, {"reward": node}).reward if all(ours) else None
    except (ValidationError, ValueError, ImportError):
        return None


def _targets(node: object) -> list[object]:
    """Every `_target_` in a node, also of nodes within it."""
    if isinstance(node, list):
        return [target for child in node for target in _targets(child)]
    if not isinstance(node, dict):
        return []
    target_here = [node[TARGET]] if TARGET in node else []
    return [*target_here, *(target for child in node.values() for target in _targets(child))]
