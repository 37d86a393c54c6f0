"""The troubleshooting page explains every code that a problem may have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from launcher.core.problems import Code

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_every_code_has_a_section_and_no_other_has() -> None:
    assert sorted(re.findall(r"^### (\S+)$", PAGE, re.MULTILINE)) == sorted(get_args(Code))


def test_every_section_has_an_example_and_what_to_do() -> None:
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        assert "\n✗ " in section and "\nWhat to do: " in section, section.splitlines()[0]
