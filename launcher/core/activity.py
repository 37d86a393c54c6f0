"""What this process is busy with, or waits for: said where it is known, and shown by who listens.

It loads nothing, as it is shown before anything else is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, float], None]
"""Takes a text and the seconds that it has been true for."""
QUIET = "RLRUN_QUIET"
"""Environment variable: nothing is shown on standard error of what is checked."""
_listeners: list[Listener] = []


def report(text: str, for_s: float = 0.0) -> None:
    """What begins now, or has lasted `for_s` seconds; an empty text ends what was reported before."""
    if _listeners:
        _listeners[-1](text, for_s)


@contextmanager
def reported(text: str) -> Iterator[None]:
    """It is reported, and over at the end; also a decorator."""
    report(text)
    try:
        yield
    finally:
        report("")


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """What any thread reports meanwhile goes to this listener, and to none that listened before."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
