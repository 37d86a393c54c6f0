"""Step lines of verl, and of ours: `step:5 - critic/score/mean:0.02 - timing_s/step:41.01`.

Almost all bytes of a large log are such lines, so they have a fast way: a line is turned into a JSON object by two
replacements and read by a JSON parser. Where that fails (nan, np.float64(...), text behind the line) `parse` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from orjson import JSONDecodeError, loads

from launcher.core.events import Event
from launcher.logs.forms.bars import MARK
from launcher.logs.forms.reading import Form, LineReading
from launcher.logs.forms.values import MOST_STEPS, leading_number, to_number, unscaled

LONGEST = 2**16
"""Of a longer line only step lines, answers and dicts are read; a wrapped line is not longer."""
_NOT_BEFORE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/")
"""What does not stand before `step:`, as in `timing_s/step:41.0`."""
_STEP = re.compile(r"(?<![A-Za-z_/])step:([0-9]{1,18}) - ")
_COLONS = 6  # places at which the value of a name may begin


def begins(text: str) -> bool:
    """Whether a step line begins in a line of text."""
    return "step:" in text and _STEP.search(text) is not None


def plain(line: bytes, start: int) -> tuple[int, dict[str, float]] | None:
    """Step and metrics of the line that begins at `start`; None where it has more than names and plain numbers."""
    line, before = line[start:], line[start - 1 : start]
    if b"(" in line or (before and before[0] in _NOT_BEFORE):  # np.float64(...), or a unit in a name
        return None
    try:
        metrics = loads(b"".join((b'{"', line.replace(b" - ", b' ,"').replace(b":", b'":'), b"}")))
        step = metrics.pop("step")
        sum(metrics.values())  # raises where one is no number
    except (JSONDecodeError, TypeError, KeyError):
        return None
    return (step, metrics) if type(step) is int and 0 <= step < MOST_STEPS and metrics else None


def parse(text: str) -> list[tuple[int, dict[str, float]]]:
    """Steps and metrics of all step lines in a line of text, whatever stands before and behind them."""
    found = list(_STEP.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)] * bool(found)
    return [(int(match[1]), metrics_of(text[match.end() : end])) for match, end in zip(found, ends, strict=True)]


def metrics_of(text: str) -> dict[str, float]:
    """`a/b:0.5 - c:np.float64(1.0) - d:nan`; what has no number is left out."""
    found = dict[str, float]()
    for part in text.split(" - "):
        if pair := _pair(part.strip()):
            name, value = unscaled(*pair)
            found[name] = value
    return found


def _pair(part: str) -> tuple[str, float] | None:
    name, _, text = part.rpartition(":")
    if name and (value := to_number(text)) is not None:
        return name.strip(), value
    place = -1
    for _ in range(_COLONS):  # something stands behind the value: `0.5Training Progress: 33%|`
        if (place := part.find(":", place + 1)) < 1:
            return None
        if number := leading_number(part[place + 1 : place + 200].lstrip()):
            return part[:place].strip(), number[0]
    return None


def line_of(step: int, metrics: Mapping[str, float]) -> str:
    """A step line with all digits."""
    return " - ".join([f"step:{step}", *(f"{name}:{value!r}" for name, value in metrics.items())])


class PlainSteps:
    """Step lines of the process that wrote the last step: nothing but their number changes what is known."""

    def __init__(self, reading: LineReading) -> None:
        self._reading = reading
        self._prefix = b""  # what Ray put before the last step
        self._before: bytes | None = None  # what was seen before a step of the same process

    def take(self, line: bytes) -> tuple[int, dict[str, float]] | None:
        """Step and metrics; None of a line that the forms have to read."""
        start = line.find(b"step:")
        if start < 0 or not self._reading.sure:
            return None
        before = line[:start]
        if before != self._before and not self._goes_on(before):
            return None
        if found := plain(line, start):
            self._before, self._reading.last = before, found[0]
        return found

    def follow(self, line: bytes) -> None:
        """The line made a step; those that go on like it are of its process."""
        start = line.find(b"step:")
        if start >= 0:
            self._prefix = line[max(line.rfind(b"(", 0, start), 0) : start] if self._reading.source else b""
            self._before = None

    def _goes_on(self, before: bytes) -> bool:
        same = before.endswith(self._prefix) if self._prefix else b"pid=" not in before
        return same and len(before) < 100 and b"%|" not in before and b"{" not in before


class StepLines(Form):
    """A line that ends with ` -` goes on in the next lines."""

    ends_block = True
    _wrapped = ""

    @property
    def open(self) -> bool:
        """Whether a line goes on."""
        return bool(self._wrapped)

    def claims(self, line: str) -> bool:
        return bool(self._wrapped) or begins(line)

    def take(self, line: str) -> Iterator[Event]:
        self.rest = ""
        if self._wrapped and begins(line):
            yield from self.finish()
        whole = f"{self._wrapped} {line.strip()}" if self._wrapped else line
        if line.rstrip().endswith(" -") and len(whole) < LONGEST:
            self._wrapped = whole
            return
        start = max(line.find("step:"), 0)
        found = None if self._wrapped else plain(line.encode(), len(line[:start].encode()))
        self._wrapped = ""
        yield from self._steps([found] if found else parse(whole))
        if MARK in whole:
            self.rest = whole

    def finish(self) -> Iterator[Event]:
        whole, self._wrapped = self._wrapped, ""
        return self._steps(parse(whole))

    def _steps(self, steps: list[tuple[int, dict[str, float]]]) -> Iterator[Event]:
        for step, metrics in steps:
            if metrics:
                yield from self.reading.verl_step(step, metrics)
