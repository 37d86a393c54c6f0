"""A regular expression of a user's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def load(settings: dict[str, Any]) -> Callable[[str], bool]:
    """Whether a text matches; an expression that backtracks for ever is ended outside."""
    pattern = re.compile(settings["pattern"], re.DOTALL)
    return lambda text: pattern.fullmatch(text) is not None
