"""Shows a run's checks as they go on; the first line is printed before any slow import."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from launcher.core import activity

CHECKING = ("plan", "train")
"""Commands that check a run first."""
SILENT = {"--help", "--json"}
"""Options with which a command prints its answer and nothing else."""
_printed = set[str]()
"""Lines that are printed already: checks that are repeated after a value was fitted print nothing new."""


@contextmanager
def checks_shown(words: Sequence[str]) -> Iterator[None]:
    """Show what is being checked for these words of a command line; nothing during shell completion."""
    quiet = SILENT & {*words} or not {activity.QUIET, "_RLRUN_COMPLETE"}.isdisjoint(os.environ)
    if quiet or not words or words[0] not in CHECKING:
        yield
        return
    with activity.reported_to(show):
        activity.report("checking the settings")
        yield


def show(text: str, for_s: float) -> None:
    """Print an activity on standard error: on a terminal the next one replaces its line."""
    text = f"{text}, for {for_s:.0f} s" if for_s else text
    if sys.stderr.isatty():
        width = os.get_terminal_size(2).columns
        print(f"\r\033[2K{text[: width - 1]}", end="\r", file=sys.stderr, flush=True)
    elif text and text not in _printed:
        _printed.add(text)
        print(text, file=sys.stderr, flush=True)
