"""What is refused before it is parsed: arguments that are too large, and secrets in settings that are saved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from launcher.config.nodes import walk
from launcher.core.bounded_parse import DEPTH, DIGITS
from launcher.core.problems import Problem, Problems, short_repr
from launcher.core.redaction import is_secret_name, passwords_in_urls, redact, register_secret

WORDS = 256  # arguments of one command
LONGEST = 2**14  # characters of a word
COMMAS = 512  # of a word; the time to parse it grows with the square of their number
PIECES = 256  # of an unparsable secret that are redacted one by one
_DIGITS = re.compile(rf"(?<![\w.'\"/-])[-+]?[0-9][0-9_]{{{DIGITS},}}")
_PAIR = re.compile(r"(?<![\w.-])([\w.-]+)['\"]?\s*[=:](?=\s*(?:'([^']*)'|\"([^\"]*)\"|[\[({\s'\"]*([^\s,'\"{}\[\]]+)))")
_PIECE = re.compile(r"[^\s,'\"(){}\[\]]{6,}")
_QUOTED = re.compile(r"\\.|'(?:\\.|[^'\\])*+(?:'|\Z)|\"(?:\\.|[^\"\\])*+(?:\"|\Z)", re.DOTALL)


def check(overrides: Sequence[str]) -> None:
    """Raises `Problems` for overrides that would take minutes to read."""
    if problems := separate(overrides)[1]:
        raise Problems(problems)


def separate(overrides: Sequence[str]) -> tuple[list[str], list[Problem]]:
    """The overrides that can be read, and a problem for each of the others, which would take minutes. Registers values
    of settings with the name of a secret for redaction, as even a refused one must not be shown."""
    readable, problems = list[str](), list[Problem]()
    if len(overrides) > WORDS:
        fix = f"use at most {WORDS}, and a file in --config-dir for more"
        problems.append(Problem("", f"got {len(overrides):,} arguments", fix))
    for word in overrides[:WORDS]:
        if len(word) <= LONGEST:
            _register_secrets(word)
        shown = word if len(word) <= LONGEST else word.partition("=")[0]  # the value may be a secret
        if too_large := size_problems(short_repr(shown, 40), word):
            problems += too_large
        else:
            readable.append(word)
    return readable, problems


def size_problems(where: str, word: str) -> list[Problem]:
    """A problem where a word, or another text of Hydra's grammar, would take minutes to read; else empty."""
    if len(word) > LONGEST:
        fix = f"use at most {LONGEST:,}, and a file in --config-dir for more"
        return [Problem(where, f"has {len(word):,} characters", fix)]
    if (commas := word.count(",")) > COMMAS:
        fix = f"use at most {COMMAS}, and a file in --config-dir for more"
        return [Problem(where, f"has {commas:,} commas", fix)]
    if _depth(word) > DEPTH:
        return [Problem(where, f"its brackets stand more than {DEPTH} deep", "use fewer")]
    if _DIGITS.search(word):
        return [Problem(where, f"holds a number of more than {DIGITS} digits", "use a smaller one")]
    return []


def _depth(word: str) -> int:
    """The deepest nesting of brackets; those within quotes do not count."""
    steps = [1 if mark in "([{" else -1 for mark in _QUOTED.sub("", word) if mark in "([{}])"]
    return max(accumulate(steps, initial=0))


def _register_secrets(word: str) -> None:
    for password in passwords_in_urls(word):
        register_secret(password)
    key, _, value = word.partition("=")
    if is_secret_name(key.rpartition(".")[2]):  # even a value that cannot be parsed is registered
        for text in [value, value.strip(), *_PIECE.findall(value)[:PIECES]]:
            register_secret(text)
    for match in _PAIR.finditer(word):
        if is_secret_name(match[1].rpartition(".")[2]):
            register_secret(next(value for value in match.groups()[1:] if value is not None))


def secrets_in_run(node: Any, named: Sequence[Problem] = ()) -> list[Problem]:
    """A problem for each secret among the settings of a run (`to_node`), as they are saved with it; settings that
    `named` already has problems with are left out."""
    reported = {place for problem in named for place in _with_parents(problem.where)}
    problems = []
    for path, value in walk(node, dot="\0"):  # joined by NUL, as a key may contain a dot
        parts = path.split("\0")
        place = ".".join(parts)
        if reported & {*_with_parents(place)} - {place.partition(".")[0]}:
            continue
        name = next((part for part in reversed(parts) if not part.isdecimal()), "")  # items take their list's name
        is_secret = isinstance(value, str) and (redact(value) != value or (is_secret_name(name) and value))
        if is_secret or redact(place) != place:
            got = "holds a secret, which would be kept with the run"
            fix = "use an environment variable, read where it is used"
            problems.append(Problem(redact(place), got, fix, "not-permitted"))
    return problems


def _with_parents(place: str) -> Iterator[str]:
    """`a.b.c`, `a.b` and `a`."""
    while place:
        yield place
        place = place.rpartition(".")[0]
