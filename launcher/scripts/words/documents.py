"""Takes here-documents out of a script before the grammar reads it: each `<<EOF` becomes `<` and one character.

The grammar confuses what follows `<<EOF` on its line. Line numbers stay as they are."""

from __future__ import annotations

import re

from launcher.scripts.words.lexer import (
    META,
    UnreadableText,
    arithmetic_end,
    skip_ansi,
    skip_blanks,
    skip_braces,
    skip_single,
    word_end,
    word_parts,
)
from launcher.scripts.words.lexer import PlainText as TextPart
from launcher.scripts.words.state import HereDocument, Reading

CASE = re.compile(r"(case|esac)(?=[\s;)&|]|$)")


class Extraction:
    """One pass over the text, with a stack of what encloses the place: `"`, `(` or a backtick."""

    def __init__(self, reading: Reading, text: str, line: int) -> None:
        self.reading, self.text, self.line = reading, text, line
        self.at = 0
        self.out: list[str] = []
        self.stack: list[list] = [["", 0]]  # what encloses, and how many `case` are open in it
        self.pending: list[tuple[str, str, bool]] = []  # operator, delimiter, literal
        self.places: list[int] = []  # where in `out` their characters go

    def run(self) -> str:
        """The text without here-documents; from an open quote on, as it is."""
        try:
            while self.at < len(self.text):
                if self.stack[-1][0] == '"':
                    self.in_quotes()
                else:
                    self.in_commands()
        except UnreadableText:
            self.out.append(self.text[self.at :])
        return "".join(self.out)

    def copy(self, end: int) -> None:
        self.out.append(self.text[self.at : end])
        self.at = end

    def push(self, kind: str, length: int) -> None:
        self.stack.append([kind, 0])
        self.copy(self.at + length)

    def expansion(self) -> bool:
        """Copies an expansion, or enters it; whether there is one."""
        text, at = self.text, self.at
        if text.startswith("$((", at) and (end := arithmetic_end(text, at + 3, 0)) >= 0:
            self.copy(end + 2)
        elif text.startswith("$(", at):
            self.push("(", 2)
        elif text.startswith("${", at):
            self.copy(skip_braces(text, at + 2, 0, quoted=True))
        elif text.startswith("`", at):
            if self.stack[-1][0] == "`":
                self.stack.pop()
                self.copy(at + 1)
            else:
                self.push("`", 1)
        else:
            return False
        return True

    def in_quotes(self) -> None:
        text, at = self.text, self.at
        if text[at] == "\\":
            self.copy(at + 2)
        elif text[at] == '"':
            self.stack.pop()
            self.copy(at + 1)
        elif not self.expansion():
            end = at + 1
            while end < len(text) and text[end] not in '"\\$`':
                end += 1
            self.copy(end)

    def in_commands(self) -> None:
        text, at = self.text, self.at
        character = text[at]
        begins = at == 0 or text[at - 1] in META + "`"
        if character == "\\":
            self.copy(at + 2)
        elif character == "'":
            self.copy(skip_single(text, at + 1))
        elif text.startswith("$'", at):
            self.copy(skip_ansi(text, at + 2))
        elif character == '"':
            self.push('"', 1)
        elif character == "#" and begins:
            end = text.find("\n", at)
            self.copy(len(text) if end < 0 else end)
        elif character == "\n":
            self.copy(at + 1)
            self.bodies()
        elif begins and (found := CASE.match(text, at)):
            self.stack[-1][1] += 1 if found[1] == "case" else -1
            self.copy(found.end())
        elif text.startswith("((", at) and begins and (end := arithmetic_end(text, at + 2, 0)) >= 0:
            self.copy(end + 2)
        elif character == "(" or text.startswith(("<(", ">("), at):
            self.push("(", 1 if character == "(" else 2)
        elif character == ")":
            if self.stack[-1][0] == "(" and self.stack[-1][1] <= 0:
                self.stack.pop()
            self.copy(at + 1)
        elif text.startswith("<<", at):
            self.operator()
        elif not self.expansion():
            end = at + 1
            while end < len(text) and text[end].isalnum():
                end += 1
            self.copy(end)

    def operator(self) -> None:
        text, at = self.text, self.at
        if text.startswith("<<<", at):
            self.copy(at + 3)
            return
        begin = skip_blanks(text, at + 2 + text.startswith("<<-", at))
        end = word_end(text, begin)
        if end == begin:
            self.copy(at + 2)
            return
        written = text[begin:end]
        delimiter = "".join(part.value for part in word_parts(written) if isinstance(part, TextPart))
        self.pending.append((text[at:end], delimiter, any(mark in written for mark in "'\"\\")))
        self.out.append("<")
        self.out.append("")  # the character of the document, once its text is read
        self.places.append(len(self.out) - 1)
        self.at = end

    def bodies(self) -> None:
        """Reads the texts of the documents of the line that has just ended."""
        for (operator, delimiter, literal), place in zip(self.pending, self.places, strict=True):
            begin, lines = self.at, []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                line = line.lstrip("\t") if operator.startswith("<<-") else line
                self.at = min(end + 1, len(self.text))
                if line == delimiter:
                    break
                lines.append(line + "\n")
            first = self.line + self.text.count("\n", 0, begin)
            self.out[place] = self.reading.add_document(HereDocument(operator, "".join(lines), literal, first))
            self.out.append("\n" * self.text.count("\n", begin, self.at))
        self.pending.clear()
        self.places.clear()


def without_documents(reading: Reading, text: str, line: int) -> str:
    """The text with its here-documents kept in `reading`."""
    return Extraction(reading, text, line).run() if "<<" in text else text
