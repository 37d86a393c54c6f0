"""The troubleshooting page explains every code that a problem may have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from launcher.core.problems import Code

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_every_code_has_a_row_with_an_example_and_what_to_do() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| `✗ [^`]+` \| (.+) \|$", PAGE, re.MULTILINE))
    assert sorted(rows) == sorted(get_args(Code)) and all(rows.values())
