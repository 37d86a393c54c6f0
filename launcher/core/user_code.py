"""Calls user code: whatever it raises is returned as a reason. The one place that catches every exception.

It imports little beside the standard library, as the processes that run user code import it first.
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

from launcher.core.problems import shortened

T = TypeVar("T")
LONGEST = 300  # most characters of a reason
LINE = 80  # most characters shown of a line of code
LIBRARY = re.compile(
    "|".join((re.escape(os.path.dirname(os.__file__)), re.escape(str(Path(__file__).parents[1])), "<", ".*-packages/",
              r".*/lib/python3\.", ".*/launcher/engines/"))
)  # fmt: skip
"""Files of Python, of this project and of packages, here and, by common paths, on other machines."""


@dataclass(frozen=True)
class CallFailure:
    """Why a call returned no value."""

    reason: str
    kind: str = ""
    """The class of the exception; empty where none was raised."""


def try_call(call: Callable[[], T], file: str = "") -> T | CallFailure:
    """What `call` returns, or why it failed, with the line of `file`, else of the user's own code, that raised."""
    result = caught(call)
    if not isinstance(result, Raised):
        return result
    kind, text = type(result.error).__name__, caught(partial(_message_of, result.error))  # its __str__ may raise, too
    output = f": {text}" if isinstance(text, str) and text else ""
    place = caught(partial(_line_of_error, result.error, file))  # may fail, too, if memory has run out
    return CallFailure(shorten(f"{kind}{output}") + (place if isinstance(place, str) else ""), kind)


@dataclass(frozen=True)
class Raised:
    """The exception that a call raised."""

    error: BaseException

    @property
    def own_line(self) -> str:
        """The innermost line of the user's own code: `my.py:12: return float(text)`; empty where there is none."""
        frames = traceback.extract_tb(self.error.__traceback__)
        own_frames = own_places((frame.filename, frame.lineno or 0) for frame in frames)
        return shown_line(*own_frames[-1]) if own_frames else ""


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


def _message_of(error: BaseException) -> str:
    return " ".join(str(error).split())


def _line_of_error(error: BaseException, file: str) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno or 0) for frame in frames]
    shown = [place for place in places if place[0] == file] or own_places(places) or places
    return f" ({shown_line(*shown[-1])})" if shown else ""


def own_places(places: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The (file, line) pairs in the user's own files: not of Python, this project or an installed package."""
    return [place for place in places if not LIBRARY.match(place[0])]


def shown_line(file: str, number: int) -> str:
    """`my.py:12: return float(text)`"""
    text = shortened(linecache.getline(file, number).strip(), LINE)
    return f"{Path(file).name}:{number}{f': {text}' if text else ''}"


def shorten(text: str) -> str:
    """`text` as a reason, without secrets."""
    return shortened(text, LONGEST)
