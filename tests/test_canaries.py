"""The short version of `make secrets`: what the plans, lists and one crash of training say and write."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def canaries() -> Any:
    return importlib.import_module("canaries")


@pytest.fixture(scope="module")
def seen(canaries: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What could be read afterwards, and how each command ended."""
    chosen = ("a plan with a server", "a plan with arguments", "wrong words", "a config of one's own", "their run",
              "their events", "a crash")  # fmt: skip
    folder = tmp_path_factory.mktemp("canaries")
    home, given = folder / "home", folder / "given"
    home.mkdir()
    found, ended = canaries.Seen(), {}
    with canaries.serving() as hub, canaries.plant(given, hub) as address:
        variables = canaries.environment(home, given, hub, ROOT)
        for command in canaries.commands(given, address):
            if command.name in chosen:
                ended[command.name] = canaries.run(command.name, command.words, home, variables, found), command.code
    found.texts |= canaries.files(home)
    return found, ended


def test_no_canary_is_found(canaries: Any, seen: Any) -> None:
    found, ended = seen
    assert len(canaries.CANARIES) == 29 and len(ended) == 7
    assert all(code == expected for code, expected in ended.values()), ended
    assert {canary.name: places for canary in canaries.CANARIES if (places := found.found(canary))} == {}


def test_what_was_said_is_there_without_them(seen: Any) -> None:
    """Redaction replaces the secret and keeps the rest of the line."""
    texts = seen[0].texts
    log = texts["runs/rlrun/three/logs/attempt_1/rank-0.log"].decode()
    for line in (
        "wandb: logging in with [secret]",
        "from C: [secret] no end of line",
        "key [secret]",
        "OSError: proxy http://[secret]@127.0.0.1:9 refused",
        "RuntimeError: signing with [secret] failed",
    ):
        assert line in log
    assert "signing with [secret] failed" in texts["runs/rlrun/three/events.jsonl"].decode()
    assert "401 for [secret]" in texts["output of their run"].decode()


def test_a_canary_would_be_found(canaries: Any) -> None:
    """In each spelling, and by its first half."""
    canary = canaries.CANARIES[0]
    for form in canaries.forms(canary.value):
        text = canaries.Seen({"a": b"x" + form + b"y"})
        assert text.found(canary) == ["a"]
    assert canaries.Seen({"a": b"nothing"}).found(canary) == []
