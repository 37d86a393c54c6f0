"""Aliases of a launch script, which bash has under `shopt -s expand_aliases` alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tree_sitter import Node

from launcher.scripts.programs.builtins import BUILTINS, shell_option
from launcher.scripts.source import ScriptSource
from launcher.scripts.words.lexer import UnreadableText
from launcher.scripts.words.state import BashProcess


def run_alias(shell: BashProcess, name: str, words: list[str]) -> int:
    """A command whose first word is an alias, which its own text does not name again."""
    if shell.aliases[name][-1:] in (" ", "\t"):
        raise UnreadableText(f"alias {name}: its text ends in a blank, so that the next word may be an alias too")
    text = shell.aliases.pop(name)
    try:
        place = words.index(name)
        line = " ".join([*words[:place], text, *words[place + 1 :]])
        return shell.run_text(shell, line, shell.file, shell.line)
    finally:
        shell.aliases.setdefault(name, text)


def alias_changes(shell: BashProcess, names: Iterable[str]) -> None:
    """Raises UnreadableText where a function that is defined names one: bash reads its aliases as it is defined."""
    if "expand_aliases" not in shell.options or not shell.functions:
        return
    changed = set(names)
    for name, (inner, body, _) in shell.functions.items():
        text = inner.text_of(body) if isinstance(inner, ScriptSource) and isinstance(body, Node) else ""
        shell.reading.step(1 + len(text) // 500)
        used = changed.intersection(re.split(r"[\s;&|(){}`]+", text))
        if used:
            for one in used:
                shell.aliases.pop(one, None)
            raise UnreadableText(f"alias {min(used)} changes after function {name} is defined, which names it")


def alias(shell: BashProcess, words: list[str]) -> int:
    """`alias name=text`; a script has them only under `shopt -s expand_aliases`."""
    alias_changes(shell, (word.partition("=")[0] for word in words if "=" in word))
    shell.aliases.update((word.partition("=")[0], word.partition("=")[2]) for word in words if "=" in word)
    return 0


def unalias(shell: BashProcess, words: list[str]) -> int:
    names = [*shell.aliases] if "-a" in words else words
    alias_changes(shell, names)
    for name in names:
        shell.aliases.pop(name, None)
    return 0


def option(shell: BashProcess, words: list[str]) -> int:
    """`shopt`; its option expand_aliases turns aliases on and off."""
    status = shell_option(shell, words)
    if "expand_aliases" in words:
        alias_changes(shell, shell.aliases)
    return status


BUILTINS.update(alias=alias, unalias=unalias, shopt=option)
