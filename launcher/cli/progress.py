"""Progress of work on standard error: bars on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
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
    columns = (TextColumn("{task.description:<12}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    more = TextColumn("{task.fields[more]}", markup=False)
    with Bars(*columns, more, TimeRemainingColumn(), console=err, transient=True) as bars:
        yield _byte_bars(bars)


def _byte_bars(bars: Bars) -> ShowBytes:
    tasks: dict[str, TaskID] = {}

    def show(doing: str, done: int, total: int, more: str = "") -> None:
        if doing not in tasks:
            tasks[doing] = bars.add_task(printable(doing), total=None, more="")
        bars.update(tasks[doing], completed=done, total=total, more=more)

    return show


def _byte_lines() -> ShowBytes:
    began = dict[str, float]()
    seldom = Seldom()

    def show(doing: str, done: int, total: int, more: str = "") -> None:
        now = time.monotonic()
        began.setdefault(doing, now)
        if not seldom.due():
            return
        speed = done / (now - began[doing]) if now > began[doing] else 0.0
        left = clock((total - done) / speed) if speed else "?"
        line = f"{done / 1e6:,.0f}/{total / 1e6:,.0f} MB, {speed / 1e6:,.0f} MB/s{', ' if more else ''}{more}"
        err.print(f"{printable(doing)} {line}, {left} left", style="dim", markup=False, soft_wrap=True)

    return show


@contextmanager
def show_download(console: Console | None = None) -> Iterator[Callable[[Progress], None]]:
    """The callback that shows a download's progress."""
    console = console or err
    if not console.is_terminal:
        yield _download_lines(console)
        return
    what, speed = (TextColumn("{task.description}"), BarColumn()), (TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*what, DownloadColumn(), *speed, console=console) as bars:
        yield _download_bars(bars)


def _download_bars(bars: Bars) -> Callable[[Progress], None]:
    tasks: dict[str, TaskID] = {}

    def watch(progress: Progress) -> None:
        for note in progress.notes:
            bars.console.print(Text(printable(note), "yellow"), soft_wrap=True)
        for file in progress.files:
            if file.state in ("waiting", "done") and file.path not in tasks:
                continue  # only files in progress have a bar
            if file.path not in tasks:
                name = escape(printable(file.path))
                tasks[file.path] = bars.add_task(name, total=file.size, completed=file.done_bytes)
            bars.update(tasks[file.path], completed=file.done_bytes, visible=file.state != "done")
        if "" not in tasks:
            tasks[""] = bars.add_task("[bold]all", total=progress.total_bytes, completed=progress.done_bytes)
        bars.update(tasks[""], total=progress.total_bytes, completed=progress.done_bytes)

    return watch


def _download_lines(console: Console) -> Callable[[Progress], None]:
    seldom = Seldom()

    def watch(progress: Progress) -> None:
        for note in progress.notes:
            console.print(Text(printable(note)), soft_wrap=True)
        if not seldom.due():
            return
        left = f", {clock(progress.eta_s)} left" if progress.eta_s is not None else ""
        console.print(
            f"{progress.done_bytes / 1e6:,.1f} of {progress.total_bytes / 1e6:,.1f} MB,"
            f" {progress.bytes_per_s / 1e6:.1f} MB/s{left}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip

    return watch
