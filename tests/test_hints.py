"""Commands, options and settings that messages name exist: what a person is told to type can be typed.

README.md and docs/ have tests of their own; this reads the texts in the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.main import COMMANDS, load
from launcher.config.compose import choices
from launcher.config.descriptions import fields_of
from launcher.config.known import holders
from launcher.config.resolve import try_resolve
from launcher.spec.run import RunSpec

ROOT = Path(__file__).parents[1] / "launcher"
CHOICES = choices()
HOLDERS = holders(CHOICES)
VALUE = "VALUE"
"""What stands for a value that is filled in when a message is made."""
PROSE = {"else", "uses", "was", "words", "has", "nor", "for", "there"}
"""Words after the program's name where a sentence goes on."""


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file with their lines, but for docstrings; values of f-strings are VALUE."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(statement.value)
        for node in ast.walk(tree)
        for statement in (node.body if isinstance(getattr(node, "body", None), list) else [])
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(value) for value in node.values}
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else VALUE for v in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def in_verls_words(path: Path) -> Iterator[int]:
    """The lines of the values of `{"verl": ..., "verl-sft": ...}`, which have a text for each program."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and str(key.value).startswith("verl"):
                    yield value.lineno


VERLS = {f"{path.relative_to(ROOT)}:{line}" for path in ROOT.rglob("*.py") for line in in_verls_words(path)}
"""Places of verl's own settings, which tests/engines/verl and tests/health look up."""
TEXTS = [
    (f"{path.relative_to(ROOT)}:{line}", text) for path in sorted(ROOT.rglob("*.py")) for line, text in messages(path)
]
NAMED = [(where, found) for where, text in TEXTS for found in re.findall(r"\brlrun ([a-z][^;(\n]*)", text)]
TYPED = [
    (where, found[0])
    for where, text in TEXTS
    if not where.startswith("engines/verl/") and where not in VERLS
    for found in re.findall(
        rf"\b((?:{'|'.join(fields_of(RunSpec))})(\.\w+)*=(?:\{{[^}}]*\}}|\[[^]]*\]|[\w./-]*\w))", text
    )
]


@cache
def command(name: str) -> Any:
    return load(next(entry for entry in COMMANDS if entry.name == name))


@pytest.mark.parametrize(("where", "typed"), NAMED, ids=[f"{where} {typed[:40]}" for where, typed in NAMED])
def test_a_command_that_is_named_exists_with_its_options(where: str, typed: str) -> None:
    name, *words = re.split(r"[\s,;().]+", typed)
    if name in PROSE:
        return
    assert name in {entry.name for entry in COMMANDS}, where
    found = command(name)
    if hasattr(found, "commands") and words:
        inner = re.match(r"\w*", words[0])[0]  # type: ignore[index]
        assert inner in {*found.commands, "command", ""}, where
        found = found.commands.get(inner, found)
    options = {option for param in found.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
    assert {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)} <= options, where


@pytest.mark.parametrize(("where", "typed"), TYPED, ids=[f"{where} {typed}" for where, typed in TYPED])
def test_a_setting_that_is_named_exists(where: str, typed: str) -> None:
    name, _, value = typed.partition("=")
    if VALUE in name:
        return  # a part of a name that is filled in
    if "." in name:
        parts = name.split(".")  # a setting may be a mapping, or a mapping of mappings
        assert {".".join(parts[:number]) for number in range(2, len(parts) + 1)} & HOLDERS.keys(), where
    elif value not in (VALUE, "NAME") and name in CHOICES and not re.search(r"/|\.jsonl$", value):
        assert value in CHOICES[name], where


@pytest.mark.parametrize("typed", sorted({typed for _, typed in TYPED if not re.search(r"=[A-Z_]+$|VALUE", typed)}))
def test_a_value_that_is_named_can_be_given(typed: str) -> None:
    """With some choice of its group that has the setting. What other settings it needs stands beside it."""
    name, _, _ = typed.partition("=")
    group = name.partition(".")[0]

    def is_refused(more: dict[str, str]) -> bool:
        chosen = {"algorithm": "grpo", "model": "tiny", "data": "reverse"} | more
        found = try_resolve([*(f"{of}={choice}" for of, choice in chosen.items() if of != name), typed]).problems
        return any(problem.where == name and not problem.about for problem in found)

    assert not all(map(is_refused, [{group: choice} for choice in HOLDERS.get(name, [])] or [{}]))


def test_there_are_such_texts() -> None:
    assert len(NAMED) > 30
    assert len(TYPED) > 50
