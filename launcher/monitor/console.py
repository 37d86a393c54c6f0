"""Events as lines of verl's console log, so that what people grep for in verl's logs they find in ours."""

from __future__ import annotations

import time

from launcher.core.events import (
    Alert,
    Ended,
    Event,
    Loaded,
    Restarted,
    Resumed,
    Saved,
    Stalled,
    Started,
    Step,
    Waiting,
    WentOn,
)
from launcher.core.metrics import label
from launcher.core.problems import short_repr
from launcher.core.state import RunState

LINE_S = 5.0
BAR = 10
FRAMES = 5  # shown of a stalled process's stack
EIGHTHS = " ▏▎▍▌▋▊▉"


class Seldom:
    """Whether a line about progress is due: every `LINE_S` seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < LINE_S:
            return False
        self._last = now
        return True


def console_lines(event: Event, state: RunState) -> list[str]:
    """The lines of `event` in console.log; `state` is the run after it."""
    return [" ".join(line.splitlines()) for line in _lines(event, state)]  # whatever a name or a text holds


def _lines(event: Event, state: RunState) -> list[str]:
    match event:
        case Started():
            return [f"run {event.run}: {event.algorithm} on {event.processes} processes"]
        case Waiting():
            return [f"waiting: {event.text}"]
        case Loaded():
            held_out = f", {event.val_rows} held out" if event.val_rows else ""
            refused = event.refused + event.val_refused
            more = f", {refused} refused" if refused else ""
            return [f"data: {event.rows} rows{held_out}{more}; {event.steps} steps"]
        case Step():
            line = step_line(event)
            return [line] if event.step == 0 else [line, progress_line(state)]
        case Saved():
            return [f"saved {event.path}"]
        case Alert():
            return [f"alert at step {event.step}: {event.text}"]
        case Restarted():
            return [f"restart {state.restarts}: {event.why}; {_went_back(event)}"]
        case Resumed():
            return [f"resumed: {_went_back(event)}"]
        case Stalled():
            return [f"stalled after step {event.step}: {event.why}", *event.stack.splitlines()[:FRAMES]]
        case WentOn():
            return [f"continues after {event.after_s:.0f} s"]
        case Ended():
            result = held_out_change(state)
            shown = [f"held out: {' '.join(result)}"] if result else []
            return [*shown, f"{event.how}{': ' + event.why if event.why else ''}"]
    return []


def held_out_change(state: RunState) -> list[str]:
    """What held-out data says of the run: where it stands, how far it came, and its best; nothing where it was not
    measured.

    `arith 0.36 [0.32-0.4]`, `-0.21 since step 0`, `(best 0.61 [0.57-0.65] at step 20)`
    """
    first, best, last = state.first, state.best, state.last
    if first is None or best is None or last is None:
        return []
    parts = [f"{label(last.name)} {last.shown}"]
    if first.step != last.step:
        parts.append(f"{last.value - first.value:+.3g} since step {first.step}")
    if best.step not in (first.step, last.step):
        parts.append(f"(best {best.shown} at step {best.step})")
    return parts


def _went_back(event: Restarted | Resumed) -> str:
    return f"attempt {event.attempt} went back to {f'step {event.step}' if event.step else 'the beginning'}"


def step_line(event: Step) -> str:
    """`step:5 - training/global_step:5 - critic/score/mean:0.0234375 - ...`"""
    return " - ".join([f"step:{event.step}", *(f"{name}:{number(name, x)}" for name, x in event.metrics.items())])


def number(name: str, value: float) -> str:
    """Counters are whole numbers, as in verl's log."""
    whole = name in ("training/global_step", "training/epoch", "perf/total_num_tokens")
    return str(int(value)) if whole else repr(float(value))


def progress_line(state: RunState) -> str:
    """`Training Progress:  15%|█▌        | 49/320 [1:06:07<4:11:40, 55.72s/it]`"""
    share = state.step / state.steps if state.steps else 0.0
    eighths = int(share * BAR * 8)
    bar = "█" * (eighths // 8) + (EIGHTHS[eighths % 8].strip() if eighths < BAR * 8 else "")
    pace = state.seconds_per_step
    speed = "?s/it" if pace is None else f"{pace:.2f}s/it" if pace >= 1 else f"{1 / pace:.2f}it/s" if pace else "?it/s"
    left = "?" if state.eta_s is None else clock(state.eta_s)
    counted = f"{state.step}/{state.steps} [{clock(state.elapsed_s)}<{left}, {speed}]"
    return f"Training Progress: {share:4.0%}|{bar:<{BAR}}| {counted}"


def clock(seconds: float) -> str:
    """`1:06:07`, `02:30`"""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def compact(value: float) -> str:
    """A number for a screen: four significant digits."""
    return short_repr(value) if value != value else f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
