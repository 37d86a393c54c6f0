"""Events as lines of verl's console log, so that what people grep for in verl's logs they find in ours."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence

from launcher.core.events import (
    YEAR_9999,
    Alert,
    Ended,
    Event,
    HeldOutEpisodes,
    Loaded,
    LoggedEvent,
    Restarted,
    Resumed,
    Saved,
    Stalled,
    Started,
    Step,
    TrainingGroup,
    Waiting,
    WentOn,
)
from launcher.core.metrics import LEARNT_FROM, label, shown_values, watched
from launcher.core.numbers import compact, percent
from launcher.core.redaction import printable
from launcher.core.state import RunState
from launcher.monitor.agents import episode_lines, step_lines

LINE_S = 5.0
STALLED_S = 60.0  # seconds until a stalled run is reported again; each time twice as many
BAR = 10
FRAMES = 5  # stack frames shown of a stalled process
EIGHTHS = " ▏▎▍▌▋▊▉"
LARGE = 1e5  # from here on, numbers of the progress line have 4 significant digits
TEST_SCORE = re.compile(r"val-core/(.+)/reward/mean@[0-9]+")
EXPONENT = re.compile("e-0+")


class ProgressTimer:
    """Whether a line about progress is due: every `LINE_S` seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < LINE_S:
            return False
        self._last = now
        return True


def console_lines(event: Event, state: RunState, *, verbose: bool = False) -> list[str]:
    """The lines of `event` in console.log; `state` is the run after it. `verbose`: all about the steps of an agent."""
    return [" ".join(line.splitlines()) for line in _event_lines(event, state, verbose)]  # texts may hold line ends


def _event_lines(event: Event, state: RunState, verbose: bool) -> list[str]:
    match event:
        case Started():
            return [f"run {event.run}: {event.algorithm} on {event.processes} processes"]
        case Waiting():
            return list(_waiting_lines(event))
        case Loaded():
            return [data_line(event)]
        case Step():
            line = step_line(event)
            if event.step == 0:
                return [line]
            progress = progress_line(state, event.metrics) if state.steps else ""
            lines = line, progress, summary_line(event, state.steps)
            return [*filter(None, lines), *step_lines(event, state.steps, verbose=verbose)]
        case HeldOutEpisodes() | TrainingGroup():
            return episode_lines(event, state.first_reward, verbose=verbose)
        case Saved():
            return [f"saved {event.path}"]
        case Alert():
            return [f"alert at step {event.step}: {event.text}"]
        case Restarted():
            return [f"restart {state.restarts}: {event.why}; {_went_back_text(event)}"]
        case Resumed():
            return [f"resumed: {_went_back_text(event)}"]
        case Stalled():
            return [f"stalled after step {event.step}: {event.why}", *event.stack.splitlines()[:FRAMES]]
        case WentOn():
            return [f"continues after {event.after_s:.0f} s"]
        case Ended():
            return list(_end_lines(event, state))
    return []


def _waiting_lines(event: Waiting) -> Iterator[str]:
    if event.text:
        yield f"waiting: {event.text}{f', for {event.for_s:.0f} s' if event.for_s else ''}"


def screen_lines(event: Event, state: RunState, *, verbose: bool = False) -> list[str]:
    """The lines of `event` for output that is no terminal: those of console.log, but a short one for a step."""
    if isinstance(event, Step):
        return [short_line(event, state), *step_lines(event, state.steps, verbose=verbose)]
    return console_lines(event, state, verbose=verbose)


def short_line(event: Step, state: RunState) -> str:
    """`step 5/300: score 0.234, loss 0.12, tokens 34; held out gsm8k 0.57 [0.53–0.61]; 02:30 left`"""
    parts = [", ".join(f"{label(name)} {compact(value)}" for name, value in watched(event.metrics, 5))]
    if state.last and state.last.step == event.step:
        parts.append(f"held out {label(state.last.name)} {state.last.shown}")
    if event.step and state.eta_s is not None:
        parts.append(f"{clock(state.eta_s)} left")
    return f"step {event.step}/{state.steps or '?'}: {'; '.join(filter(None, parts))}"


def waiting(state: RunState, now: float) -> str:
    """What the run waits for, and since when: `reward my.py:3: sleep(60), row sums.csv:29, for 40 s`; empty where it
    goes on."""
    text = state.stalled or state.waits_for
    if not text or state.waits_since is None or state.status != "running":
        return text
    seconds = max(now - state.waits_since, 0.0)
    return f"{text}{', so far' if state.stalled else ', for'} {seconds:.0f} s"


