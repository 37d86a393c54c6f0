"""Bytes that are worked through, shown: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from launcher.cli.say import err
from launcher.monitor.lines import clock

Show = Callable[[str, int, int], None]
SELDOM_S = 10.0


@contextmanager
def counted() -> Iterator[Show]:
    """Shows what is being done and how many of how many bytes are done, with speed and time left, on standard error."""
    if not err.is_terminal:
        yield _line_printer()
        return
    columns = (TextColumn("{task.description:<12}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda doing, done, total: progress.update(task, description=doing, completed=done, total=total)


def _line_printer() -> Show:
    began = time.monotonic()
    last = [began]

    def show(doing: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] < SELDOM_S:
            return
        last[0] = now
        speed = done / (now - began)
        left = clock((total - done) / speed) if speed else "?"
        err.print(f"{doing} {done / 1e6:,.0f}/{total / 1e6:,.0f} MB, {speed / 1e6:,.0f} MB/s, {left} left", style="dim")

    return show
