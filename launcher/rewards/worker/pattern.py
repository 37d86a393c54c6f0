"""Whether a text has the form that a regular expression asks for; one that backtracks for ever is ended outside."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any


def load(settings: Mapping[str, Any]) -> Callable[[str], bool]:
    pattern = re.compile(settings["pattern"], re.DOTALL)
    return lambda text: pattern.fullmatch(text) is not None
