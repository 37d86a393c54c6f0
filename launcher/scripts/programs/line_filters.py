"""Programs that order and join lines: sort, uniq, rev, tac, paste, and xargs as echo. Exact, or UnknownOutput."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain

from launcher.scripts.programs.streams import UnknownOutput, closed, input_text
from launcher.scripts.words.lexer import ansi_text
from launcher.scripts.words.state import BashProcess

XARGS_ECHO: tuple[list[str], ...] = ([], ["-d", "\\n"], ["-d\\n"])
"""Arguments of `xargs` with which it starts no program but echo."""
VERSION = re.compile(r"(?:0|[1-9]\d{0,9})(?:\.(?:0|[1-9]\d{0,9}))*")
"""A version that `sort -V` orders by its numbers alone."""


def _lines(shell: BashProcess, files: list[str]) -> list[str]:
    if any(file.startswith("-") and file != "-" for file in files):
        raise UnknownOutput
    text = input_text(shell, files)
    closed(text)
    if text and not text.endswith("\n"):
        raise UnknownOutput
    return text.splitlines()


def _write(shell: BashProcess, lines: list[str]) -> None:
    shell.write("".join(f"{line}\n" for line in lines))


def sort(shell: BashProcess, words: list[str]) -> int:
    """-n, -r, -u, -V of plain versions. What the order of the machine's language could change is unknown."""
    flags = ""
    while words and re.fullmatch(r"-[nruV]+", words[0]):
        flags, words = flags + words[0][1:], words[1:]
    lines = _lines(shell, words)
    if "V" in flags:
        if "n" in flags or not all(VERSION.fullmatch(line) for line in lines):
            raise UnknownOutput
        ordered = sorted(lines, key=lambda line: [int(part) for part in line.split(".")])
    elif "n" in flags:
        if not all(re.fullmatch(r"-?\d{1,15}", line) for line in lines):
            raise UnknownOutput
        numbers = sorted(map(int, lines))
        if len({*numbers}) != len({*lines}):  # 1 and 01
            raise UnknownOutput
        ordered = [str(number) for number in numbers]
        if sorted(ordered) != sorted(lines):
            raise UnknownOutput
    else:
        ordered = sorted(lines)
        if any(not line.isascii() for line in lines) or ordered != sorted(lines, key=_as_in_a_dictionary):
            raise UnknownOutput
    if "u" in flags:
        ordered = list(dict.fromkeys(ordered))
    _write(shell, ordered[::-1] if "r" in flags else ordered)
    return 0


def _as_in_a_dictionary(line: str) -> tuple[str, str]:
    """Letters and digits alone, small and large ones alike, as most languages order them."""
    return re.sub(r"[^0-9A-Za-z]", "", line).lower(), line


def uniq(shell: BashProcess, words: list[str]) -> int:
    lines = _lines(shell, words)
    _write(shell, [line for number, line in enumerate(lines) if not number or line != lines[number - 1]])
    return 0


def rev(shell: BashProcess, words: list[str]) -> int:
    _write(shell, [line[::-1] for line in _lines(shell, words)])
    return 0


def tac(shell: BashProcess, words: list[str]) -> int:
    _write(shell, _lines(shell, words)[::-1])
    return 0


def paste(shell: BashProcess, words: list[str]) -> int:
    """`paste -sd, -`: all lines in one."""
    options = "\0".join(word for word in words if word != "-")
    found = re.fullmatch(r"(?:-s\0)?-s?d\0?([^\0\\])(?:\0-s)?", options)
    if not found or "s" not in options.replace(found[1], "", 1):
        raise UnknownOutput
    _write(shell, [found[1].join(_lines(shell, []))])
    return 0


def words_of_lines(shell: BashProcess, words: list[str]) -> int:
    """`xargs` without a command: the words of its input in one line."""
    text = input_text(shell)
    closed(text)
    if len(text) > 4096:
        raise UnknownOutput
    (found,) = xargs_groups(text, {"d": words[-1].removeprefix("-d")} if words else {}, [])
    if found and (found[0].startswith("-") or "\\" in text):  # an option of echo
        raise UnknownOutput
    _write(shell, [" ".join(found)])
    return 0


PIECE = re.compile(r"""[^\s"'\\]+|"[^"\n]*"|'[^'\n]*'|\\.""")


def _unquoted(line: str, blanks: bool) -> list[str]:
    """The words of a line as xargs reads them; with `blanks`, those in it belong to its one word."""
    found, at, current = [], 0, ""
    while at < len(line):
        piece = PIECE.match(line, at)
        if piece:
            text = piece[0]
            current += text[1:-1] if text[0] in "\"'" else text.removeprefix("\\")
            at = piece.end()
        elif not line[at].isspace():
            raise UnknownOutput
        else:
            if blanks:
                current += line[at]
            elif current:
                found.append(current)
                current = ""
            at += 1
    return [*found, current] if current else found


def xargs_groups(text: str, options: Mapping[str, str], words: list[str]) -> list[list[str]]:
    """The commands that `xargs` starts for its input. Raises UnknownOutput."""
    delimiter = "\0" if {"0", "null"} & {*options} else options.get("d", options.get("delimiter"))
    replaced = options.get("I") or options.get("replace") or ("{}" if {"i", "replace"} & {*options} else "")
    numbers = [options.get(short) or options.get(long) for short, long in (("n", "max-args"), ("L", "max-lines"))]
    if any(number and not re.fullmatch(r"[1-9]\d{0,3}", number) for number in numbers):
        raise UnknownOutput
    size, per_line = (int(number or 0) for number in numbers)
    if delimiter is not None:
        mark = ansi_text(delimiter)
        if len(mark) != 1 or not mark.isascii():  # refused by xargs
            raise UnknownOutput
        lines = [[item] for item in (text[: -len(mark)] if text.endswith(mark) else text).split(mark)] if text else []
    else:
        if per_line and re.search(r"[ \t]$", text, re.MULTILINE):  # such a line goes on in the next one
            raise UnknownOutput
        lines = [found for line in text.splitlines() if (found := _unquoted(line.lstrip(), bool(replaced)))]
    if replaced:
        return [[word.replace(replaced, line[0]) for word in words] for line in lines]
    if per_line:
        chunks = [[*chain(*lines[at : at + per_line])] for at in range(0, len(lines), per_line)]
    else:
        items = [*chain(*lines)]
        chunks = [items[at : at + (size or len(items))] for at in range(0, len(items), size or max(len(items), 1))]
    if not chunks and not {"r", "no-run-if-empty"} & {*options}:
        chunks = [[]]
    return [[*words, *chunk] for chunk in chunks]