def _end_lines(event: Ended, state: RunState) -> Iterator[str]:
    yield from (f"{name}: {text}" for name, text in results_of(state).items())
    why = unsaid(state)
    lines = [event.verdict.line] if event.verdict else []
    lines.append(f"{event.how}: {why}" if why else event.how)
    yield from reversed(lines) if event.how == "failed" else lines  # what was learned follows from why it failed


def unsaid(state: RunState) -> str:
    """Why a run ended as it did, without the reasons that its verdict names already."""
    verdict = state.verdict.line if state.verdict else ""
    return "; ".join(part for part in state.why.split("; ") if part not in verdict)


def data_line(event: Loaded) -> str:
    """How many rows the data has, without counts of 0: `data: 7000 rows, 256 held out, 3 refused; 90 steps`."""
    counts = {"held out": event.val_rows, "refused": event.refused + event.val_refused}
    others = [f", {count} {what}" for what, count in counts.items() if count]
    return f"data: {event.rows} rows{''.join(others)}; {event.steps} steps"


def next_command(following: Sequence[str], folder: str) -> str:
    """A command of rlrun and its arguments, for the run in `folder`."""
    verbs = 2 if following[0] == "checkpoints" else 1  # as in `rlrun checkpoints export RUN`
    return shlex.join(["rlrun", *following[:verbs], folder, *following[verbs:]])


def results_of(state: RunState) -> dict[str, str]:
    """The results of a run, by title, as far as they are known: answers, held-out scores, what it learnt from, and how
    far its weights moved."""
    texts = {"held out": held_out(state), "learnt from": _learnt_from_text(state), "weights moved": _moved_text(state)}
    return _answer_texts(state) | {name: text for name, text in texts.items() if text}


def _answer_texts(state: RunState) -> dict[str, str]:
    """`best answer: 4+3=? → 7  (step 40, score 1, expected 7)`, and the worst."""
    names = ("answer", "another answer")
    if len({answer.value for answer in state.answers if answer.score is not None}) > 1:
        names = ("best answer", "worst answer")
    texts = dict[str, str]()
    for name, answer in zip(names, state.answers, strict=False):
        notes = [f"step {answer.step}"]
        notes += [f"score {compact(answer.score)}"] if answer.score is not None else []
        notes += [f"expected {answer.ground_truth}"] if answer.ground_truth else []
        texts[name] = f"{answer.prompt} → {answer.response or '(empty)'}  ({', '.join(notes)})"
    return texts


def held_out(state: RunState) -> str:
    """The held-out score now, of the first validation, and of the best one:

    `arith 0.36 [0.32–0.4] at step 60; 0.57 [0.53–0.61] at step 0; best 0.61 [0.57–0.65] at step 20`
    """
    first, best, last = state.first, state.best, state.last
    if first is None or best is None or last is None:
        return ""
    parts = [f"{label(last.name)} {last.shown} at step {last.step}"]
    if first.step != last.step:
        parts.append(f"{first.shown} at step {first.step}")
        parts.append("its best" if best.step == last.step else f"best {best.shown} at step {best.step}")
    return "; ".join(parts)


def _learnt_from_text(state: RunState) -> str:
    tokens, groups, ended = (state.learnt_from.get(name) for name in LEARNT_FROM)
    parts = [f"{tokens[0]:,.0f} tokens with a loss"] if tokens else []
    if groups:
        parts.append(f"{groups[0] / groups[1]:.0%} of the groups with a gradient")
    if ended and groups:
        parts.append(f"{ended[0] / ended[1]:.0%} of the answers ended by themselves")
    elif ended:
        parts.append(f"{ended[0] / ended[1]:.0%} of the answers with a loss on their end")
    return ", ".join(parts)


def _moved_text(state: RunState) -> str:
    """The distances in percent of the norm that each part began with; of `lora_B`, which began at 0, its norm."""
    parts = {part: f"norm {compact(x)}" if part == "lora_B" else percent(x) for part, x in state.moved.items()}
    learnt = state.learnt_from.get(LEARNT_FROM[0], (1.0, 1))[0]
    by = "" if learnt or not parts else " by weight decay alone"
    return ", ".join(f"{part} {text}" for part, text in parts.items()) + by


