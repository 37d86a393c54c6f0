"""Expressions compared by math-verify."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

PARSED = 4096  # cached expressions: each answer to a prompt comes with the same truth


def load(_: dict[str, Any]) -> Callable[[list[str]], bool]:
    """A function that tells whether two expressions are equal; without time limit, which the pool has."""
    logging.disable()
    forms = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    @lru_cache(PARSED)
    def parsed(text: str) -> Any:
        return parse(text, extraction_config=forms, parsing_timeout=None)

    return lambda request: bool(verify(parsed(request[0]), parsed(request[1]), timeout_seconds=None))
