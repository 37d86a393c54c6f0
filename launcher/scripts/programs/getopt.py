"""getopt of util-linux, which scripts use with `eval set --`."""

from __future__ import annotations

from launcher.scripts.programs.streams import UnknownOutput
from launcher.scripts.words.parameters import shell_quoted
from launcher.scripts.words.state import BashProcess


def getopt(shell: BashProcess, words: list[str]) -> int:
    """The arguments in order and quoted, as `eval set --` expects them."""
    short, long, left = "", [], list(words)
    while left and left[0] != "--" and left[0].startswith("-"):
        option = left.pop(0)
        name, equals, value = option.partition("=")
        if name[:2] in ("-o", "-l", "-n") and len(name) > 2 and not name.startswith("--"):
            name, value, equals = name[:2], option[2:], "="
        if name in ("-a", "--alternative", "-q", "--quiet"):
            continue
        if not equals:
            value = left.pop(0) if left else ""
        if name in ("-o", "--options"):
            short = value
        elif name in ("-l", "--long", "--longoptions"):
            long += value.split(",")
        elif name not in ("-n", "--name"):
            raise UnknownOutput
    if left[:1] != ["--"] or short.startswith(("+", "-")):
        raise UnknownOutput
    taken, others = _sorted_options(left[1:], short, long)
    shell.write(" " + " ".join([*taken, "--", *map(shell_quoted, others)]) + "\n")
    return 0


def _sorted_options(left: list[str], short: str, long: list[str]) -> tuple[list[str], list[str]]:
    """Options with quoted values, and what is none."""
    taken: list[str] = []
    others: list[str] = []
    while left:
        word = left.pop(0)
        if word == "--":
            return taken, others + left
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            kinds = [kind for kind in long if kind.rstrip(":") == name] or [
                kind for kind in long if kind.startswith(name)
            ]
            if len(kinds) != 1:
                raise UnknownOutput
            taken.append("--" + kinds[0].rstrip(":"))
            if kinds[0].endswith(":"):
                if not equals and not kinds[0].endswith("::"):
                    value = _value(left)
                taken.append(shell_quoted(value))
        elif word.startswith("-") and len(word) > 1:
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                place = short.find(letter)
                if place < 0 or letter == ":":
                    raise UnknownOutput
                taken.append("-" + letter)
                if short[place + 1 : place + 2] == ":":
                    if not letters and short[place + 2 : place + 3] != ":":
                        letters = _value(left)
                    taken.append(shell_quoted(letters))
                    letters = ""
        else:
            others.append(word)
    return taken, others


def _value(left: list[str]) -> str:
    if not left:
        raise UnknownOutput
    return left.pop(0)
