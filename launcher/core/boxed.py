"""The answer in a text of mathematics: what its last box holds."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?=\s*\{)")


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{}` or `\fbox{}`; None without one, or if its brace is not closed."""
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    opening = text.index("{", starts[-1])
    end = _closing_brace(text, opening)
    return None if end is None else text[opening + 1 : end].strip()


def _closing_brace(text: str, opening: int) -> int | None:
    """Index of the brace that closes the one at `opening`; None if it is not closed."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text[opening:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0 and match[0] == "}":
            return opening + match.start()
    return None
