"""Progress of work on standard error: bars on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from launcher.cli.output import err
from launcher.core.redaction import printable
from launcher.hubs.progress import Progress
from launcher.monitor.console import Seldom, clock


class ShowBytes(Protocol):
    def __call__(self, doing: str, done: int, total: int, more: str = "") -> None:
        """`done` of `total` bytes of the step `doing`; `more` is shown beside them."""


@contextmanager
def show_bytes() -> Iterator[ShowBytes]:
    """Show progress with speed and remaining time on standard error."""
    if not err.is_terminal:
        yield _byte_lines()
        return
    with _bars(err, TextColumn("{task.fields[more]}", markup=False)) as bars:
        tasks: dict[str, TaskID] = {}

        def show(doing: str, done: int, total: int, more: str = "") -> None:
            if doing not in tasks:
                tasks[doing] = bars.add_task(printable(doing), total=None, more="")
            bars.update(tasks[doing], completed=done, total=total, more=more)

        yield show


def _bars(console: Console, *more: TextColumn) -> Bars:
    what = TextColumn("{task.description}", markup=False)
    columns = (what, BarColumn(), DownloadColumn(), TransferSpeedColumn(), *more, TimeRemainingColumn())
    return Bars(*columns, console=console, transient=True)


def _byte_lines() -> ShowBytes:
    began, seldom = dict[str, float](), Seldom()

    def show(doing: str, done: int, total: int, more: str = "") -> None:
        now = time.monotonic()
        began.setdefault(doing, now)
        if seldom.due():
            speed = done / (now - began[doing]) if now > began[doing] else 0.0
            left = clock((total - done) / speed) if speed else "?"
            parts = [f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB", f"{speed / 1e6:,.1f} MB/s", more, f"{left} left"]
            line = f"{printable(doing)} {', '.join(part for part in parts if part)}"
            err.print(line, style="dim", markup=False, soft_wrap=True, highlight=False)

    return show


@contextmanager
def show_download(console: Console | None = None) -> Iterator[Callable[[Progress], None]]:
    """The callback that shows a download's progress."""
    console = console or err
    if not console.is_terminal:
        yield _download_lines(console)
        return
    with _bars(console) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(progress: Progress) -> None:
            _say_notes(progress, bars.console)
            for file in progress.files:
                if file.path not in tasks and file.state not in ("waiting", "done"):  # only files in progress
                    tasks[file.path] = bars.add_task(printable(file.path), total=file.size)
                if file.path in tasks:
                    bars.update(tasks[file.path], completed=file.done_bytes, visible=file.state != "done")
            if "" not in tasks:
                tasks[""] = bars.add_task("all")
            bars.update(tasks[""], total=progress.total_bytes, completed=progress.done_bytes)

        yield watch


def _say_notes(progress: Progress, console: Console) -> None:
    for note in progress.notes:
        console.print(Text(printable(note), "yellow"), soft_wrap=True)


def _download_lines(console: Console) -> Callable[[Progress], None]:
    seldom = Seldom()

    def watch(progress: Progress) -> None:
        _say_notes(progress, console)
        if seldom.due():
            left = f", {clock(progress.eta_s)} left" if progress.eta_s is not None else ""
            done, total, speed = progress.done_bytes, progress.total_bytes, progress.bytes_per_s
            line = f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB, {speed / 1e6:.1f} MB/s{left}"
            console.print(line, soft_wrap=True, highlight=False)

    return watch
