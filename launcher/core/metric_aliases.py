"""What other projects call our metrics: verl (also its old names), TRL, OpenRLHF, NeMo-RL, prime-rl, ms-swift, slime,
SkyRL, DeepSpeed-Chat and guides. The names themselves stand in the rows of the catalogue (`core/metrics.py`).

Names are compared without case, and blanks count as underscores. A spelling stands for one metric. Where a log has
several spellings of a metric on one line, the first in `spellings` counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

from launcher.core.metrics import catalogue

_PATTERNS = tuple(
    (re.compile(pattern), template)
    for pattern, template in (
        (r"timing/(.+)", r"timing_s/\1"),
        (r"(?:val/)?test_score/(.+)", r"val-core/\1/reward/mean@1"),
        (r"val-core/(.+)/(?:acc|score)/mean@([0-9]{1,9})", r"val-core/\1/reward/mean@\2"),
        (r"val[/-]core/reward/mean@([0-9]{1,9})", r"val-core/all/reward/mean@\1"),
        (r"eval/(.{1,200})/avg@([0-9]{1,9})", r"val-core/\1/reward/mean@\2"),
    )
)
_PREFIXES = ("train", "policy", "generate", "ppo_actor", "grpo_actor", "metrics", "optim")
"""Prefixes that trackers and trainers put before any name: `train/reward` is `reward`."""
_OTHER = re.compile(
    r"(?:^|[/_-])(?:eval|val|valid|validation|evaluation|test|critic|value|vf|ref|reference|rewards|reward_model|"
    r"teacher|length)[/_-]"
)
"""In the prefix of a name: what it names is not of the policy's training, or of lengths."""


@cache
def _name_of_alias() -> Mapping[str, str]:
    """Our name of the metric, by each of its spellings."""
    rows = {name: entry.aliases for name, entry in catalogue().items() if entry.aliases}
    return {alias: name for name, aliases in rows.items() for alias in (name, *aliases)}


def _normalize(name: str) -> str:
    return name.casefold().replace(" / ", "/").replace(" ", "_")


@lru_cache(maxsize=2**14)
def canonical(name: str) -> str:
    """Our name of a metric; `name` itself where it is unknown.

    `val/test_score/openai/gsm8k` is `val-core/openai/gsm8k/reward/mean@1`, `timing/gen` is `timing_s/gen`.
    """
    if found := _name_of_alias().get(name) or _name_of_alias().get(_normalize(name)):
        return found
    prefix, _, rest = name.partition("/")
    if prefix in _PREFIXES and name not in catalogue() and (our_name := canonical(rest)) in catalogue():
        return our_name
    for pattern, template in _PATTERNS:
        if match := pattern.fullmatch(name):
            return match.expand(template)
    if name in catalogue():
        return name
    plain = re.sub("_(?:step|epoch)$", "", name)  # as Lightning ends names
    if plain != name and (our_name := canonical(plain)) in catalogue():
        return our_name
    while rest:  # behind any prefix a name of several words is known
        found = _name_of_alias().get(_normalize(rest)) if re.search("[_/]", rest) else None
        if found and not _OTHER.search(name[: -len(rest)]):
            return found
        rest = rest.partition("/")[2]
    return name


def spellings(canonical: str) -> tuple[str, ...]:
    """All names of the metric that we call `canonical`, that one first; patterns are left out."""
    entry = catalogue().get(canonical)
    return canonical, *(entry.aliases if entry else ())


def by_our_names(metrics: Iterable[str]) -> dict[str, str]:
    """The spelling that counts of each metric of a step, by our name: of several spellings, the first in
    `spellings`."""
    chosen = dict[str, str]()
    for name in metrics:
        our_name = canonical(name)
        if our_name not in chosen or _rank(our_name, name) < _rank(our_name, chosen[our_name]):
            chosen[our_name] = name
    return chosen


def _rank(our_name: str, name: str) -> int:
    names = spellings(our_name)
    return names.index(name) if name in names else len(names)


def known(name: str) -> bool:
    """Whether some project is known to have a metric of this name."""
    return name in _name_of_alias() or _normalize(name) in _name_of_alias() or canonical(name) != name
