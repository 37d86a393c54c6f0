"""What is seen of a run's checks, from a line that is printed before anything is loaded that takes time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from launcher.core import activity

CHECKING = ("plan", "train")
"""Commands that check a run first."""
SILENT = {"--help", "--json", "--yaml"}
"""With these a command prints its answer and nothing else."""
_printed = set[str]()
"""Lines that stand already: what is checked again after a value was fitted is no news."""


@contextmanager
def checks_shown(words: Sequence[str]) -> Iterator[None]:
    """What is checked for these words of a command line is shown meanwhile; nothing while a shell completes them."""
    quiet = SILENT & {*words} or not {activity.QUIET, "_RLRUN_COMPLETE"}.isdisjoint(os.environ)
    if quiet or not words or words[0] not in CHECKING:
        yield
        return
    with activity.reported_to(show):
        activity.report("checking the settings")
        yield


def show(text: str, for_s: float) -> None:
    """On standard error: a line that the next one takes the place of on a terminal, and a line each elsewhere."""
    text = f"{text}, for {for_s:.0f} s" if for_s else text
    if sys.stderr.isatty():
        width = os.get_terminal_size(2).columns
        print(f"\r\033[2K{text[: width - 1]}", end="\r", file=sys.stderr, flush=True)
    elif text and text not in _printed:
        _printed.add(text)
        print(text, file=sys.stderr, flush=True)
