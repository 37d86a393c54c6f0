"""Values of variables, arrays and arguments, and how many there are.

An open value that splits into words may be any number of them. As an element it keeps a character of its own
(`Reading.list_character`): the elements from there on, and their count, are open."""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.scripts.words.fields import FieldList
from launcher.scripts.words.names import MACHINE
from launcher.scripts.words.parameters import OPTION_LETTERS, ParameterText, shell_quoted
from launcher.scripts.words.patterns import Undecided
from launcher.scripts.words.state import IS_OPEN, BashProcess, is_open


def separators_of(shell: BashProcess) -> str:
    """What $IFS splits at."""
    separators = shell.get("IFS")
    return " \t\n" if separators is None else separators


def field_list(shell: BashProcess, *, listed: bool = False) -> FieldList:
    """An empty list that splits at $IFS; with `listed`, an open value is any number of fields."""
    separators = separators_of(shell)
    return FieldList(separators, lambda text: as_list(shell, text, separators) if listed else text)


def as_list(shell: BashProcess, text: str, separators: str = " \t\n") -> str:
    """The text with its open parts as lists, where they may hold a separator."""
    if text.isascii():
        return text
    return IS_OPEN.sub(
        lambda found: shell.reading.list_character(found[0]) if may_split(shell, found[0], separators) else found[0],
        text,
    )


def may_split(shell: BashProcess, text: str, separators: str = " \t\n") -> bool:
    """Whether an open part of the text may hold a separator: not a number, nor what bash or a cluster sets."""
    white = not separators.strip(" \t\n")
    for part in IS_OPEN.findall(text):
        name = shell.reading.visible(part).strip("{}")
        if not (white and (part in shell.reading.single or shell.is_open_name(name))):
            return bool(separators)
    return False


def list_place(shell: BashProcess, values: Sequence[str]) -> int:
    """The number of the first value that may be any number of values; the number of all where there is none."""
    if not shell.reading.lists:
        return len(values)
    return next((at for at, value in enumerate(values) if shell.reading.is_list(value)), len(values))


def keys(shell: BashProcess, name: str) -> list[int | str]:
    """Keys of an array, in bash's order."""
    variable = shell.variable(name)
    if variable is None:
        return []
    if variable.kind == "associative":
        newest_first = list(variable.values)[::-1]
        return sorted(newest_first, key=lambda key: bucket(str(key)))
    return sorted(variable.values)


def bucket(key: str) -> int:
    """Where bash 5 keeps a key of `declare -A`: FNV-1 of its bytes, of 1,024 places; a newer key stands before."""
    found = 2166136261
    for byte in key.encode("utf-8", "replace"):
        found = ((found * 16777619) ^ (byte if byte < 128 else byte | 0xFFFFFF00)) & 0xFFFFFFFF
    return found & 1023


def shown_keys(shell: BashProcess, name: str) -> list[str]:
    """`${!name[@]}`."""
    found = [str(key) for key in keys(shell, name)]
    place = list_place(shell, elements(shell, name))
    if place == len(found):
        return found
    return [*found[:place], open_list(shell, f"!{name}[@]")]


def key_value_words(shell: BashProcess, name: str, *, joined: bool) -> list[str]:
    """`${name[@]@k}`: keys and values in turn; `joined` (`@K`): all in one word. Raises Undecided."""
    found, values = keys(shell, name), elements(shell, name)
    if any(is_open(value) for value in values):
        raise Undecided("an open value")
    if not joined:
        return [str(part) for pair in zip(found, values, strict=True) for part in pair]
    if not all(text.isascii() and text.isprintable() and not re.search(r"[^\w.-]", str(key))
               for key, text in zip(found, values, strict=True)):  # fmt: skip
        raise Undecided("an unusual character")
    quoted = [re.sub(r'([$`"\\])', r"\\\1", value) for value in values]
    text = " ".join(f'{key} "{value}"' for key, value in zip(found, quoted, strict=True))
    variable = shell.variable(name)
    ends = " " if variable is not None and variable.kind == "associative" and text else ""  # as bash 5.2 writes it
    return [text + ends] if text else []


def declared_text(shell: BashProcess, name: str, value: str | None = None) -> str:
    """`${name@A}`, what declares the variable again; without `value`, `${name[@]@A}`. Raises Undecided."""
    variable, name = shell.variable(name), shell.target(name)
    if variable is None:
        raise Undecided("a parameter that is no variable")
    values = elements(shell, name) if value is None else [value]
    if not all(text.isascii() and text.isprintable() for text in values):
        raise Undecided("an open value, or an unusual character")
    flags = {"associative": "A", "indexed": "a"}.get(variable.kind, "")
    flags += "i" * variable.integer + "r" * variable.readonly + "x" * variable.exported
    flags += variable.case[:1]
    begin = f"declare -{flags} " if flags else ""
    if value is not None or variable.kind == "scalar":
        return f"{begin}{name}={shell_quoted(values[0])}" if values else ""
    if variable.kind == "associative":
        raise Undecided("an order of its own")
    quoted = (re.sub(r'([$`"\\])', r"\\\1", text) for text in values)
    return (
        f"{begin}{name}=("
        + " ".join(f'[{key}]="{text}"' for key, text in zip(keys(shell, name), quoted, strict=True))
        + ")"
    )


