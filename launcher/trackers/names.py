"""Names that guides for verl look for in TensorBoard, for metrics that have other names here and in verl."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping

from launcher.core.metrics import catalogue

GUIDE_DISTRIBUTIONS: Mapping[str, str] = {
    "critic/rewards": "train/core/reward/distribution",
    "actor/grad_norm": "train/core/grad_norm/distribution",
}
_HELD_OUT = re.compile(r"val-core/.+/reward/(mean@[0-9]+)")


def with_guide_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """`metrics`, and a copy of each that guides know by another name (`guide_name` in the catalogue); for held-out data
    also the mean over its sources, such as `val/core/reward/mean@1`."""
    rows = {name: entry.guide_name for name, entry in catalogue().items() if entry.guide_name}
    guide_values = {guide_name: metrics[name] for name, guide_name in rows.items() if name in metrics}
    means = defaultdict(list)
    for name, value in metrics.items():
        if match := _HELD_OUT.fullmatch(name):
            means[f"val/core/reward/{match[1]}"].append(value)
    return {**{name: math.fsum(values) / len(values) for name, values in means.items()}, **guide_values, **metrics}


def distribution_names(name: str) -> list[str]:
    """The names under which a distribution is shown: its own, and that of `GUIDE_DISTRIBUTIONS`."""
    bare = name.removesuffix("/distribution").removesuffix("/mean")
    return list(dict.fromkeys([name, *([GUIDE_DISTRIBUTIONS[bare]] if bare in GUIDE_DISTRIBUTIONS else [])]))
