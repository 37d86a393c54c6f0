"""Matches a regular expression of the user's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def load(settings: dict[str, Any]) -> Callable[[str], bool]:
    """A function that tells whether a whole text matches; the pool kills one that backtracks for too long."""
    pattern = re.compile(settings["pattern"], re.DOTALL)
    return lambda text: pattern.fullmatch(text) is not None
