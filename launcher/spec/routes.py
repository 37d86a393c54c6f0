"""Which rule scores the rows of a data source: verl's table, and short names.

Data preparation writes source names of this table; a run with a source that is in no table is refused before it starts.
"""

from __future__ import annotations

from collections.abc import Mapping

ROUTES: Mapping[str, str] = {
    "openai/gsm8k": "gsm8k",
    "gsm8k": "gsm8k",
    "lighteval/MATH": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "HuggingFaceH4/MATH-500": "math",
    "EleutherAI/hendrycks_math": "math",
    "math": "math",
    "math_dapo": "math",
    "math_dapo_reasoning": "math",
    "numina_aops_forum": "math",
    "numina_synthetic_math": "math",
    "numina_amc_aime": "math",
    "numina_synthetic_amc": "math",
    "numina_cn_k12": "math",
    "numina_olympiads": "math",
    "codecontests": "code",
    "apps": "code",
    "codeforces": "code",
    "taco": "code",
    "reverse": "exact",
}
"""data_source -> choice of the group reward. The case of letters does not count."""
BEGINNINGS: Mapping[str, str] = {"aime": "math"}
"""Prefixes of source names -> choice of the group reward."""

_FOLDED = {source.casefold(): rule for source, rule in ROUTES.items()}


def route(data_source: str, more: Mapping[str, str] | None = None) -> str | None:
    """The rule for a data source, `more` before the table; None for an unknown source."""
    if more and data_source in more:
        return more[data_source]
    folded = data_source.casefold()
    begins = (rule for beginning, rule in BEGINNINGS.items() if folded.startswith(beginning))
    return _FOLDED.get(folded) or next(begins, None)
