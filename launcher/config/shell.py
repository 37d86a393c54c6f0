"""As much of the shell's grammar as recipes use: words, quotes, `$name`, `${name:-default}`, continued lines, comments.

Nothing is run. What only a running shell knows (`$(date)`, a loop's variable) stays unknown, and is named.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.core.bounded_parse import DEPTH, LimitExceeded

ARGUMENTS = "@"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_EXPANSION = (
    rf"\$(?P<variable>{_NAME}|[@*#?$!0-9-])"
    rf"|\$\{{(?P<braced>{_NAME})(?P<after>:?-|\}})"
    r"|(?P<command>\$\(|\$\{|`)"
)
_WORD = re.compile(
    rf"'(?P<literal>[^']*)'?|(?P<quote>\")|\\(?P<escaped>.?)|{_EXPANSION}|(?P<plain>=|[^\s;&|()'\"\\$`=]+|\$)",
    re.DOTALL | re.ASCII,
)
_IN_QUOTES, _IN_BRACES = (
    re.compile(rf"\\(?P<escaped>[$`\"\\\n])|{_EXPANSION}|(?P<plain>[^{end}\\$`]+|[\\$])") for end in '"}'
)
_BETWEEN_WORDS = re.compile(r"(?:[^\S\n]|\\\n|#[^\n]*)+", re.ASCII)
_BETWEEN_COMMANDS = re.compile(r"[;&|()\n]")
_BRACKETS = {"$(": "()", "${": "{}", "`": "`"}


@dataclass
class Piece:
    """Part of a word: its text, or where `name` is set, what stands for that name. An unquoted `=` is its own piece."""

    text: str
    name: str = ""
    """A variable's name; `@` are the script's own arguments; the whole `$(...)` where a command is to be run."""
    default: list[Piece] | None = None
    """Of `${name:-default}`."""
    quoted: bool = False


@dataclass
class Word:
    line: int
    pieces: list[Piece]

    def __str__(self) -> str:
        return "".join(piece.text for piece in self.pieces)


class ShellReader:
    """Cuts a script into commands of words. Raises `LimitExceeded` where `${a:-${b:-...}}` is nested too deep."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.depth = text, 0, 0
        self._line_ends = [end.start() for end in re.finditer("\n", text)]

    @property
    def line(self) -> int:
        return bisect_left(self._line_ends, self.place) + 1

    def commands(self) -> Iterator[list[Word]]:
        """Each simple command; `;`, `&`, `|`, brackets and line ends stand between them."""
        words: list[Word] = []
        while self.place < len(self.text):
            if self._take(_BETWEEN_WORDS):
                continue
            if not self._take(_BETWEEN_COMMANDS):
                words.append(Word(self.line, list(self._pieces(_WORD, quoted=False))))
            elif words:
                yield words
                words = []
        if words:
            yield words

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.place)
        self.place = match.end() if match else self.place
        return match

    def _pieces(self, pattern: re.Pattern[str], quoted: bool) -> Iterator[Piece]:
        """Pieces for as long as `pattern` matches."""
        while match := self._take(pattern):
            kind, text = match.lastgroup, match[0]
            if kind == "plain":
                yield Piece(text, quoted=quoted)
            elif kind == "literal":
                yield Piece(match[kind], quoted=True)
            elif kind == "escaped":
                yield Piece(match[kind].strip("\n"), quoted=True)
            elif kind == "quote":
                yield from [Piece("", quoted=True), *self._pieces(_IN_QUOTES, quoted=True)]
                self.place += 1
            elif kind == "variable":
                yield Piece(text, ARGUMENTS if match[kind] == "*" else match[kind], quoted=quoted)
            elif kind == "after":
                default = self._default(quoted) if match[kind] != "}" else None
                yield Piece(self.text[match.start() : self.place], match["braced"], default, quoted)
            else:
                self._skip_brackets(_BRACKETS[text])
                whole = self.text[match.start() : self.place]
                yield Piece(whole, ARGUMENTS if whole == "${@}" else whole, quoted=quoted)

    def _default(self, quoted: bool) -> list[Piece]:
        self.depth += 1
        if self.depth > DEPTH:
            raise LimitExceeded(f"defaults stand more than {DEPTH} deep", "use fewer", self.line)
        pieces = list(self._pieces(_IN_BRACES, quoted))
        self.place += 1
        self.depth -= 1
        return pieces

    def _skip_brackets(self, brackets: str) -> None:
        """To the end of what an opening bracket begins, with what is nested in it."""
        depth = 1
        for mark in re.compile(f"[{brackets}]").finditer(self.text, self.place):
            depth += 1 if mark[0] != brackets[-1] else -1
            if not depth:
                self.place = mark.end()
                return
        self.place = len(self.text)
