"""`${name}` and its operators: defaults, parts of a pattern, replacements, cases, lengths, slices, arrays."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from launcher.scripts.words import patterns
from launcher.scripts.words.lexer import UnreadableText, skip_double, skip_expansion, skip_single
from launcher.scripts.words.state import is_open

SPECIAL = "@*#?$!-0123456789"
OPERATORS = (
    ":-", ":=", ":+", ":?", "##", "%%", "//", "/#", "/%", "^^", ",,", "~~",
    "-", "=", "+", "?", "#", "%", "/", "^", ",", "~", ":", "@",
)  # fmt: skip
OPTION_LETTERS = {
    "e": "errexit", "u": "nounset", "x": "xtrace", "f": "noglob", "a": "allexport", "n": "noexec", "v": "verbose",
    "E": "errtrace", "T": "functrace", "h": "hashall", "m": "monitor", "b": "notify", "B": "braceexpand",
    "C": "noclobber", "H": "histexpand", "P": "physical", "k": "keyword", "p": "privileged", "t": "onecmd",
}  # fmt: skip
"""Options of `set` by their letter."""


@dataclass(frozen=True)
class ParameterText:
    """What stands between the braces of `${...}`."""

    name: str
    subscript: str | None = None
    prefix: str = ""
    """`#` for a length, `!` for a name in a variable or the keys of an array."""
    operator: str = ""
    argument: str = ""


@lru_cache(maxsize=4096)
def read_parameter(inner: str) -> ParameterText:
    """Reads the text between the braces. Raises UnreadableText."""
    prefix, at = "", 0
    if inner[:1] in ("#", "!") and len(inner) > 1 and (inner[1] in SPECIAL + "_" or inner[1].isalpha()):
        rest = inner[1:]
        if not (inner[0] == "#" and re.match(r"[-#?][^}]", rest) and not rest[0].isalnum()):
            prefix, at = inner[0], 1
    found = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.ASCII).match(inner, at)
    if not found:
        raise UnreadableText(f"${{{inner[:40]}}}: a name was expected")
    name, at = found[0], found.end()
    subscript = None
    if inner.startswith("[", at) and (name[0].isalpha() or name[0] == "_"):
        end = _closing(inner, at + 1)
        subscript, at = inner[at + 1 : end], end + 1
    rest = inner[at:]
    if not rest:
        return ParameterText(name, subscript, prefix)
    if prefix == "!" and rest in ("*", "@") and subscript is None:
        return ParameterText(name, None, "!names")
    operator = next((sign for sign in OPERATORS if rest.startswith(sign)), "")
    if not operator or prefix == "#":
        raise UnreadableText(f"${{{inner[:40]}}} is not known")
    return ParameterText(name, subscript, prefix, operator, rest[len(operator) :])


def _closing(text: str, at: int) -> int:
    level = 0
    while at < len(text):
        character = text[at]
        if character == "]" and not level:
            return at
        level += (character == "[") - (character == "]")
        if character == '"':
            at = skip_double(text, at + 1)
        elif character == "'":
            at = skip_single(text, at + 1)
        elif character in "$`":
            at = skip_expansion(text, at, 0)
        else:
            at += 2 if character == "\\" else 1
    raise UnreadableText(f"${{{text[:40]}}}: a ] is missing")


def split_replacement(argument: str) -> tuple[str, str]:
    """Pattern and replacement of `${name/pattern/replacement}`."""
    at = 0
    while at < len(argument):
        character = argument[at]
        if character == "/":
            return argument[:at], argument[at + 1 :]
        if character == "\\":
            at += 2
        elif character == "'":
            at = skip_single(argument, at + 1)
        elif character == '"':
            at = skip_double(argument, at + 1)
        elif character in "$`":
            at = skip_expansion(argument, at, 0)
        else:
            at += 1
    return argument, ""


def split_slice(argument: str) -> list[str]:
    """Offset and length of `${name:offset:length}`."""
    level, at = 0, 0
    while at < len(argument):
        character = argument[at]
        if character == ":" and level <= 0:
            return [argument[:at], argument[at + 1 :]]
        level += (character in "(?[") - (character in ")]") - (character == ":")
        at = skip_expansion(argument, at, 0) if character in "$`" else at + 1
    return [argument]


def removed(value: str, pattern: str, operator: str, *, extended: bool) -> str:
    """`${value#pattern}` and its like. Raises Undecided where an open part of the value decides the result."""
    suffix, longest = operator[0] == "%", len(operator) == 2
    if not is_open(value) and not is_open(pattern):
        return patterns.removed(value, pattern, suffix=suffix, longest=longest, extended=extended)
    parts = re.split(r"(?<=[\U000f0000-\U000ffffd])|(?=[\U000f0000-\U000ffffd])", value)
    head, tail = ("" if is_open(parts[0]) else parts[0]), ("" if is_open(parts[-1]) else parts[-1])
    if is_open(pattern):
        if pattern == value:
            return ""
        raise patterns.Undecided("an open pattern")
    literal = re.sub(r"\\(.)", r"\1", pattern) if not re.search(r"(?<!\\)[*?\[]", pattern) else None
    if literal is not None:
        edge = tail if suffix else head
        if len(edge) >= len(literal):
            matched = edge.endswith(literal) if suffix else edge.startswith(literal)
            return value if not matched else value[: len(value) - len(literal)] if suffix else value[len(literal) :]
    starred = re.fullmatch(r"([^*?\[\\]+)\*" if suffix else r"\*([^*?\[\\]+)", pattern)
    if starred:
        mark = starred[1]
        edge = (head if longest else tail) if suffix else (tail if longest else head)
        place = edge.rfind(mark) if suffix != longest else edge.find(mark)
        if suffix and longest:
            place = edge.find(mark)
        elif not suffix and longest:
            place = edge.rfind(mark)
        if place >= 0:
            begin = place if edge is head else len(value) - len(tail) + place
            return value[:begin] if suffix else value[begin + len(mark) :]
    raise patterns.Undecided("an open part")


def with_case(value: str, operator: str, pattern: str) -> str:
    """`${value^^}`, `${value,}`, `${value~~}`, ...; only characters that match the pattern change."""
    change = {"^": str.upper, ",": str.lower, "~": str.swapcase}[operator[0]]
    end = len(value) if len(operator) == 2 else 1
    changed = "".join(change(c) if not pattern or patterns.matches(pattern, c) else c for c in value[:end])
    return changed + value[end:]


def shell_quoted(value: str) -> str:
    """`${value@Q}`."""
    return "'" + value.replace("'", "'\\''") + "'"
