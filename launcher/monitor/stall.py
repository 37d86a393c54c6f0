"""Stalls: when no event arrives for longer than it should take, since when, and which process the others wait for.

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

UNKNOWN_S = 600.0  # for a phase that has no usual duration yet
LATE_S = 1.0  # most that counts between two looks: what delayed the launcher may have delayed all processes
OWN_TIME = ("loading", "validating", "saving")  # phases with a usual duration of their own, not that of a step
STACK_CHARS = 8000  # most of a stack that is reported
TOP_FRAMES = 4  # of the stack, in which a process that waits for the others has a frame of `WAITS`
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
            self._follow(event, event.at)
        self._phase, self._since = "loading", now
        self.silent_s, self._looked, self._reported = 0.0, now, False
        self._next_probe_s = grace_s

    def hear(self, events: Sequence[Event], now: float) -> float | None:
        """Where a reported stall ends with these events: the seconds that it took."""
        for event in events:
            self._follow(event, now)
        self._tick(now)
        stalled_s = self.silent_s if self._reported else None
        self.silent_s, self._reported, self._next_probe_s = 0.0, False, self._grace_s
        return stalled_s

    def stalls(self, state: RunState, now: float, any_stopped: Callable[[], bool] = lambda: False) -> str:
        """The message about a stall, once; empty while there is none. `any_stopped` tells whether a process was stopped
        from outside: that is a stall however long the phase may take, and is asked where that is not known."""
        self._tick(now)
        usual = self._usual(state)
        limit = UNKNOWN_S if usual is None else self._factor * usual + self._grace_s
        if self._reported or not (self.silent_s > limit or (usual is None and self._probe(any_stopped))):
            return ""
        self._reported = True
        doing = self._phase or state.phase or "training"
        which = "which" if self._phase else "where a step"
        took = "was not seen before" if usual is None else f"took {compact(usual)} s before"
        return f"nothing for {self.silent_s:.0f} s in phase {doing}, {which} {took}"

    def _probe(self, any_stopped: Callable[[], bool]) -> bool:
        """Asked after a silence, and again once that is `factor` times as long: asking costs the processes a moment."""
        if self.silent_s <= self._next_probe_s:
            return False
        self._next_probe_s = self._factor * self.silent_s + max(self._grace_s, LATE_S)
        return any_stopped()

    def _tick(self, now: float) -> None:
        self.silent_s += min(now - self._looked, LATE_S)
        self._looked = now

    def _usual(self, state: RunState) -> float | None:
        """Seconds that the current phase or step usually takes; None before one was seen."""
        if self._phase:
            return self._longest.get(self._phase)
        return state.seconds_per_step if len(state.marks) > 2 else None

    def _follow(self, event: Event, now: float) -> None:
        """A phase ends with its result, or with the next phase; then it is training."""
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
    """Whether a process was stopped, as by SIGSTOP; not one that a debugger looks at for a moment."""
    return any(stack.state == "T" for stack in stacks)


def stalled(why: str, stacks: Sequence[Stack], state: RunState, for_s: float = 0.0) -> Stalled:
    """The stalled processes and where they are; `why` is the stall detector's message."""
    if state.waits_for and not any(rule(stack) for rule, _ in STANDS for stack in stacks):
        return Stalled(step=state.step, rank=None, why=f"{why}; it waits for {state.waits_for}", stack="", for_s=for_s)
    named, output = _named(stacks)
    who = ", ".join(f"rank {stack.rank} (process {stack.pid} on {stack.host})" for stack in named)
    message = f"{why}; {who}: {output}" if named else f"{why}; {output}"
    rank = named[0].rank if named else None
    stack = next((_main_first(stack.text) for stack in named if stack.text), "")
    return Stalled(step=state.step, rank=rank, why=message, stack=stack[:STACK_CHARS], for_s=for_s)


def _named(stacks: Sequence[Stack]) -> tuple[Sequence[Stack], str]:
    """Those that the others wait for, and their state; none where that is unknown."""
    for rule, output in STANDS:
        if found := [stack for stack in stacks if rule(stack)]:
            return found, output
    silent = [stack for stack in stacks if not stack.text]
    if len(silent) == len(stacks) != 1:
        return [], "no process answers"
    if silent:
        return silent, "does not answer"
    busy = [stack for stack in stacks if not _waits(stack.text)]
    if busy and len(stacks) == 1:
        return busy, f"at {_top(busy[0].text)}"
    if 0 < len(busy) < len(stacks):
        return busy, f"at {_top(busy[0].text)}, and the others wait for it"
    return [], f"every process is busy; rank {stacks[0].rank} is at {_top(stacks[0].text)}"


def _main_first(text: str) -> str:
    """Threads are separated by an empty line, the newest first."""
    return "\n\n".join(reversed([block for block in text.strip().split("\n\n") if block.strip()]))


def _frames(text: str) -> list[str]:
    """Of the main thread, the innermost first."""
    main = _main_first(text).split("\n\n")[0]
    return [line.strip() for line in main.splitlines() if line.lstrip().startswith("File ")]


def _waits(text: str) -> bool:
    return any(map(WAITS.search, _frames(text)[:TOP_FRAMES]))


def _top(text: str) -> str:
    """The innermost line, of a person's own code where there is any."""
    frames = _frames(text)
    places = [(found[1], int(found[2])) for frame in frames if (found := FRAME.match(frame))]
    if own := own_places(places):
        return shown_line(*own[0])
    return frames[0].removeprefix("File ") if frames else "no Python code"
