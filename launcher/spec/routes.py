"""Which rule scores the rows of a data source: verl's table of sources, and short names.

Data preparation writes source names of this table; a run with a source that is in no table is refused before it starts.
"""

from __future__ import annotations

from collections.abc import Mapping

_SOURCES: Mapping[str, tuple[str, ...]] = {
    "gsm8k": ("openai/gsm8k", "gsm8k"),
    "math": (
        "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "EleutherAI/hendrycks_math",
        "math", "math_dapo", "math_dapo_reasoning", "numina_aops_forum", "numina_synthetic_math", "numina_amc_aime",
        "numina_synthetic_amc", "numina_cn_k12", "numina_olympiads",
    ),
    "code": ("codecontests", "apps", "codeforces", "taco"),
    "exact": ("reverse",),
}  # fmt: skip
ROUTES: Mapping[str, str] = {source: rule for rule, sources in _SOURCES.items() for source in sources}
"""data_source -> choice of the group reward; `route` ignores the case of letters."""
BEGINNINGS: Mapping[str, str] = {"aime": "math", "searchr1_": "search"}
"""Prefixes of source names -> choice of the group reward."""

_RULE_BY_SOURCE = {source.casefold(): rule for source, rule in ROUTES.items()}


def route(data_source: str, more: Mapping[str, str] | None = None) -> str | None:
    """The rule for a data source, looked up in `more` before the table; None for an unknown source."""
    if more and data_source in more:
        return more[data_source]
    folded = data_source.casefold()
    by_prefix = (rule for beginning, rule in BEGINNINGS.items() if folded.startswith(beginning))
    return _RULE_BY_SOURCE.get(folded) or next(by_prefix, None)