def open_list(shell: BashProcess, inner: str) -> str:
    """The character of any number of values that `${inner}` gives."""
    return shell.reading.list_character(shell.open_value(f"${{{inner}}}", "{" + inner + "}"))


def elements(shell: BashProcess, name: str) -> list[str]:
    """All values: of the arguments, or of an array."""
    if name in ("@", "*"):
        return list(shell.arguments)
    if name == "BASH_SOURCE":
        return [shell.file]
    if name == "FUNCNAME":
        return list(reversed(shell.calls))
    if name == "PIPESTATUS":
        return [str(status) for status in shell.pipe_status]
    variable = shell.variable(name)
    return [] if variable is None else [variable.values[key] for key in keys(shell, name)]


def count(shell: BashProcess, inner: str, values: list[str]) -> str:
    """How many values there are."""
    if list_place(shell, values) < len(values):
        return shell.open_value(f"${{{inner}}}", "{" + inner + "}", single=True)
    return str(len(values))


def sliced(shell: BashProcess, asked: ParameterText, values: list[str], numbers: list[int]) -> list[str]:
    """`${array[@]:offset:length}`; of the arguments, number 0 is the script."""
    if asked.name in "@*":
        values = [shell.name, *values]
        places = list(range(len(values)))
    else:
        variable = shell.variable(asked.name)
        indexed = variable is not None and variable.kind != "associative"
        places = sorted(key for key in variable.values if isinstance(key, int)) if variable and indexed else []
        places = places or list(range(1, len(values) + 1))  # of declare -A: counted from 1
    first = list_place(shell, values)
    if first < len(values):
        end = numbers[0] + numbers[1] if len(numbers) == 2 and min(numbers) >= 0 else None
        known = [value for place, value in zip(places[:first], values, strict=False) if place >= numbers[0] >= 0]
        if end is not None and end <= places[first]:
            return known[: numbers[1]]
        subscript = "" if asked.subscript is None else f"[{asked.subscript}]"
        return [*known, open_list(shell, f"{asked.name}{subscript}:{asked.argument}")]
    begin = numbers[0] if numbers[0] >= 0 else (places[-1] + 1 if places else 0) + numbers[0]
    if begin < 0 or not places:
        return []
    chosen = [value for place, value in zip(places, values, strict=True) if place >= begin]
    return chosen if len(numbers) == 1 else chosen[: max(numbers[1], 0)]


def element(shell: BashProcess, name: str, key: int | str) -> str | None:
    """One element of an array; None where it is not set."""
    if name in ("BASH_SOURCE", "FUNCNAME", "PIPESTATUS"):
        found = elements(shell, name)
        return found[key] if isinstance(key, int) and key < len(found) else None
    variable = shell.variable(name)
    shown = f"{name}[{key}]"
    if variable is None:  # BASH_VERSINFO, GROUPS
        return shell.open_value(f"${{{shown}}}", "{" + shown + "}") if name in MACHINE else None
    places = keys(shell, name)
    first = list_place(shell, [variable.values[place] for place in places]) if shell.reading.lists else len(places)
    if first < len(places) and isinstance(key, int) and key >= places[first]:  # type: ignore[operator]
        return shell.open_value(f"${{{shown}}}", "{" + shown + "}")
    return variable.values.get(key)


def argument(shell: BashProcess, number: int) -> str | None:
    """`$1`, `$2`, ...; `$0` is the script."""
    if number == 0:
        return shell.name
    if list_place(shell, shell.arguments[:number]) < min(number, len(shell.arguments)):
        return shell.open_value(f"${number}", f"{{${number}}}")
    return shell.arguments[number - 1] if number <= len(shell.arguments) else None


def named_value(shell: BashProcess, name: str, *, plain: bool) -> str | None:
    """The value of a variable or parameter; None where it is not set.

    What only a cluster sets counts as not set where a default is given (`plain` is False)."""
    if name.isdigit():
        return argument(shell, int(name[:9]))
    if name == "#":
        return count(shell, "#", shell.arguments)
    special = {"?": str(shell.status), "LINENO": str(shell.line)}
    if name in special:
        return special[name]
    value = shell.get(name)
    if value is not None:
        return element(shell, name, 0) if shell.reading.is_list(value) else value
    if name == "PWD":
        return shell.folder
    if name in ("BASH_SOURCE", "FUNCNAME", "PIPESTATUS"):
        return next(iter(elements(shell, name)), None)
    if name == "-":
        letters = {letter for letter, option in OPTION_LETTERS.items() if option in shell.options}
        return "".join(letter for letter in "abefhkmnptuvxBCEHPT" if letter in letters or letter in "hB")
    if name in "$!":
        return shell.open_value("$" + name, "{$" + name + "}", single=True)
    if shell.inside_default and "nounset" in shell.options:
        plain = False
    if shell.variable(name) is None and shell.is_open_name(name) and (plain or not shell.is_cluster_name(name)):
        return shell.open_value("$" + name, "{" + name + "}")
    return None