def _went_back_text(event: Restarted | Resumed) -> str:
    return f"attempt {event.attempt} went back to {f'step {event.step}' if event.step else 'the beginning'}"


def step_line(event: Step) -> str:
    """`step:5 - training/global_step:5 - critic/score/mean:0.0234375 - ...`, with the scores of held-out data under
    the name of older versions of verl, too."""
    parts = [f"step:{event.step}"]
    for name, value in event.metrics.items():
        parts.append(f"{name}:{number(name, value)}")
        if name.startswith("val") and (source := TEST_SCORE.fullmatch(name)):
            parts.append(f"val/test_score/{source[1]}:{number(name, value)}")
    return " - ".join(parts)


def summary_line(event: Step, steps: int) -> str:
    """`Step 100/10000 | Loss: 0.234 | Reward: 0.856 | KL: 0.0012 | LR: 9.8e-7`, of those metrics that the step has;
    empty where it has none. The KL is that to the reference model."""
    shown = shown_values("summary", event.metrics)
    parts = [f"{place.name}: {EXPONENT.sub('e-', f'{value:.3g}')}" for _, place, value in shown]
    return " | ".join([f"Step {event.step}/{steps or '?'}", *parts]) if parts else ""


COUNTERS = {"training/global_step", "training/epoch", "perf/total_num_tokens", "train/loss_tokens"}


def number(name: str, value: float) -> str:
    """Counters as whole numbers, as in verl's log; others with seven digits, as events.jsonl has all of them."""
    return str(int(value)) if name in COUNTERS and math.isfinite(value) else repr(float(f"{value:.7g}"))


def progress_line(state: RunState, metrics: Mapping[str, float] | None = None) -> str:
    """`Training Progress:  15%|█▌        | 49/320 [1:06:07<4:11:40, 55.72s/it, policy_loss=-0.1249, reward=0.3531]`,
    with those of the catalogue's `progress` that `metrics` has."""
    share = state.step / state.steps if state.steps else 0.0
    eighths = int(share * BAR * 8)
    bar = "█" * (eighths // 8) + (EIGHTHS[eighths % 8].strip() if eighths < BAR * 8 else "")
    pace = state.seconds_per_step
    speed = "?s/it" if pace is None else f"{pace:.2f}s/it" if pace >= 1 else f"{1 / pace:.2f}it/s"
    left = "?" if state.eta_s is None else clock(state.eta_s)
    shown = shown_values("progress", metrics or {})
    values = "".join(f", {place.name}={_fixed(value, place.digits)}" for _, place, value in shown)
    counted = f"{state.step}/{state.steps} [{clock(state.elapsed_s)}<{left}, {speed}{values}]"
    return f"Training Progress: {share:4.0%}|{bar:<{BAR}}| {counted}"


def _fixed(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if abs(value) < LARGE else f"{value:.4g}"


def clock(seconds: float) -> str:
    """`1:06:07`, `02:30`"""
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{remainder:02d}" if hours else f"{minutes:02d}:{remainder:02d}"


def date(seconds: float | None) -> str:
    """`2026-11-22 18:56`, in local time; empty for a time that is unknown or beyond the calendar (`YEAR_9999`)."""
    known = seconds is not None and 0 < seconds < YEAR_9999
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if known else ""


class LinePrinter:
    """A sink that prints a run's lines until they cannot be written (`| head`); the run goes on."""

    def __init__(self) -> None:
        self._output_open, self._next_line_s = True, STALLED_S

    def write(self, state: RunState, events: Sequence[LoggedEvent], lines: Sequence[str]) -> None:
        all_lines = [*lines, *self._still_stalled(state)]
        try:
            for line in all_lines if self._output_open else []:
                print(printable(line), flush=True)
        except OSError:  # a closed pipe or a full disk; console.log has everything
            self._output_open = False

    def _still_stalled(self, state: RunState) -> Iterator[str]:
        """The line that a run is still stalled, at most once each time that the stall has doubled."""
        lasts_s = time.time() - state.waits_since if state.stalled and state.waits_since else 0.0
        if lasts_s >= self._next_line_s:
            yield f"stalled: {waiting(state, time.time())}"
        self._next_line_s = 2 * lasts_s if lasts_s >= self._next_line_s else self._next_line_s if lasts_s else STALLED_S

    def close(self) -> None:
        """Standard output stays open."""
