"""What is refused before anybody reads it: words beyond every need, and secrets where a run would keep them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from launcher.core.bounded_parse import DEPTH, DIGITS
from launcher.core.problems import Problem, Problems, short_repr
from launcher.core.redaction import MARK, is_secret_setting, passwords_in_urls, redact, register_secret

WORDS = 256
LONGEST = 2**14  # characters of a word
COMMAS = 512  # of a word; reading takes the square of their number
PIECES = 256  # of a secret that cannot be read
_DIGITS = re.compile(rf"(?<![\w.'\"/-])[-+]?[0-9][0-9_]{{{DIGITS},}}")
_PAIR = re.compile(r"(?<![\w.-])([\w.-]+)['\"]?\s*[=:](?=\s*(?:'([^']*)'|\"([^\"]*)\"|[\[({\s'\"]*([^\s,'\"{}\[\]]+)))")
_PIECE = re.compile(r"[^\s,'\"(){}\[\]]{6,}")
_OPEN, _CLOSE, _QUOTES = "([{", ")]}", "'\""


def check(words: Sequence[str]) -> None:
    """Raises `Problems` for words that would take minutes to read. From here on what they set by the name of a secret
    is redacted from all output: it must not be shown even where it is refused."""
    found = list[Problem]()
    if len(words) > WORDS:
        fix = f"use at most {WORDS}, and a file in --config-dir for more"
        found.append(Problem("", f"got {len(words):,} arguments", fix))
    for word in words[:WORDS]:
        if len(word) <= LONGEST:
            _register_secrets(word)
        found += [Problem(short_repr(word, 40), why) for why in beyond(word)]
    if found:
        raise Problems(found)


def beyond(word: str) -> Iterator[str]:
    """Why a word, or another text of Hydra's grammar, would take minutes to read."""
    if len(word) > LONGEST:
        yield f"has {len(word):,} characters; use at most {LONGEST:,}, and a file in --config-dir for more"
    elif (commas := word.count(",")) > COMMAS:
        yield f"has {commas:,} commas; use at most {COMMAS}, and a file in --config-dir for more"
    elif _depth(word) > DEPTH:
        yield f"its brackets stand more than {DEPTH} deep; use fewer"
    elif _DIGITS.search(word):
        yield f"holds a number of more than {DIGITS} digits; use a smaller one"


def _depth(word: str) -> int:
    """How many brackets are open at most; those within quotes do not count."""
    depth = deepest = 0
    quote, escaped = "", False
    for letter in word:
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES:
            quote = letter
        elif letter in _OPEN:
            depth += 1
            deepest = max(deepest, depth)
        elif letter in _CLOSE:
            depth -= 1
    return deepest


def _register_secrets(word: str) -> None:
    for password in passwords_in_urls(word):
        register_secret(password)
    key, _, value = word.partition("=")
    if is_secret_setting(key.rpartition(".")[2]):  # also where the value cannot be parsed
        for text in [value, value.strip(), *_PIECE.findall(value)[:PIECES]]:
            register_secret(text)
    for match in _PAIR.finditer(word):
        if is_secret_setting(match[1].rpartition(".")[2]):
            register_secret(next(value for value in match.groups()[1:] if value is not None))


def kept(node: Any, named: Sequence[Problem] = ()) -> list[Problem]:
    """A problem for each secret among the settings of a run (`to_node`), which are written down with it; those that
    `named` speaks of already are left out."""
    output = {place for problem in named for place in _above(problem.where)}
    problems = []
    for place, name, value in _texts(node):
        if output & {*_above(place)} - {place.partition(".")[0]}:
            continue
        if (is_secret_setting(name) and value) or redact(value) != value:
            found = "holds a secret, which would be kept with the run"
            problems.append(
                Problem(place, found, "use an environment variable, read where it is used", "not-permitted")
            )
    return problems


def _above(place: str) -> Iterator[str]:
    """`a.b.c`, `a.b` and `a`."""
    while place:
        yield place
        place = place.rpartition(".")[0]


def _texts(node: Any, place: str = "", name: str = "") -> Iterator[tuple[str, str, str]]:
    """Place, name and value of each text, keys of settings among them."""
    if isinstance(node, dict):
        for key, value in node.items():
            inner = f"{place}.{key}" if place else str(key)
            if redact(str(key)) != key:
                yield f"{place}.{MARK}", "", str(key)
            yield from _texts(value, inner, str(key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _texts(value, f"{place}.{number}", name)
    elif isinstance(node, str):
        yield place, name, node
