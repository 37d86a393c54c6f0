"""As much of the shell's grammar as recipes use: words, quotes, `$name`, `${name:-default}`, continued lines, comments.

Nothing is run. What only a running shell knows (`$(date)`, a loop's variable) stays unknown, and is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from launcher.core.bounded_parse import DEPTH, LimitExceeded

_SPECIAL = re.compile(r"[@*#?$!0-9-]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ARGUMENTS = "@"


@dataclass
class Piece:
    """Part of a word: its text, or where `name` is set, what stands for that name."""

    text: str
    name: str = ""
    """A variable's name; `@` are the script's own arguments; the whole `$(...)` where a command is to be run."""
    default: list[Piece] | None = None
    """Of `${name:-default}`."""
    quoted: bool = False


@dataclass
class Word:
    line: int
    pieces: list[Piece] = field(default_factory=list)


class ShellReader:
    """Cuts a script into commands of words. Raises `LimitExceeded` where `${a:-${b:-...}}` is nested too deep."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.line, self.depth = text, 0, 1, 0

    def commands(self) -> Iterator[list[Word]]:
        """Each simple command; `;`, `&`, `|`, brackets and line ends stand between them."""
        words: list[Word] = []
        while self.place < len(self.text):
            mark = self.text[self.place]
            if mark == "#":
                self._skip_comment()
            elif mark in ";&|()\n":
                self._step()
                if words:
                    yield words
                words = []
            elif mark.isspace() or self.text.startswith("\\\n", self.place):
                self._step(2 if mark == "\\" else 1)
            else:
                words.append(self._word())
        if words:
            yield words

    def _step(self, count: int = 1) -> str:
        taken = self.text[self.place : self.place + count]
        self.place += count
        self.line += taken.count("\n")
        return taken

    def _skip_comment(self) -> None:
        while self.place < len(self.text) and self.text[self.place] != "\n":
            self._step()

    def _word(self) -> Word:
        word = Word(self.line)
        while self.place < len(self.text):
            mark = self.text[self.place]
            if mark.isspace() or mark in ";&|()":
                break
            if mark == "'":
                end = self._find("'", self.place + 1)
                word.pieces.append(Piece(self.text[self.place + 1 : end], quoted=True))
                self._step(end + 1 - self.place)
            elif mark == '"':
                self._step()
                word.pieces += [Piece("", quoted=True), *self._until('"', quoted=True)]
                self._step()
            elif mark == "\\":
                escaped = self._step(2)[1:]
                word.pieces.append(Piece("" if escaped == "\n" else escaped, quoted=True))
            elif mark == "$":
                word.pieces.append(self._dollar(quoted=False))
            elif mark == "`":
                word.pieces.append(self._command("`"))
            else:
                word.pieces.append(Piece(self._step()))
        return word

    def _until(self, end: str, quoted: bool) -> list[Piece]:
        """Pieces up to the mark `end`, which is left to be read."""
        pieces = []
        while self.place < len(self.text) and self.text[self.place] != end:
            mark = self.text[self.place]
            if mark == "\\" and self.text[self.place + 1 : self.place + 2] in ("$", "`", '"', "\\", "\n"):
                escaped = self._step(2)[1:]
                pieces.append(Piece("" if escaped == "\n" else escaped, quoted=True))
            elif mark == "$":
                pieces.append(self._dollar(quoted))
            elif mark == "`":
                pieces.append(self._command("`"))
            else:
                pieces.append(Piece(self._step(), quoted=quoted))
        return pieces

    def _dollar(self, quoted: bool) -> Piece:
        after = self.text[self.place + 1 : self.place + 2]
        if after == "(":
            return self._command(")")
        if after == "{":
            return self._braces(quoted)
        plain = _NAME.match(self.text, self.place + 1) or _SPECIAL.match(self.text, self.place + 1)
        if not plain:
            return Piece(self._step(), quoted=quoted)
        self._step(1 + len(plain[0]))
        return Piece(f"${plain[0]}", "@" if plain[0] == "*" else plain[0], quoted=quoted)

    def _braces(self, quoted: bool) -> Piece:
        """`${name}`, `${name:-default}`, `${name-default}`; of anything else only the shell knows the value."""
        begin = self.place
        name = _NAME.match(self.text, begin + 2)
        if name and (rest := re.compile(r"(:?-)|\}").match(self.text, name.end())):
            self._step(rest.end() - begin)
            default = None
            if rest[1]:
                self.depth += 1
                if self.depth > DEPTH:
                    raise LimitExceeded(f"defaults stand more than {DEPTH} deep; use fewer", self.line)
                default = self._until("}", quoted)
                self._step()
                self.depth -= 1
            return Piece(self.text[begin : self.place], name[0], default, quoted)
        whole = self._command("}")
        return Piece(whole.text, ARGUMENTS if whole.text == "${@}" else whole.text, quoted=quoted)

    def _command(self, end: str) -> Piece:
        """`$(...)`, `${...}` or backticks, with what is nested in them."""
        begin, depth = self.place, 0
        self._step(1 if end == "`" else 2)
        opens = {")": "(", "}": "{"}.get(end, "")
        while self.place < len(self.text):
            mark = self._step()
            if mark == end and not depth:
                break
            depth += (mark == opens) - (mark == end)
        text = self.text[begin : self.place]
        return Piece(text, text)

    def _find(self, mark: str, begin: int) -> int:
        found = self.text.find(mark, begin)
        return len(self.text) if found < 0 else found
