"""Stalls: when no event arrives for too long, since when, and which process the others wait for.

Pure: times, events and stacks are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from launcher.core.events import Event, Loaded, Phase, Saved, Stalled, Started, Step
from launcher.core.numbers import compact
from launcher.core.state import RunState
from launcher.core.user_code import own_places, shown_line
from launcher.spec.cluster import Stack

UNKNOWN_S = 600.0  # limit for a phase whose usual duration is not known yet
LATE_S = 1.0  # most silence that counts between two looks: what delayed the launcher may have delayed the processes
OWN_TIME = ("loading", "validating", "saving")  # phases with a usual duration of their own, not that of a step
STACK_CHARS = 8000  # most characters of a stack that are reported
TOP_FRAMES = 4  # a process waits for others if one of so many innermost frames matches `WAITS`
FRAME = re.compile(r'File "(.+)", line (\d+)')
WAITS = re.compile(r"torch/distributed/|torch/nn/parallel/|engines/torch/(parallel/world|rollout/vllm/link)\.py")


class StallDetector:
    """Watches one attempt. `now` is any monotonic clock in seconds."""

    def __init__(self, factor: float, grace_s: float, before: Iterable[Event], now: float) -> None:
        """`before` are the events of earlier attempts, which show how long a checkpoint takes."""
        self._factor, self._grace_s = factor, grace_s
        self._longest: dict[str, float] = {}
        self._phase, self._since = "", 0.0
        for event in before:
            self._track_phase(event, event.at)
        self._phase, self._since = "loading", now
        self.silent_s, self._looked_at, self._reported = 0.0, now, False
        self._next_probe_s = grace_s

    def hear(self, events: Sequence[Event], now: float) -> float | None:
        """The duration in seconds of a reported stall that these events end; None where there was none."""
        for event in events:
            self._track_phase(event, now)
        self._add_silence(now)
        stalled_s = self.silent_s if self._reported else None
        self.silent_s, self._reported, self._next_probe_s = 0.0, False, self._grace_s
        return stalled_s

    def stalls(self, state: RunState, now: float, any_stopped: Callable[[], bool] = lambda: False) -> str:
        """The message about a stall, once; empty while there is none. `any_stopped` tells whether a process was stopped
        from outside, which is a stall at once; it is called only in phases whose usual duration is unknown."""
        self._add_silence(now)
        usual = self._usual_s(state)
        limit = UNKNOWN_S if usual is None else self._factor * usual + self._grace_s
        if self._reported or not (self.silent_s > limit or (usual is None and self._probe_stopped(any_stopped))):
            return ""
        self._reported = True
        doing = self._phase or state.phase or "training"
        which = "which" if self._phase else "where a step"
        took = "was not seen before" if usual is None else f"took {compact(usual)} s before"
        return f"nothing for {self.silent_s:.0f} s in phase {doing}, {which} {took}"

    def _probe_stopped(self, any_stopped: Callable[[], bool]) -> bool:
        """Call `any_stopped` after a silence, and again once that is `factor` times as long: it slows processes."""
        if self.silent_s <= self._next_probe_s:
            return False
        self._next_probe_s = self._factor * self.silent_s + max(self._grace_s, LATE_S)
        return any_stopped()

    def _add_silence(self, now: float) -> None:
        self.silent_s += min(now - self._looked_at, LATE_S)
        self._looked_at = now

    def _usual_s(self, state: RunState) -> float | None:
        """Seconds that the current phase or step usually takes; None before one was seen."""
        if self._phase:
            return self._longest.get(self._phase)
        return state.seconds_per_step if len(state.marks) > 2 else None

    def _track_phase(self, event: Event, now: float) -> None:
        """Note the phase and how long the last one took. A phase ends with its result or the next phase."""
        if isinstance(event, Loaded | Step | Saved):
            phase = ""
        elif isinstance(event, Started):
            phase = "loading"
        elif isinstance(event, Phase):
            phase = event.name if event.name in OWN_TIME else ""
        else:
            return
        if phase == self._phase:
            return
        if self._phase:
            self._longest[self._phase] = max(self._longest.get(self._phase, 0.0), now - self._since)
        self._phase, self._since = phase, now


Rule = Callable[[Stack], bool]
STANDS: Sequence[tuple[Rule, str]] = (
    (lambda stack: stack.state in ("T", "t"), "was stopped, as by SIGSTOP"),
    (lambda stack: stack.state in ("Z", "X"), "has ended"),
    (lambda stack: stack.state == "D" and not stack.text, "waits for a disk or a network drive"),
)


def any_stopped(stacks: Sequence[Stack]) -> bool:
    """Whether a process was stopped, as by SIGSTOP; a process that a debugger holds (state t) does not count."""
    return any(stack.state == "T" for stack in stacks)


def stalled(why: str, stacks: Sequence[Stack], state: RunState, for_s: float = 0.0) -> Stalled:
    """The event of a stall: which processes stalled, and where; `why` is the stall detector's message."""
    if state.waits_for and not any(rule(stack) for rule, _ in STANDS for stack in stacks):
        return Stalled(step=state.step, rank=None, why=f"{why}; it waits for {state.waits_for}", stack="", for_s=for_s)
    if not stacks:
        return Stalled(step=state.step, rank=None, why=why, stack="", for_s=for_s)
    culprits, problem = _find_culprits(stacks)
    who = ", ".join(f"rank {stack.rank} (process {stack.pid} on {stack.host})" for stack in culprits)
    message = f"{why}; {who}: {problem}" if culprits else f"{why}; {problem}"
    rank = culprits[0].rank if culprits else None
    stack = next((_main_thread_first(stack.text) for stack in culprits if stack.text), "")
    return Stalled(step=state.step, rank=rank, why=message, stack=stack[:STACK_CHARS], for_s=for_s)


def _find_culprits(stacks: Sequence[Stack]) -> tuple[Sequence[Stack], str]:
    """(processes that the others wait for, what is wrong with them); no process where that is unknown."""
    for rule, problem in STANDS:
        if matching := [stack for stack in stacks if rule(stack)]:
            return matching, problem
    silent = [stack for stack in stacks if not stack.text]
    if len(silent) == len(stacks) != 1:
        return [], "no process answers"
    if silent:
        return silent, "does not answer"
    busy = [stack for stack in stacks if not _waits_for_others(stack.text)]
    if busy and len(stacks) == 1:
        return busy, f"at {_innermost_line(busy[0].text)}"
    if 0 < len(busy) < len(stacks):
        return busy, f"at {_innermost_line(busy[0].text)}, and the others wait for it"
    return [], f"every process is busy; rank {stacks[0].rank} is at {_innermost_line(stacks[0].text)}"


def _main_thread_first(text: str) -> str:
    """A stack with its main thread first: threads are separated by an empty line, the newest first."""
    return "\n\n".join(reversed([block for block in text.strip().split("\n\n") if block.strip()]))


def _main_frames(text: str) -> list[str]:
    """The frames of the main thread, the innermost first."""
    main = _main_thread_first(text).split("\n\n")[0]
    return [line.strip() for line in main.splitlines() if line.lstrip().startswith("File ")]


def _waits_for_others(text: str) -> bool:
    return any(map(WAITS.search, _main_frames(text)[:TOP_FRAMES]))


def _innermost_line(text: str) -> str:
    """The innermost line of the user's own code if there is any, else of all code."""
    frames = _main_frames(text)
    places = [(match[1], int(match[2])) for frame in frames if (match := FRAME.match(frame))]
    if own_frames := own_places(places):
        return shown_line(*own_frames[0])
    return frames[0].removeprefix("File ") if frames else "no Python code"
