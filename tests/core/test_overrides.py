"""Values are written so that Hydra reads them back as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.core.overrides import argument, key_of, literal


@pytest.mark.parametrize(("value", "text"), [
    (None, "null"), (True, "true"), (False, "false"), (1, "1"), (1e-5, "1e-05"), ("a b", '"a b"'), (Path("a"), '"a"'),
    ('a"b', r'"a\"b"'), ("a\\", '"a\\\\"'), (r"a\b", r'"a\b"'), ({"a": [1, None]}, "{a:[1,null]}"), ((), "[]"),
])  # fmt: skip
def test_values(value: Any, text: str) -> None:
    assert literal(value) == text


@pytest.mark.parametrize(("value", "word"), [
    ("a/b:c@d%e+f-g.h_1", "k=a/b:c@d%e+f-g.h_1"), ("", "k="), ("a b", 'k="a b"'), ("é", 'k="é"'), ("a,b", 'k="a,b"'),
])  # fmt: skip
def test_arguments(value: str, word: str) -> None:
    assert argument("k", value) == word
    assert key_of(word) == key_of(f"++{word}") == key_of(f"~{word}") == "k"
