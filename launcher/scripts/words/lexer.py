"""Splits text of bash into words, and words into their quoted and expanded parts. Knows nothing of values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

BLANK = " \t"
META = " \t\n;&|<>()"
NESTING = 40  # of quotes and expansions in one word
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[|\+?=)")
REDIRECT = re.compile(r"(\d*|\{[A-Za-z_]\w*\})(<<<|<<-|<<|<>|<&|<|&>>|&>|>>|>\||>&|>)")


class UnreadableText(ValueError):
    """Text that is not bash: an open quote or bracket, or brackets in brackets without end."""


@dataclass(frozen=True)
class BashWord:
    """A word of a command as it is written; `offset` counts characters from where the command begins."""

    text: str
    offset: int


@dataclass(frozen=True)
class ArrayWord:
    """`name=( ... )` or `name+=( ... )`."""

    name: str
    append: bool
    elements: tuple[BashWord, ...]
    offset: int


@dataclass(frozen=True)
class Redirect:
    """`2>&1`: file descriptor, operator, target."""

    descriptor: str
    operator: str
    target: BashWord


@dataclass(frozen=True)
class PlainText:
    """Characters as they are."""

    value: str
    quoted: bool


@dataclass(frozen=True)
class Parameter:
    """`$name` or `${...}`: the text between the braces."""

    inner: str
    quoted: bool
    text: str


@dataclass(frozen=True)
class Substitution:
    """`$( ... )` or backticks: the commands. Those of `<( ... )` and `>( ... )` have that operator."""

    body: str
    quoted: bool
    text: str
    operator: str = "$"


@dataclass(frozen=True)
class Arithmetic:
    """`$(( ... ))`."""

    expression: str
    quoted: bool
    text: str


Part = PlainText | Parameter | Substitution | Arithmetic


def skip_single(text: str, at: int) -> int:
    """The place after the `'` that closes; `at` is after the one that opens."""
    end = text.find("'", at)
    if end < 0:
        raise UnreadableText("a ' is not closed")
    return end + 1


def skip_ansi(text: str, at: int) -> int:
    """The place after the end of `$'...'`; `at` is after its first `'`."""
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "'":
            return at + 1
        at += 1
    raise UnreadableText("a $' is not closed")


def skip_double(text: str, at: int, depth: int = 0) -> int:
    """The place after the `"` that closes; `at` is after the one that opens."""
    while at < len(text):
        character = text[at]
        if character == '"':
            return at + 1
        if character == "\\":
            at += 2
        else:
            at = skip_expansion(text, at, depth, quoted=True) if character in "$`" else at + 1
    raise UnreadableText('a " is not closed')


def skip_expansion(text: str, at: int, depth: int, *, quoted: bool = False) -> int:
    """The place after the expansion that begins at `at`; after the `$` itself where it begins none.

    With `quoted` it stands in double quotes."""
    if depth > NESTING:
        raise UnreadableText(f"more than {NESTING} expansions within each other")
    if text[at] == "`":
        end = at + 1
        while end < len(text) and text[end] != "`":
            end += 2 if text[end] == "\\" else 1
        if end >= len(text):
            raise UnreadableText("a backtick is not closed")
        return end + 1
    if text.startswith("$((", at):
        end = arithmetic_end(text, at + 3, depth + 1)
        return end + 2 if end >= 0 else skip_parens(text, at + 2, depth + 1)
    if text.startswith("$(", at):
        return skip_parens(text, at + 2, depth + 1)
    if text.startswith("${", at):
        return skip_braces(text, at + 2, depth + 1, quoted=quoted)
    if text.startswith("$[", at):
        end = text.find("]", at)
        return end + 1 if end > 0 else len(text)
    return at + 1


def arithmetic_end(text: str, at: int, depth: int) -> int:
    """Where the `))` stands that closes an arithmetic expression; -1 where it is a command in a subshell."""
    level = 0
    while at < len(text):
        character = text[at]
        if character in "$`":
            at = skip_expansion(text, at, depth, quoted=True)
            continue
        if character == '"':
            at = skip_double(text, at + 1, depth)
            continue
        if character == "(":
            level += 1
        elif character == ")":
            if not level:
                return at if text.startswith("))", at) else -1
            level -= 1
        at += 2 if character == "\\" else 1
    return -1


def skip_braces(text: str, at: int, depth: int, *, quoted: bool) -> int:
    """The place after the `}` of `${`."""
    while at < len(text):
        character = text[at]
        if character == "}":
            return at + 1
        if character == "\\":
            at += 2
        elif character == "'":
            closing = text.find("'", at + 1)  # in double quotes a single one is a character
            brace = text.find("}", at)
            at = closing + 1 if closing >= 0 and (not quoted or brace < 0 or closing < brace) else at + 1
        elif character == '"':
            at = skip_double(text, at + 1, depth)
        elif character in "$`":
            at = skip_expansion(text, at, depth, quoted=quoted)
        else:
            at += 1
    raise UnreadableText("a ${ is not closed")


def skip_parens(text: str, at: int, depth: int) -> int:
    """The place after the `)` that closes `$(` or `<(`: commands, so that comments and `case` count."""
    level, cases, word_begins = 0, 0, True
    while at < len(text):
        character = text[at]
        if character == "#" and word_begins:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        if word_begins and character in "ce" and (found := re.compile(r"(case|esac)(?=[\s;)])").match(text, at)):
            cases += 1 if found[1] == "case" else -1
            at = found.end()
            word_begins = False
            continue
        word_begins = character in META
        if character == "\\":
            at += 2
        elif character == "'":
            at = skip_single(text, at + 1)
        elif character == '"':
            at = skip_double(text, at + 1, depth)
        elif text.startswith("$'", at):
            at = skip_ansi(text, at + 2)
        elif character in "$`":
            at = skip_expansion(text, at, depth)
        elif character == "(":
            level, at = level + 1, at + 1
        elif character == ")":
            at += 1
            if level:
                level -= 1
            elif cases <= 0:
                return at
        else:
            at += 1
    raise UnreadableText("a $( is not closed")


def word_end(text: str, at: int, *, patterns: bool = False) -> int:
    """Where the word that begins at `at` ends; `patterns`: `@(a|b)` belongs to a word."""
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 2
        elif character == "'":
            at = skip_single(text, at + 1)
        elif character == '"':
            at = skip_double(text, at + 1)
        elif text.startswith("$'", at):
            at = skip_ansi(text, at + 2)
        elif character in "$`":
            at = skip_expansion(text, at, 0)
        elif text.startswith(("<(", ">("), at) or (patterns and character in "@?*+!" and text.startswith("(", at + 1)):
            at = skip_parens(text, at + 2, 1)
        elif character in META:
            break
        else:
            at += 1
    return min(at, len(text))


def skip_blanks(text: str, at: int, *, lines: bool = False) -> int:
    """The next place that is not blank; continued lines are blank, with `lines` also line ends and comments."""
    while at < len(text):
        if text[at] in BLANK or (lines and text[at] == "\n"):
            at += 1
        elif text.startswith("\\\n", at):
            at += 2
        elif lines and text[at] == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        else:
            break
    return at


def array_words(text: str, at: int) -> tuple[tuple[BashWord, ...], int]:
    """The elements of `( ... )` and the place after it; `at` is after the bracket."""
    elements: list[BashWord] = []
    while True:
        at = skip_blanks(text, at, lines=True)
        if at >= len(text):
            raise UnreadableText("a ( is not closed")
        if text[at] == ")":
            return tuple(elements), at + 1
        end = subscript_end(text, at) if text[at] == "[" else at
        end = word_end(text, end)
        if end == at:
            raise UnreadableText(f"{text[at]} in an array")
        elements.append(BashWord(text[at:end], at))
        at = end


def subscript_end(text: str, at: int) -> int:
    """The place after `[...]` where `=` follows; `at` itself where it is no subscript."""
    level, place = 0, at
    while place < len(text) and text[place] not in "\n":
        character = text[place]
        if character in "$`":
            place = skip_expansion(text, place, 0)
            continue
        if character == '"':
            place = skip_double(text, place + 1)
            continue
        if character == "'":
            place = skip_single(text, place + 1)
            continue
        level += (character == "[") - (character == "]")
        place += 1
        if not level:
            return place if text.startswith(("=", "+="), place) else at
    return at


@dataclass(frozen=True)
class SimpleCommand:
    """The words and redirects of a command, and where it ends."""

    words: tuple[BashWord | ArrayWord, ...]
    redirects: tuple[Redirect, ...]
    end: int


@lru_cache(maxsize=4096)
def simple_command(text: str, at: int = 0) -> SimpleCommand:
    """Reads the command that begins at `at`, up to the operator, line end or comment that ends it."""
    words: list[BashWord | ArrayWord] = []
    redirects: list[Redirect] = []
    leading = True
    while True:
        at = skip_blanks(text, at)
        if at >= len(text) or text[at] == "#":
            break
        if found := REDIRECT.match(text, at):
            if not text.startswith(("<(", ">("), at) or found[1]:
                redirect, at = _redirect(text, found)
                redirects.append(redirect)
                continue
        elif text[at] in META:
            break
        if found := ASSIGNMENT.match(text, at):
            begin = subscript_end(text, found.end() - 1) if found[2] == "[" else found.end()
            if found[2] != "[" and text.startswith("(", begin) and (leading or _declares(words)):
                elements, end = array_words(text, begin + 1)
                words.append(ArrayWord(found[1], found[2] == "+=", elements, at))
                at = end
                continue
            end = word_end(text, begin)
        else:
            leading = False
            end = word_end(text, at)
        if end == at:
            break
        words.append(BashWord(text[at:end], at))
        at = end
    return SimpleCommand(tuple(words), tuple(redirects), at)


def _declares(words: list[BashWord | ArrayWord]) -> bool:
    first = words[0]
    return isinstance(first, BashWord) and first.text in ("declare", "local", "typeset", "export", "readonly")


def _redirect(text: str, found: re.Match[str]) -> tuple[Redirect, int]:
    begin = skip_blanks(text, found.end())
    end = word_end(text, begin)
    if end == begin:
        raise UnreadableText(f"{found[2]} without a file")
    return Redirect(found[1], found[2], BashWord(text[begin:end], begin)), end


def ansi_text(text: str) -> str:
    """What `$'text'` stands for."""
    simple = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

    def value(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
            return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else found[0]
        if code[0] in "01234567":
            return chr(int(code, 8) & 255)
        return simple.get(code, code if code in "\\'\"?" else found[0])

    return re.sub(
        r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", value, text, flags=re.DOTALL
    )


@lru_cache(maxsize=8192)
def word_parts(text: str) -> tuple[Part, ...]:
    """The parts of a word."""
    return tuple(_joined(_parts(text, 0, len(text))))


@lru_cache(maxsize=4096)
def quoted_parts(text: str, *, document: bool = False) -> tuple[Part, ...]:
    """The parts of text as between double quotes; in a here-document `"` is a character."""
    return tuple(_joined(_quoted(text, 0, len(text), "$`\\\n" + ("" if document else '"'))))


def _joined(parts: Iterator[Part]) -> Iterator[Part]:
    """Neighbouring texts as one."""
    last: PlainText | None = None
    for part in parts:
        if isinstance(part, PlainText) and last is not None and last.quoted == part.quoted:
            last = PlainText(last.value + part.value, part.quoted)
            continue
        if last is not None:
            yield last
        last = part if isinstance(part, PlainText) else None
        if last is None:
            yield part
    if last is not None:
        yield last


def _parts(text: str, at: int, end: int) -> Iterator[Part]:
    while at < end:
        character = text[at]
        if character == "\\":
            if text.startswith("\\\n", at):
                at += 2
                continue
            yield PlainText(text[at + 1 : at + 2] or "\\", True)
            at += 2
        elif character == "'":
            close = skip_single(text, at + 1)
            yield PlainText(text[at + 1 : close - 1], True)
            at = close
        elif character == '"' or text.startswith('$"', at):
            at += character == "$"
            close = skip_double(text, at + 1)
            if close == at + 2:
                yield PlainText("", True)
            yield from _quoted(text, at + 1, close - 1, '$`\\"\n')
            at = close
        elif text.startswith("$'", at):
            close = skip_ansi(text, at + 2)
            yield PlainText(ansi_text(text[at + 2 : close - 1]), True)
            at = close
        elif character in "$`":
            part, at = _expansion(text, at, quoted=False)
            yield part
        elif text.startswith(("<(", ">("), at):
            close = skip_parens(text, at + 2, 1)
            yield Substitution(text[at + 2 : close - 1], True, text[at:close], character)
            at = close
        else:
            stop = at + 1
            while stop < end and text[stop] not in "\\'\"$`<>":
                stop += 1
            yield PlainText(text[at:stop], False)
            at = stop


def _quoted(text: str, at: int, end: int, escapes: str) -> Iterator[Part]:
    while at < end:
        character = text[at]
        if character == "\\":
            after = text[at + 1 : at + 2]
            if after == "\n":
                at += 2
                continue
            yield PlainText(after if after and after in escapes else "\\" + after, True)
            at += 2
        elif character in "$`":
            part, at = _expansion(text, at, quoted=True)
            yield part
        else:
            stop = at + 1
            while stop < end and text[stop] not in "\\$`":
                stop += 1
            yield PlainText(text[at:stop], True)
            at = stop


def _expansion(text: str, at: int, *, quoted: bool) -> tuple[Part, int]:
    """The part that begins with `$` or a backtick, and the place after it."""
    end = skip_expansion(text, at, 0, quoted=quoted)
    whole = text[at:end]
    if text[at] == "`":
        escaped = r'\\([$`\\"])' if quoted else r"\\([$`\\])"
        return Substitution(re.sub(escaped, r"\1", whole[1:-1]), quoted, whole), end
    if whole.startswith("$((") and arithmetic_end(text, at + 3, 1) == end - 2:
        return Arithmetic(whole[3:-2], quoted, whole), end
    if whole.startswith("$("):
        return Substitution(whole[2:-1], quoted, whole), end
    if whole.startswith("${"):
        return Parameter(whole[2:-1], quoted, whole), end
    if whole.startswith("$["):
        return Arithmetic(whole[2:-1], quoted, whole), end
    if found := NAME.match(text, end):
        return Parameter(found[0], quoted, text[at : found.end()]), found.end()
    after = text[end : end + 1]
    if after and after in "0123456789@*#?$!-":
        return Parameter(after, quoted, text[at : end + 1]), end + 1
    return PlainText("$", quoted), end
