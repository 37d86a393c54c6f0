"""What is wrong with the input of a user: all problems at once, one line each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

from launcher.core.redaction import redact

Code = Literal[
    "invalid-setting", "unknown-setting", "unknown-choice", "conflicting-settings", "bad-row", "bad-file", "not-found",
    "not-enough", "not-installed", "not-reachable", "not-permitted", "not-supported", "in-use", "changed", "not-finite",
]  # fmt: skip
"""Kinds of problems, each explained in docs/troubleshooting.md."""

OnMessage = Callable[[str], None]
"""Called with a line about the progress of an operation."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the input of a user."""

    where: str
    """The setting, `file:line` or subject: `data.train_batch_size`, `train.jsonl:1204`, `port 29500`."""
    got: str
    """What was found."""
    fix: str = ""
    """What to use instead, as an instruction: `use 96 or 104`; empty where nothing is known to help."""
    code: Code = "invalid-setting"
    about: tuple[str, ...] = ()
    """Full names of the other settings, and of config groups, that the problem depends on."""
    value: int | str | None = None
    """A valid value of the setting `where`, if one is known."""

    def within(self, place: str) -> Problem:
        """The same problem with `place` before its subject: `place: where`."""
        return replace(self, where=f"{place}: {self.where}" if self.where else place)

    def __str__(self) -> str:
        """`where: what was found; what to use`."""
        text = f"{self.where}: {self.got}" if self.where else self.got
        return f"{text}; {self.fix}" if self.fix else text


def conflict(where: str, got: str, fix: str | Sequence[int], *about: str) -> Problem:
    """A problem of values that are valid alone, but not together; numbers as `fix` are values to use instead."""
    if isinstance(fix, str):
        return Problem(where, got, fix, "conflicting-settings", about)
    text = f"use {' or '.join(map(str, fix))}" if fix else ""
    return Problem(where, got, text, "conflicting-settings", about, next(iter(fix), None))


class Problems(Exception):
    """One problem or all of them at once."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """One line for each problem."""
        return [str(problem) for problem in self.problems]


class InvalidSettings(Problems, ValueError):
    """Raised by a settings class whose values do not fit together: pydantic reports it with its problems."""


def suggest(word: str, known: Sequence[str], *, listed: str = "it may be", before: str = "") -> str:
    """`did you mean x?` if a known word is similar, otherwise all known words. The word to type is shown after
    `before`: `model.path=models/`."""
    if near := nearest(word, known):
        return f"did you mean {shlex.quote(before + near) if before else near}?"
    return f"{listed} {', '.join(sorted(known))}" if known else "there is none yet"


def nearest(word: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The known word most similar to `word`, without regard to case and separators; never `word` itself."""
    plain: dict[str, str] = {}
    for name in known:
        if name != word:
            plain.setdefault(without_style(name), name)
    typed = without_style(word)
    if swapped := next((name for name in plain if sorted(name) == sorted(typed)), None):  # swapped letters
        return plain[swapped]
    if len(typed) > 2 and len(begin := [name for name in plain if name.startswith(typed)]) == 1:
        return plain[begin[0]]
    near = get_close_matches(typed, list(plain), n=1, cutoff=cutoff)
    return plain[near[0]] if near else None


def without_style(name: str) -> str:
    """`name` in lower case, with `_` for each of its separators."""
    return re.sub(r"[-_. ]", "_", name.lower())


def error_message(error: BaseException) -> str:
    """The message of a library's error as one line, in lower case and without a full stop."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip() or type(error).__name__
    line = redact(text).splitlines()[0].strip().rstrip(".")  # before any cut: a part of a secret is not known as one
    return line[:1].lower() + line[1:] if re.match(r"[A-Z][a-z]+\b", line) else line


def short_repr(value: object, limit: int = 80) -> str:
    """`repr(value)` without secrets, cut to `limit` characters."""
    return shortened(repr(value), limit)


def path_repr(path: object) -> str:
    """`repr(str(path))` without secrets. A path is shown whole, since its end says which file or folder is meant."""
    return short_repr(str(path), 1024)


def shortened(text: str, limit: int = 80) -> str:
    """`text` without secrets, cut to `limit` characters."""
    text = redact(text)  # before the cut: a part of a secret is not known as one
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
