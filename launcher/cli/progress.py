"""Progress of work on standard error: a changing line on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.cli.output import err, progress_line, tell
from launcher.hubs.progress import Progress
from launcher.monitor.console import ProgressTimer, clock

if TYPE_CHECKING:
    from launcher.spec.data import OnDataProgress


@contextmanager
def show_bytes() -> Iterator[Callable[..., None]]:
    """The callback that shows `done` of `total` bytes of a step on standard error, with speed and remaining time;
    `more` is shown beside them."""
    began, timer = dict[str, float](), ProgressTimer()
    with progress_line(lines=True) as show_line:

        def show(doing: str, done: int, total: int, more: str = "") -> None:
            now = time.monotonic()
            began.setdefault(doing, now)
            if err.is_terminal or timer.due():
                speed = done / (now - began[doing]) if now > began[doing] else 0.0
                left = clock((total - done) / speed) if speed else "?"
                size = f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB, {speed / 1e6:,.1f} MB/s"
                show_line(f"{doing} {size}, {left} left{f', {more}' if more else ''}")

        yield show


@contextmanager
def show_download() -> Iterator[Callable[[Progress], None]]:
    """The callback that shows a download's progress, and notes on failures that are retried."""
    with show_bytes() as show:

        def watch(progress: Progress) -> None:
            for note in progress.notes:
                tell(note, "yellow")
            files = f"{progress.done_files} of {progress.total_files} files"
            show("download", progress.done_bytes, progress.total_bytes, files)

        yield watch


@contextmanager
def show_data_progress() -> Iterator[OnDataProgress]:
    """The callback that shows the progress of downloading and preparing data."""
    with show_bytes() as show:
        yield lambda at: show(
            at.doing, at.done_bytes, at.bytes, f"{at.rows:,} rows, {at.rows_per_s:,.0f} rows/s" if at.rows else ""
        )
