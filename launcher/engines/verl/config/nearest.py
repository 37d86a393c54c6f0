"""The key of verl's that an unknown one was probably meant to be."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher, get_close_matches
from itertools import takewhile

from launcher.core.problems import nearest, without_style

OTHER_MODELS = ("critic", "distillation", "reward.reward_model", "actor_rollout_ref.ref")
"""Sections of models with the same settings as the policy."""
VAGUE = frozenset([
    "type", "enable", "enabled", "name", "path", "url", "mode", "level", "steps", "source", "size", "topk", "tool",
    "key", "port", "backend", "action", "format", "file", "method", "merge", "options", "config", "seed", "dtype",
    "strategy", "max_concurrent", "project_name", "nnodes",
])  # fmt: skip
"""Last names that tell nothing without their section."""


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """The key that was probably meant; None where several are as probable."""
    if near := misspelt(key, known):
        return near
    section, _, last = key.rpartition(".")
    tops = {name.partition(".")[0] for name in known}
    if section and section.partition(".")[0] not in tops:
        return None
    names = {_last(name) for name in known} - VAGUE
    if last in VAGUE:
        return _within(key, known)
    alike = [last] if last in names else get_close_matches(last, sorted(names), n=1, cutoff=0.85)
    return _in_other_section(f"{section}.{alike[0]}".lstrip("."), known) if alike else None


def misspelt(key: str, known: Sequence[str]) -> str | None:
    """The key of the same section with a similar name, otherwise that with similar names of its sections."""
    section, _, last = key.rpartition(".")
    inside = [_last(name) for name in known if name.rpartition(".")[0] == section]
    begun = [name for name in inside if name.startswith(last) and len(last) > 1]
    if near := begun[0] if len(begun) == 1 else nearest(last, inside, cutoff=0.75):
        return f"{section}.{near}".lstrip(".")
    parts = key.split(".")
    alike = {name: found for name in known if (found := _likeness(parts, name.split(".")))}
    return max(alike, key=lambda name: alike[name], default=None)


def _likeness(some: Sequence[str], others: Sequence[str]) -> float:
    """How alike two keys are, part by part; 0 where any part is too different."""
    if len(some) != len(others):
        return 0.0
    ratios = list[float]()
    for one, other in zip(some, others, strict=True):
        ratios.append(1.0 if one == other else SequenceMatcher(None, without_style(one), without_style(other)).ratio())
        if ratios[-1] < 0.75:
            return 0.0
    return sum(ratios)


def _within(key: str, known: Sequence[str]) -> str | None:
    """The one key with the same last name in a section below its section, or above it."""
    section, last = key.rpartition(".")[0], _last(key)
    places = [(name.rpartition(".")[0], name) for name in known if section and _last(name) == last]
    below = [name for place, name in places if place.startswith(f"{section}.")]
    above = [name for place, name in places if place and section.startswith(f"{place}.")]
    return next((found[0] for found in (below, above) if len(found) == 1), None)


def _in_other_section(key: str, known: Sequence[str]) -> str | None:
    """The one key with the same last name in the nearest section; of the policy's, where other models have it, too."""
    same = [name for name in known if _last(name) == _last(key) and name != key]
    first = [name for name in same if not any(f"{name}.".startswith(f"{other}.") for other in OTHER_MODELS)]
    own = next((other for other in OTHER_MODELS if key.startswith(f"{other}.")), None)
    same = [name for name in same if name.startswith(f"{own}.")] or first or same if own else first or same
    shared = {name: _shared_parts(name, key) for name in same}
    best = [name for name in same if shared[name] == max(shared.values())]
    outer = [name for name in best if all(each.startswith(f"{name.rpartition('.')[0]}.") for each in best)]
    return outer[0] if len(outer) == 1 else None


def _shared_parts(one: str, other: str) -> int:
    """The number of sections, from the outermost on, that two keys are both in."""
    pairs = zip(one.split(".")[:-1], other.split(".")[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _last(key: str) -> str:
    return key.rpartition(".")[2]
