"""Assignments: `name=value`, `name+=value`, `name[key]=value`, `name=( ... )`."""

from __future__ import annotations

import re

from launcher.scripts.words.arithmetic import BadArithmetic, evaluate
from launcher.scripts.words.expand import element_key, expand_fields, expand_text
from launcher.scripts.words.lexer import ArrayWord, UnreadableText, subscript_end
from launcher.scripts.words.patterns import Undecided
from launcher.scripts.words.state import FIELDS, BashProcess, Kind, StopReading, is_open


def assign(shell: BashProcess, text: str) -> None:
    """`name=value`, `name+=value`, `name[key]=value`."""
    name, subscript, append, value_text = split_assignment(text)
    value = expand_text(shell, value_text)
    assign_value(shell, name, value, subscript, append=append)


def assign_value(shell: BashProcess, name: str, value: str, subscript: str | None, *, append: bool = False) -> None:
    """Sets a variable or an element; arithmetic for what is declared an integer."""
    variable = shell.variable(name)
    try:
        key = None if subscript is None else element_key(shell, name, subscript)
    except Undecided as error:
        raise UnreadableText(f"{name}[{subscript}]: its place is known only when the script runs") from error
    if variable is not None and variable.integer:
        try:
            number = evaluate(shell, f"({variable.values.get(key or 0, '0')})+({value})" if append else value)
        except BadArithmetic as error:
            raise UnreadableText(f"{name}: {error}") from error
        if number is not None:
            value = str(number)
        elif append or not (len(value) == 1 and is_open(value)):
            text = f"{name}{'+' * append}={value}"
            value = shell.open_value(text, "{" + text + "}", single=True)
        append = False
    shell.set(name, value, key=key, append=append)


def split_assignment(text: str) -> tuple[str, str | None, bool, str]:
    """Name, subscript, whether it appends, and the text of the value."""
    found = re.match(r"[A-Za-z_]\w*", text)
    assert found
    at, subscript = found.end(), None
    if text.startswith("[", at):
        end = subscript_end(text, at)
        subscript, at = text[at + 1 : end - 1], end
    append = text.startswith("+", at)
    return found[0], subscript, append, text[at + append + 1 :]


def assign_array(shell: BashProcess, word: ArrayWord) -> None:
    """`name=( ... )`."""
    variable = shell.declare(word.name, local=False)
    if variable.readonly:
        raise UnreadableText(f"{word.name} is readonly")
    kind: Kind = "associative" if variable.kind == "associative" else "indexed"
    values: dict[int | str, str] = dict(variable.values) if word.append else {}
    place = max((key for key in values if isinstance(key, int)), default=-1) + 1
    pairs: list[str] = []
    for element in word.elements:
        end = subscript_end(element.text, 0) if element.text.startswith("[") else 0
        if end:
            key = element_key(shell, word.name, element.text[1 : end - 1])
            append = element.text.startswith("+", end)
            value = expand_text(shell, element.text[end + append + 1 :])
            values[key] = values.get(key, "") + value if append else value
            place = key + 1 if isinstance(key, int) else place
        elif kind == "associative":
            pairs.append(expand_text(shell, element.text))
        else:
            for field in expand_fields(shell, element.text, listed=True):
                values[place] = field
                place += 1
        shell.reading.step()
        if len(values) > FIELDS:
            raise StopReading(f"{word.name} has too many elements")
    values.update(zip(pairs[::2], [*pairs[1::2], ""], strict=False))
    variable.kind, variable.values = kind, values
