"""Calls user code: whatever it raises is returned as a reason. The one place that catches every exception.

It loads little more than the standard library, as the processes that run such code begin with it.
"""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from launcher.core.redaction import redact

T = TypeVar("T")
LONGEST = 300  # characters of a reason
LINE = 80  # characters of a line of code that is shown
LIBRARY = re.compile(
    "|".join((re.escape(os.path.dirname(os.__file__)), re.escape(str(Path(__file__).parents[1])), "<", ".*-packages/",
              r".*/lib/python3\.", ".*/launcher/engines/"))
)  # fmt: skip
"""Files of Python, of this project and of packages, here and, as far as can be said, on other machines."""


@dataclass(frozen=True)
class CallFailure:
    """Why a call returned no value."""

    reason: str
    kind: str = ""
    """The class of what was raised, where something was."""


def try_call(call: Callable[[], T], file: str = "") -> T | CallFailure:
    """What `call` returns, or what it raised; of the code in `file`, the line is named where it is part of it."""
    found = caught(call)
    if not isinstance(found, Raised):
        return found
    kind, text = type(found.error).__name__, caught(partial(_one_line, found.error))  # its __str__ may raise, too
    output = f": {text}" if isinstance(text, str) and text else ""
    place = caught(partial(_place, found.error, file))  # where memory has run out, there may be none to look it up
    return CallFailure(shorten(f"{kind}{output}") + (place if isinstance(place, str) else ""), kind)


@dataclass(frozen=True)
class Raised:
    """What a call raised."""

    error: BaseException

    @property
    def own_line(self) -> str:
        """The innermost line of a person's own code: `my.py:12: return float(text)`; empty where there is none."""
        frames = traceback.extract_tb(self.error.__traceback__)
        own = own_places((frame.filename, frame.lineno or 0) for frame in frames)
        return shown_line(*own[-1]) if own else ""


def caught(call: Callable[[], T]) -> T | Raised:
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  user code may raise anything, and must not end the process
        return Raised(error)


async def caught_awaiting(call: Callable[[], Awaitable[T]]) -> T | Raised:
    try:
        return await call()
    except BaseException as error:  # noqa: BLE001  as above; whoever waits for a cancelled call would wait for ever
        return Raised(error)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _place(error: BaseException, file: str) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno or 0) for frame in frames]
    within = [place for place in places if place[0] == file] or own_places(places) or places
    return f" ({shown_line(*within[-1])})" if within else ""


def own_places(places: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those in files of a person: neither Python's, nor this project's, nor of an installed package."""
    return [place for place in places if not LIBRARY.match(place[0])]


def shown_line(file: str, number: int) -> str:
    """`my.py:12: return float(text)`"""
    text = redact(linecache.getline(file, number).strip())
    text = text if len(text) <= LINE else f"{text[: LINE - 3]}..."
    return f"{Path(file).name}:{number}{f': {text}' if text else ''}"


def shorten(text: str) -> str:
    text = redact(text)  # before the cut: a part of a secret is not known as one
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
