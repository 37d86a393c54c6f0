"""Files of others are read within bounds, and what is beyond them costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from yaml import YAMLError

from launcher.core.bounded_parse import DEPTH, LimitExceeded, parse_json, parse_yaml

LEVELS = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
BOMB = f"a0: &a0 [{','.join('x' * 9)}]\n{LEVELS}"

BEYOND = [
    (BOMB, "stands for more than 20,000 values"),
    ("a: &a [*a]\n", "stands within itself"),
    ("x: " + "[" * 5000, "more than 64 deep"),
    ("".join(" " * depth + "a:\n" for depth in range(500)), "more than 64 deep"),  # without brackets
    ("x: " + "9" * 5000, "has 5,000 digits"),
    ("x: 0x" + "f" * 100_000, "digits"),  # which Python's own limit lets pass
    ("x: " + ":".join("1" * 5000), "digits"),  # YAML 1.1 counts in sixties
    ("x: !!int " + ":".join("1" * 5000), "digits"),
    ("x: !!float '" + ":".join("1" * 5000) + "'", "digits"),
    ('x: !!int " ' + ":".join("1" * 5000) + '"', "digits"),
    ("%TAG !e! tag:yaml.org,2002:\n---\n!e!int " + "1:" * 5000, "digits"),
    ("x: " + "y" * 2**20, "at most 1,048,576"),
    ("".join(f"k{n}: 1\n" for n in range(90_000)), "more than 20,000 values"),
]
WRONG = [
    *((parse_yaml, text, LimitExceeded, reason) for text, reason in BEYOND),
    *((parse_yaml, text, YAMLError, None) for text in ("a: [", "!!python/object/apply:os.system ['true']", "a\0b")),
    *((parse_json, text, ValueError, None) for text in ("[" * 100_000, '{"a":' * 100_000, "9" * 5000)),
]


@pytest.mark.parametrize(
    ("read", "text", "error", "reason"), WRONG, ids=[f"{text:.20} {why}" for _, text, _, why in WRONG]
)
def test_what_is_beyond_or_wrong_is_refused_at_once(
    read: Callable[[str], object], text: str, error: type[Exception], reason: str | None, within: Any
) -> None:
    with within(1.0), pytest.raises(error, match=reason):
        read(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: &a {x: 1}\nb: {<<: *a, y: 2}\n", {"a": {"x": 1}, "b": {"x": 1, "y": 2}}),  # merging is no bomb
        ("[" * DEPTH + "]" * DEPTH, None),
        (f'x: "{"9" * 5000}"', {"x": "9" * 5000}),  # a text, though of digits
        (f"x: !!str {'9' * 5000}", {"x": "9" * 5000}),
        ("a: &a 1\nb: [*a, *a]\n", {"a": 1, "b": [1, 1]}),
        (b"a: 1\n", {"a": 1}),
    ],
)
def test_what_is_within_is_read(text: str | bytes, value: object) -> None:
    assert value is None or parse_yaml(text) == value
