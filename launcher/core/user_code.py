"""Calls user code: whatever it raises is returned as a reason. The one place that catches every exception.

It loads little more than the standard library, as the processes that run such code begin with it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from launcher.core.redaction import redact

T = TypeVar("T")
LONGEST = 300  # characters of a reason


@dataclass(frozen=True)
class CallFailure:
    """Why a call returned no value."""

    reason: str
    kind: str = ""
    """The class of what was raised, where something was."""


def try_call(call: Callable[[], T], file: str = "") -> T | CallFailure:
    """What `call` returns, or what it raised; of the code in `file`, the line is named where it is part of it."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # noqa: BLE001  user code may raise anything, and must not end the process
        text = try_call(partial(_one_line, error))  # its __str__ may raise, too
        output = f": {text}" if isinstance(text, str) and text else ""
        kind = type(error).__name__
        place = try_call(partial(_place, error, file))  # where memory has run out, there may be none to look it up
        return CallFailure(shorten(f"{kind}{output}") + (place if isinstance(place, str) else ""), kind)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _place(error: BaseException, file: str) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    within = [frame for frame in frames if frame.filename == file] or frames
    return f" ({Path(within[-1].filename).name}:{within[-1].lineno})" if within else ""


def shorten(text: str) -> str:
    text = redact(text)  # before the cut: a part of a secret is not known as one
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
