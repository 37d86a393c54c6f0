"""Step lines of verl, and of ours: `step:5 - critic/score/mean:0.02 - timing_s/step:41.01`.

Almost all bytes of a large log are such lines, so they have a fast way: a line is turned into a JSON object by two
replacements and read by a JSON parser. Where that fails (nan, np.float64(...), text behind the line) `parse` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from orjson import JSONDecodeError, loads

from launcher.core.events import Event
from launcher.logs.forms.bars import MARK
from launcher.logs.forms.reading import LONGEST, Form
from launcher.logs.forms.values import MOST_STEPS, leading_number, to_number, unscaled

_NAME_CHARACTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/")
"""Characters before `step:` that make it a part of a name, as in `timing_s/step:41.0`."""
_STEP = re.compile(r"(?<![A-Za-z_/])step:([0-9]{1,18}) - ")
_MAX_COLONS = 6  # colons in a part after which its value may begin


def begins(text: str) -> bool:
    """Whether a step line begins in a line of text."""
    return "step:" in text and _STEP.search(text) is not None


def plain(line: bytes, start: int) -> tuple[int, dict[str, float]] | None:
    """(step, metrics) of the line that begins at `start`; None where it has more than names and plain numbers."""
    line, before = line[start:], line[start - 1 : start]
    if b"(" in line or (before and before[0] in _NAME_CHARACTERS):  # np.float64(...), or a unit in a name
        return None
    try:
        metrics = loads(b"".join((b'{"', line.replace(b" - ", b' ,"').replace(b":", b'":'), b"}")))
        step = metrics.pop("step")
        sum(metrics.values())  # raises TypeError where one is not a number
    except (JSONDecodeError, TypeError, KeyError):
        return None
    return (step, metrics) if type(step) is int and 0 <= step < MOST_STEPS and metrics else None


def parse(text: str) -> list[tuple[int, dict[str, float]]]:
    """(step, metrics) of each step line within a line of text."""
    matches = list(_STEP.finditer(text))
    ends = [match.start() for match in matches[1:]] + [len(text)] * bool(matches)
    return [(int(match[1]), metrics_of(text[match.end() : end])) for match, end in zip(matches, ends, strict=True)]


def metrics_of(text: str) -> dict[str, float]:
    """Metrics in `a/b:0.5 - c:np.float64(1.0) - d:nan`; parts without a number are left out."""
    metrics = dict[str, float]()
    for part in text.split(" - "):
        if pair := _read_pair(part.strip()):
            name, value = unscaled(*pair)
            metrics[name] = value
    return metrics


def _read_pair(part: str) -> tuple[str, float] | None:
    name, _, text = part.rpartition(":")
    if name and (value := to_number(text)) is not None:
        return name.strip(), value
    place = -1
    for _ in range(_MAX_COLONS):  # with text behind the value: `0.5Training Progress: 33%|`
        if (place := part.find(":", place + 1)) < 1:
            return None
        if number := leading_number(part[place + 1 : place + 200].lstrip()):
            return part[:place].strip(), number[0]
    return None


class StepLines(Form):
    """Step lines; one that ends with ` -` continues on the next line."""

    ends_block = True
    _wrapped = ""

    def read(self, line: str) -> Iterator[Event] | None:
        return self._read_steps(line) if self._wrapped or begins(line) else None

    def _read_steps(self, line: str) -> Iterator[Event]:
        self.rest = ""
        if self._wrapped and begins(line):
            yield from self.finish()
        joined = f"{self._wrapped} {line.strip()}" if self._wrapped else line
        if line.rstrip().endswith(" -") and len(joined) < LONGEST:
            self._wrapped = joined
            return
        start = max(line.find("step:"), 0)
        step = None if self._wrapped else plain(line.encode(), len(line[:start].encode()))
        self._wrapped = ""
        yield from self._steps([step] if step else parse(joined))
        if MARK in joined:
            self.rest = joined

    def finish(self) -> Iterator[Event]:
        joined, self._wrapped = self._wrapped, ""
        return self._steps(parse(joined))

    def _steps(self, steps: list[tuple[int, dict[str, float]]]) -> Iterator[Event]:
        for step, metrics in steps:
            if metrics:
                yield from self.reading.verl_step(step, metrics)
