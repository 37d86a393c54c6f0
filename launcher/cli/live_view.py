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

REDRAW_S = 0.25  # a picture costs as much as a thousand events
OUTCOMES = {"learned": "green", "not learned": "yellow", "harmed": "red"}
COLOURS = {"finished": "green", "failed": "red", "stopped": "yellow", "running": "cyan", "waiting": "dim"}


@contextmanager
def watching(console: Console | None = None) -> Iterator[Sink]:
    """What happens in a run is shown: drawn on a terminal, printed as verl's lines elsewhere."""
    console = console or Console(file=sys.stdout)
    if not console.is_terminal:
        with closing(LinePrinter()) as printer:
            yield printer
        return
    with closing(LiveView(console)) as view, reported_to(view.show_activity):
        yield view


class Drawing:
    """What is drawn on a terminal again and again, in the same place. A terminal that was closed ends nothing."""

    def __init__(self, console: Console, *, transient: bool = False) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=transient)
        self._drawn_at = 0.0
        with suppress(OSError):
            self._live.start()

    def draw(self, draw: Callable[[], RenderableType], *, now: bool = False) -> None:
        """What `draw` makes, unless something was drawn a moment ago; `now` in any case."""
        if now or time.monotonic() - self._drawn_at >= REDRAW_S:
            self._drawn_at = time.monotonic()
            with suppress(OSError):
                self._live.update(draw(), refresh=True)

    def close(self) -> None:
        with suppress(OSError):
            self._live.stop()


class LiveView(Drawing):
    """Draws the run's state."""

    def show_activity(self, text: str, for_s: float) -> None:
        """Before the run has any state."""
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
        parts += [Text(), _curve(state)]
    parts += _news(state, now)
    return Panel(Group(*parts), title=title, title_align="left", border_style=border, padding=(0, 2))


def colour(state: RunState) -> str:
    """That of its status; of a run that reached its end and is doubtful, another."""
    return "yellow" if state.doubtful else COLOURS[state.status]


def _progress(state: RunState, now: float, style: str) -> RenderableType:
    row = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, 1, None):
        row.add_column(ratio=ratio, no_wrap=True)
    busy = state.phase if state.status == "running" else state.status
    bar = ProgressBar(total=max(state.steps, 1), completed=state.step, complete_style=style, finished_style=style)
    row.add_row(Text(printable(busy or "loading"), f"bold {style}"), bar, f"{state.step}/{state.steps or '?'}")
    running = state.status == "running" and state.started_at is not None
    elapsed = now - state.started_at if running and state.started_at else state.elapsed_s
    left = clock(state.eta_s) if running and state.eta_s is not None else ""
    begun = f"  ·  started {date(state.started_at)}" if date(state.started_at) else ""
    time_row = Text(f"{clock(elapsed)} elapsed" + (f"  ·  {left} left" if left else "") + begun, "dim")
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


def _curve(state: RunState) -> Text:
    values = (*state.curve.points, *state.curve.waiting[-1:])
    return Text.assemble((f"{label(state.score_name)}  ", "dim"), (sparkline(values), "cyan"))


def _used(usage: Sequence[Usage]) -> str:
    """Of all processes together: their GPUs, of which the fullest and the hottest matter; without any, CPU and memory
    of the processes, and of the fullest machine."""
    shares = [each.gpu_percent for each in usage if each.gpu_percent is not None]
    full = max(usage, key=lambda each: (each.gpu_memory_bytes or 0) / (each.gpu_memory_total_bytes or 1))
    heat = [each.gpu_celsius for each in usage if each.gpu_celsius is not None]
    parts = [f"GPU {sum(shares) / len(shares):.0f} %"] if shares else []
    if full.gpu_memory_bytes is not None and full.gpu_memory_total_bytes is not None:
        parts.append(f"{_gb(full.gpu_memory_bytes)} of {_gb(full.gpu_memory_total_bytes)} GB")
    parts += [f"{max(heat):.0f} °C"] if heat else []
    return "  ·  ".join(parts or _used_without_gpu(usage))


def _used_without_gpu(usage: Sequence[Usage]) -> list[str]:
    full = max(usage, key=lambda each: (each.machine_memory_bytes or 0) / (each.machine_memory_total_bytes or 1))
    cpu, memory = sum(each.cpu_percent or 0.0 for each in usage), sum(each.memory_bytes or 0 for each in usage)
    of_all = f"machine {_gb(full.machine_memory_bytes or 0)} of {_gb(full.machine_memory_total_bytes or 0)} GB"
    return [f"CPU {cpu:.0f} %", f"{_gb(memory)} GB", of_all]


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f}"


def _news(state: RunState, now: float) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if state.usage:
        lines.append(Text.assemble(("in use  ", "dim"), _used(list(state.usage.values()))))
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
