"""Progress in bytes: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from launcher.cli.output import err, printable
from launcher.monitor.console import Seldom, clock


class Show(Protocol):
    def __call__(self, doing: str, done: int, total: int, more: str = "") -> None:
        """`done` of `total` bytes of the step `doing`; `more` is shown beside them."""


@contextmanager
def counted() -> Iterator[Show]:
    """Show progress with speed and remaining time on standard error."""
    if not err.is_terminal:
        yield _line_printer()
        return
    columns = (TextColumn("{task.description:<12}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    more = TextColumn("{task.fields[more]}", markup=False)
    with Progress(*columns, more, TimeRemainingColumn(), console=err, transient=True) as progress:
        yield _drawn(progress)


def _drawn(progress: Progress) -> Show:
    tasks: dict[str, TaskID] = {}

    def show(doing: str, done: int, total: int, more: str = "") -> None:
        if doing not in tasks:
            tasks[doing] = progress.add_task(printable(doing), total=None, more="")
        progress.update(tasks[doing], completed=done, total=total, more=more)

    return show


def _line_printer() -> Show:
    began = dict[str, float]()
    seldom = Seldom()

    def show(doing: str, done: int, total: int, more: str = "") -> None:
        now = time.monotonic()
        began.setdefault(doing, now)
        if not seldom.due():
            return
        speed = done / (now - began[doing]) if now > began[doing] else 0.0
        left = clock((total - done) / speed) if speed else "?"
        told = f"{done / 1e6:,.0f}/{total / 1e6:,.0f} MB, {speed / 1e6:,.0f} MB/s{', ' if more else ''}{more}"
        err.print(f"{printable(doing)} {told}, {left} left", style="dim", markup=False, soft_wrap=True)

    return show
