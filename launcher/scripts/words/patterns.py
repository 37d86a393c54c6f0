"""Patterns of bash (`*.sh`, `[a-z]*`, `@(a|b)`) as regular expressions, and words in braces (`{a,b}`, `{1..3}`)."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import regex

from launcher.scripts.words.lexer import UnreadableText, skip_ansi, skip_double, skip_expansion, skip_single
from launcher.scripts.words.state import FIELDS, StopReading

SECONDS = 1.0  # for one pattern on one value; real ones take microseconds
ESCAPE = "\\"


class Undecided(Exception):
    """A pattern that takes too long, or that is not one."""


@lru_cache(maxsize=2048)
def compiled_pattern(pattern: str, *, extended: bool = True, any_case: bool = False) -> regex.Pattern[str]:
    """The pattern, in which quoted characters follow a backslash, as a regular expression.

    `extended`: `@(a|b)` is more than its characters; `any_case`: large and small letters are the same."""
    try:
        return regex.compile(_translated(pattern, extended), regex.DOTALL | (regex.IGNORECASE if any_case else 0))
    except regex.error as error:
        raise Undecided(str(error)) from error


def _translated(pattern: str, extended: bool) -> str:
    out, at, closers = [], 0, []
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == ESCAPE and at < len(pattern):
            out.append(regex.escape(pattern[at]))
            at += 1
        elif extended and character in "@?*+!" and pattern.startswith("(", at):
            out.append("(?:(?!(?:" if character == "!" else "(?:")
            closers.append(character)
            at += 1
        elif closers and character == "|":
            out.append("|")
        elif closers and character == ")":
            kind = closers.pop()
            out.append({"@": ")", "?": ")?", "*": ")*", "+": ")+", "!": ")$).*)"}[kind])
        elif character == "*":
            out.append(".*")
        elif character == "?":
            out.append(".")
        elif character == "[" and (found := regex.match(r"([!^]?)(\]?(?:\[:\w+:\]|\\.|[^\]\\])*)\]", pattern[at:])):
            out.append(f"[{'^' if found[1] else ''}{found[2].replace('[', '[' if '[:' in found[2] else ESCAPE + '[')}]")
            at += found.end()
        else:
            out.append(regex.escape(character))
    return "".join(out)


def matches(pattern: str, text: str, *, any_case: bool = False) -> bool:
    """Whether the whole text matches."""
    try:
        return compiled_pattern(pattern, any_case=any_case).fullmatch(text, timeout=SECONDS) is not None
    except TimeoutError as error:
        raise Undecided("a pattern that takes too long") from error


def search_extended(expression: str, text: str, *, any_case: bool = False) -> list[str] | None:
    """The groups of `[[ text =~ expression ]]`, None without a match.

    Raises Undecided where Python would read it otherwise."""
    if regex.search(r"\(\?|\\[1-9bBdDwWsS<>]|\*\?|\+\?|\?\?|[*+?}][+]", expression):
        raise Undecided("a regular expression with extensions")
    classes = regex.sub(
        r"\[([^\]\[]*(?:\[:\w+:\][^\]\[]*)*)\]", lambda found: found[0].replace(ESCAPE, ESCAPE * 2), expression
    )
    try:
        flags = regex.POSIX | regex.DOTALL | (regex.IGNORECASE if any_case else 0)
        found = regex.search(classes, text, flags, timeout=SECONDS)
    except (regex.error, TimeoutError) as error:
        raise Undecided("a regular expression that cannot be read") from error
    return None if found is None else [found[0], *(group or "" for group in found.groups())]


def removed(value: str, pattern: str, *, suffix: bool, longest: bool, extended: bool) -> str:
    """`value` without what matches at its beginning or end."""
    expression = compiled_pattern(pattern, extended=extended)
    lengths = range(len(value), -1, -1) if longest else range(len(value) + 1)
    if len(value) > 5_000:
        raise Undecided("a value too long for a pattern")
    try:
        for length in lengths:
            part = value[len(value) - length :] if suffix else value[:length]
            if expression.fullmatch(part, timeout=SECONDS):
                return value[: len(value) - length] if suffix else value[length:]
    except TimeoutError as error:
        raise Undecided("a pattern that takes too long") from error
    return value


MATCHED = "\x00"
"""In a replacement: what matched, which bash writes as `&`."""


def replaced(value: str, pattern: str, by: str, *, everywhere: bool, at: str, extended: bool, any_case: bool) -> str:
    """`value` with matches of the pattern replaced; `at`: only at its beginning (`#`) or end (`%`)."""
    if not pattern and not at:
        return value
    expression = f"(?{'i' if any_case else ''}:{_translated(pattern, extended)})"
    expression = rf"\A(?:{expression})" if at == "#" else rf"(?:{expression})\Z" if at == "%" else expression
    try:
        found = regex.compile(expression, regex.DOTALL)

        def new(match: regex.Match[str]) -> str:
            return by.replace(MATCHED, match[0]) if match[0] or not value or at else ""

        return found.sub(new, value, count=0 if everywhere else 1, timeout=SECONDS)
    except (regex.error, TimeoutError) as error:
        raise Undecided("a pattern that cannot be read") from error


def expand_braces(text: str) -> list[str]:
    """The words that `a{b,c}d` or `{1..3}` stand for; quotes and `${` are left alone."""
    return _expand(text, 0) if "{" in text else [text]


def _expand(text: str, depth: int) -> list[str]:
    if depth > 20:
        raise StopReading("more than 20 braces within each other")
    begin = 0
    while (found := _next_brace(text, begin)) is not None:
        begin, end, commas = found
        if commas:
            bounds = [begin, *commas, end]
            inner = [text[a + 1 : b] for a, b in pairwise(bounds)]
            middle = [word for part in inner for word in _expand(part, depth + 1)]
        else:
            middle = sequence(text[begin + 1 : end])
        if not middle:
            begin += 1
            continue
        tails = _expand(text[end + 1 :], depth + 1) if "{" in text[end + 1 :] else [text[end + 1 :]]
        if len(middle) * len(tails) > FIELDS:
            raise StopReading(f"braces that give more than {FIELDS:,} words")
        return [f"{text[:begin]}{part}{tail}" for part in middle for tail in tails]
    return [text]


def _next_brace(text: str, at: int) -> tuple[int, int, list[int]] | None:
    """Begin, end and commas of the first pair of braces from `at` on."""
    stack: list[tuple[int, list[int]]] = []
    best: tuple[int, int, list[int]] | None = None
    try:
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
            elif text.startswith("${", at):
                at = _after_parameter(text, at + 2)
            elif character in "$`":
                at = skip_expansion(text, at, 0)
            else:
                if character == "{":
                    stack.append((at, []))
                elif character == "," and stack:
                    stack[-1][1].append(at)
                elif character == "}" and stack:
                    begin, commas = stack.pop()
                    if (commas or sequence(text[begin + 1 : at])) and (best is None or begin < best[0]):
                        best = (begin, at, commas)
                    if not stack and best is not None:
                        return best
                at += 1
    except UnreadableText:
        return best
    return best


def _after_parameter(text: str, at: int) -> int:
    """The place after `${...}`, where braces inside it count."""
    level = 1
    while at < len(text) and level:
        character = text[at]
        if character == '"':
            at = skip_double(text, at + 1)
            continue
        level += (character == "{") - (character == "}")
        at += 2 if character == "\\" else 1
    return at


def sequence(text: str) -> list[str]:
    """The words of `1..5`, `01..10..2` or `a..e`; none where it is something else."""
    found = regex.fullmatch(r"(-?\d{1,15}|[A-Za-z])\.\.(-?\d{1,15}|[A-Za-z])(?:\.\.(-?\d{1,9}))?", text)
    if not found or found[1].isalpha() != found[2].isalpha():
        return []
    letters = found[1].isalpha()
    first, last = (ord(found[1]), ord(found[2])) if letters else (int(found[1]), int(found[2]))
    step = abs(int(found[3] or 1)) or 1
    if abs(last - first) // step >= FIELDS:
        raise StopReading(f"braces that give more than {FIELDS:,} words")
    numbers = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
    if letters:
        return [chr(number) for number in numbers]
    padded = any(len(part.lstrip("-")) > 1 and part.lstrip("-").startswith("0") for part in found.group(1, 2))
    width = max(len(found[1]), len(found[2])) if padded else 0
    return [f"{number:0{width}d}" for number in numbers]
