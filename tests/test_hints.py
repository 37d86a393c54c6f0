"""Commands, options and settings that messages name exist: what a person is told to type can be typed.

README.md and docs/ have tests of their own; this reads the texts in the source.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cli.main import COMMANDS, load
from launcher.config.compose import choices
from launcher.config.descriptions import fields_of
from launcher.config.nodes import holders
from launcher.config.resolve import try_resolve
from launcher.spec.run import RunSpec

pytestmark = pytest.mark.usefixtures("without_gc")
ROOT = Path(__file__).parents[1] / "launcher"
CHOICES = choices()
HOLDERS = holders(CHOICES)
VALUE = "VALUE"
"""What stands for a value that is filled in when a message is made."""
PROSE = {"else", "uses", "was", "words", "has", "nor", "for", "there"}
"""Words after the program's name where a sentence goes on."""


def messages(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """The texts of a file with their lines, but for docstrings; values of f-strings are VALUE."""
    skipped = {
        id(statement.value)
        for node in nodes
        for statement in (node.body if isinstance(getattr(node, "body", None), list) else [])
        if isinstance(statement, ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(value) for value in node.values}
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else VALUE for v in node.values)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def in_verls_words(nodes: list[ast.AST]) -> Iterator[int]:
    """The lines of the values of `{"verl": ..., "verl-sft": ...}`, which have a text for each program; they are looked
    up by tests/engines/verl and tests/health."""
    for node in nodes:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and str(key.value).startswith("verl"):
                    yield value.lineno


Places = dict[str, list[str]]


@pytest.fixture(scope="module")
def texts() -> tuple[Places, Places]:
    """`rlrun ...` and `group.setting=value` as messages have them, with where each stands. Not while tests are
    collected, which each process of pytest does."""
    named, typed = defaultdict(list), defaultdict(list)
    setting = re.compile(rf"\b((?:{'|'.join(fields_of(RunSpec))})(?:\.\w+)*=(?:\{{[^}}]*\}}|\[[^]]*\]|[\w./-]*\w))")
    for path in sorted(ROOT.rglob("*.py")):
        nodes, place = [*ast.walk(ast.parse(path.read_text()))], path.relative_to(ROOT).as_posix()
        verls = {*in_verls_words(nodes)}
        for line, text in messages(nodes):
            for found in re.findall(r"\brlrun ([a-z][^;(\n]*)", text):
                named[found].append(f"{place}:{line}")
            if not place.startswith("engines/verl/") and line not in verls:
                for found in setting.findall(text):
                    typed[found].append(f"{place}:{line}")
    assert len(named) > 30 and len(typed) > 50
    return named, typed


def test_commands_that_are_named_exist_with_their_options(texts: tuple[Places, Places]) -> None:
    assert {text: where for text, where in texts[0].items() if not _can_be_typed(text)} == {}


def _can_be_typed(text: str) -> bool:
    name, *words = re.split(r"[\s,;().]+", text)
    if name in PROSE:
        return True
    if name not in {entry.name for entry in COMMANDS}:
        return False
    command = load(next(entry for entry in COMMANDS if entry.name == name))
    if hasattr(command, "commands") and words:
        inner = re.match(r"\w*", words[0])[0]  # type: ignore[index]
        if inner not in {*command.commands, "command", ""}:
            return False
        command = command.commands.get(inner, command)
    options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
    return {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)} <= options


def test_settings_that_are_named_exist(texts: tuple[Places, Places]) -> None:
    assert {text: where for text, where in texts[1].items() if not _is_there(text)} == {}


def _is_there(text: str) -> bool:
    name, _, value = text.partition("=")
    if VALUE in name:
        return True  # a part of a name that is filled in
    if "." in name:
        parts = name.split(".")  # a setting may be a mapping, or a mapping of mappings
        return bool({".".join(parts[:number]) for number in range(2, len(parts) + 1)} & HOLDERS.keys())
    free = value in (VALUE, "NAME") or name not in CHOICES or re.search(r"/|\.jsonl$", value)
    return bool(free) or value in CHOICES[name]


def test_values_that_are_named_can_be_given(texts: tuple[Places, Places]) -> None:
    """With some choice of its group that has the setting. What other settings it needs stands beside it."""
    given = [text for text in texts[1] if not re.search(r"=[A-Z_]+$|VALUE", text)]
    assert [text for text in given if not _can_be_given(text)] == []


def _can_be_given(text: str) -> bool:
    name, _, _ = text.partition("=")
    group = name.partition(".")[0]

    def is_refused(more: dict[str, str]) -> bool:
        chosen = {"algorithm": "grpo", "model": "tiny", "data": "reverse"} | more
        found = try_resolve([*(f"{of}={choice}" for of, choice in chosen.items() if of != name), text]).problems
        return any(problem.where == name and not problem.about for problem in found)

    return not all(map(is_refused, [{group: choice} for choice in HOLDERS.get(name, [])] or [{}]))
