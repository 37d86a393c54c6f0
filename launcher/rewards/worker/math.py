"""Whether two expressions are equal, as math-verify sees it. Its time limits need a main thread; ours is outside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

HELD = 4096  # expressions that are understood once: the truth of a prompt comes with each of its answers


def load(settings: Mapping[str, Any]) -> Callable[[list[str]], bool]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify  # noqa: PLC0415  a second

    logging.disable()
    found_in = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    @lru_cache(HELD)
    def understood(text: str) -> Any:
        return parse(text, extraction_config=found_in, parsing_timeout=None)

    def equal(request: list[str]) -> bool:
        truth, given = request
        return bool(verify(understood(truth), understood(given), timeout_seconds=None))

    return equal
