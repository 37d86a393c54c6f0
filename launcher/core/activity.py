"""What this process is busy with or waits for: reported where it is known, and shown by a listener.

It imports nothing else of this project, as it is used before anything else is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, float], None]
"""Takes a text and the seconds that it has been true for."""
QUIET = "RLRUN_QUIET"
"""Environment variable that turns off messages on standard error about what is being checked."""
_listeners: list[Listener] = []


def report(text: str, for_s: float = 0.0) -> None:
    """Report what begins now, or has lasted `for_s` seconds; an empty text ends the last report."""
    if _listeners:
        _listeners[-1](text, for_s)


@contextmanager
def reported(text: str) -> Iterator[None]:
    """Report `text` while the block runs; also a decorator."""
    report(text)
    try:
        yield
    finally:
        report("")


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """Send all reports of this process, of any thread, to `listener` alone while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
