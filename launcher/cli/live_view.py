"""The live view of a run on a terminal; plain lines where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launcher.cli.plot import sparkline
from launcher.core.activity import reported_to
from launcher.core.events import LoggedEvent, Usage
from launcher.core.metrics import label, watched
from launcher.core.numbers import compact
from launcher.core.redaction import printable
from launcher.core.state import RunState, Sink
from launcher.monitor.console import LinePrinter, clock, date, results_of, unsaid, waiting

REDRAW_S = 0.25  # least time between two pictures; one costs as much as a thousand events
OUTCOMES = {"learned": "green", "not learned": "yellow", "harmed": "red"}
COLOURS = {"finished": "green", "failed": "red", "stopped": "yellow", "running": "cyan", "waiting": "dim"}


@contextmanager
def watching(console: Console | None = None) -> Iterator[Sink]:
    """The sink that shows a run: drawn on a terminal, printed as lines like verl's elsewhere."""
    console = console or Console(file=sys.stdout)
    if not console.is_terminal:
        with closing(LinePrinter()) as printer:
            yield printer
        return
    with closing(LiveView(console)) as view, reported_to(view.show_activity):
        yield view


class Drawing:
    """A picture that is redrawn in place on a terminal. A terminal that was closed is no error."""

    def __init__(self, console: Console, *, transient: bool = False) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=transient)
        self._drawn_at = 0.0
        with suppress(OSError):
            self._live.start()

    def draw(self, draw: Callable[[], RenderableType], *, now: bool = False) -> None:
        """Show what `draw` returns, unless less than REDRAW_S has passed since the last picture; with `now` always."""
        if now or time.monotonic() - self._drawn_at >= REDRAW_S:
            self._drawn_at = time.monotonic()
            with suppress(OSError):
                self._live.update(draw(), refresh=True)

    def close(self) -> None:
        with suppress(OSError):
            self._live.stop()


class LiveView(Drawing):
    """A sink that draws the run's state."""

    def show_activity(self, text: str, for_s: float) -> None:
        """Show an activity before the run has any state."""
        self.write(RunState(status="running", phase=text), [], [])

    def write(self, state: RunState, events: Sequence[LoggedEvent], lines: Sequence[str]) -> None:
        ended = state.status in ("finished", "failed", "stopped") and bool(events)
        self.draw(lambda: picture(state, time.time()), now=ended)


def picture(state: RunState, now: float) -> RenderableType:
    """One panel: where the run is, the numbers that matter, the score's curve, the last validation and alert."""
    border = colour(state)
    title = Text.assemble((printable(state.run or "starting"), "bold"), "  ", (printable(state.algorithm), "dim"))
    parts: list[RenderableType] = [_progress(state, now, border), Text(), _numbers(state)]
    if state.score is not None:
        curve = sparkline((*state.curve.points, *state.curve.waiting[-1:]))
        parts += [Text(), Text.assemble((f"{label(state.score_name)}  ", "dim"), (curve, "cyan"))]
    parts += _notices(state, now)
    return Panel(Group(*parts), title=title, title_align="left", border_style=border, padding=(0, 2))


def colour(state: RunState) -> str:
    """The colour of the run's status; yellow where it finished with a doubtful result."""
    return "yellow" if state.doubtful else COLOURS[state.status]


def _progress(state: RunState, now: float, style: str) -> RenderableType:
    row = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, 1, None):
        row.add_column(ratio=ratio, no_wrap=True)
    phase = state.phase if state.status == "running" else state.status
    bar = ProgressBar(total=max(state.steps, 1), completed=state.step, complete_style=style, finished_style=style)
    row.add_row(Text(printable(phase or "loading"), f"bold {style}"), bar, f"{state.step}/{state.steps or '?'}")
    running = state.status == "running" and state.started_at is not None
    elapsed = now - state.started_at if running and state.started_at else state.elapsed_s
    left = clock(state.eta_s) if running and state.eta_s is not None else ""
    started = f"  ·  started {date(state.started_at)}" if date(state.started_at) else ""
    time_row = Text(f"{clock(elapsed)} elapsed" + (f"  ·  {left} left" if left else "") + started, "dim")
    return Group(row, time_row)


def _numbers(state: RunState) -> RenderableType:
    table = Table.grid(padding=(0, 3), expand=True)
    numbers = watched(state.metrics)
    for _ in range(3):
        table.add_column(ratio=1)
    cells = [Text.assemble((f"{label(name)} ", "dim"), (compact(value), "bold")) for name, value in numbers]
    cells += [Text()] * (-len(cells) % 3)
    for start in range(0, len(cells), 3):
        table.add_row(*cells[start : start + 3])
    return table


def _usage_text(usage: Sequence[Usage]) -> str:
    """Usage of all processes: the mean load of their GPUs, memory of the fullest and temperature of the hottest one;
    without GPUs, CPU and memory of the processes, and memory of the fullest machine."""
    shares = [each.gpu_percent for each in usage if each.gpu_percent is not None]
    fullest = max(usage, key=lambda each: (each.gpu_memory_bytes or 0) / (each.gpu_memory_total_bytes or 1))
    temperatures = [each.gpu_celsius for each in usage if each.gpu_celsius is not None]
    parts = [f"GPU {sum(shares) / len(shares):.0f} %"] if shares else []
    if fullest.gpu_memory_bytes is not None and fullest.gpu_memory_total_bytes is not None:
        parts.append(f"{_gb(fullest.gpu_memory_bytes)} of {_gb(fullest.gpu_memory_total_bytes)} GB")
    parts += [f"{max(temperatures):.0f} °C"] if temperatures else []
    return "  ·  ".join(parts or _cpu_usage_parts(usage))


def _cpu_usage_parts(usage: Sequence[Usage]) -> list[str]:
    fullest = max(usage, key=lambda each: (each.machine_memory_bytes or 0) / (each.machine_memory_total_bytes or 1))
    cpu, memory = sum(each.cpu_percent or 0.0 for each in usage), sum(each.memory_bytes or 0 for each in usage)
    machine = f"machine {_gb(fullest.machine_memory_bytes or 0)} of {_gb(fullest.machine_memory_total_bytes or 0)} GB"
    return [f"CPU {cpu:.0f} %", f"{_gb(memory)} GB", machine]


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f}"


def _notices(state: RunState, now: float) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if state.usage:
        lines.append(Text.assemble(("in use  ", "dim"), _usage_text(list(state.usage.values()))))
    lines += [Text.assemble((f"{name}  ", "dim"), printable(text)) for name, text in results_of(state).items()]
    kind = state.verdict.kind if state.verdict else ""
    parts = (
        ("stalled" if state.stalled else "waiting", "yellow", waiting(state, now)),
        ("checkpoint", "", state.checkpoint),
        ("restarts", "yellow", str(state.restarts or "")),
        ("alert", "yellow", state.alert),
        (state.status, colour(state), "" if state.status == "running" else unsaid(state)),
        ("outcome", OUTCOMES.get(kind, ""), state.verdict.line if state.verdict else ""),
    )  # fmt: skip
    for name, style, text in parts:
        if text:
            lines.append(Text.assemble((f"{name}  ", f"bold {style}" if style else "dim"), printable(text)))
    return [Text(), *lines] if lines else []
