"""Progress of a download on standard error: bars on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from launcher.cli.output import err, printable
from launcher.hubs.progress import Progress
from launcher.monitor.console import Seldom, clock


@contextmanager
def show_download(console: Console | None = None) -> Iterator[Callable[[Progress], None]]:
    """The callback that shows a download's progress."""
    console = console or err
    if not console.is_terminal:
        yield _print_lines(console)
        return
    what, speed = (TextColumn("{task.description}"), BarColumn()), (TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*what, DownloadColumn(), *speed, console=console) as bars:
        yield _draw_bars(bars)


def _draw_bars(bars: Bars) -> Callable[[Progress], None]:
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


def _print_lines(console: Console) -> Callable[[Progress], None]:
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
