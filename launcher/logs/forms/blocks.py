"""Blocks of names and numbers that no framework defines, one on a line.

loss: 0.1234
- **policy_loss**: `0.8567`
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from launcher.core.events import Event
from launcher.logs.forms import values
from launcher.logs.forms.numbering import LOOSE, NAMED
from launcher.logs.forms.reading import Form, LineReading
from launcher.logs.forms.values import MOST_STEPS, after_training, evaluated, is_measurement, leading_number, to_number

_BLOCK = re.compile(
    r"[\s>|│]{0,40}(?:[-*•·+]\s{0,8}|[0-9]{1,3}[.)]\s{0,8})?[*`_]{0,3}([^\W\d_][\w ./@%()-]{0,80}?)[*`_]{0,3}"
    r"\s{0,40}[:=：]\s{0,40}[*`_]{0,3}"
)
_OTHER_ENTRY = re.compile(r"[^\w*#=]{0,12}[*`_]{0,3}[^\W\d_][\w ./@%()-]{0,80}[*`_]{0,3}\s{0,40}[:=：](?!=)")
"""A line of a block without a number, `status: running`, or the title of its next part, `Timing:`."""
_RESULTS_TITLE = re.compile(
    r"[^\w*#=]{0,12}(?:(validation|evaluation|eval|test) (?:results|metrics|scores)|\w{1,20} results):\s{0,8}", re.I
)
"""The title that begins a block; its metrics may be of an evaluation."""
_SHARE = re.compile(rf" ?\([0-9.]{{1,8}} ?%\)$|{values.SPREAD}$")
_MARK = re.compile("[:=：]")
_NUMBER_STARTS = frozenset("0123456789+-.nNiI")  # first characters of a number
_MAX_LINE = 300  # most characters of a line of a block
_UNITS = frozenset(["", "s", "ms", "%", "gb", "gib", "mb", "tokens/s", "tok/s", "it/s", "s/it", "nats", "tokens"])
_SECTION = re.compile(r"(\w{1,40})\s{2,60}(?=\w[^:]{0,80}:)")
"""A section name, which open-instruct writes before the metrics whose names begin with it."""
_EDGES = frozenset("│┃|║")
_BOX = frozenset(("|", *map(chr, range(0x2500, 0x2580))))
"""Characters with which boxes are drawn."""
_STEP_NAMES = ("step", "global_step", "global step", "training_step")


def _entry(text: str) -> re.Match[str] | None:
    """Match of the name on a `key: value` line; the text after the first colon rules out most lines."""
    mark = _MARK.search(text, 0, _MAX_LINE)
    if mark is None or text[mark.end() : mark.end() + 48].lstrip(" \t*`_")[:1] not in _NUMBER_STARTS:
        return None
    return _BLOCK.match(text)


def _cells(line: str) -> list[str]:
    """`│ loss=0.5 │ reward=1 │`, `│ train   loss: 0.5 | reward: 1 │` and `┃ loss ┃ 0.5 ┃` as lines of a block;
    any other line of a box unchanged."""
    cells, entries = [cell.strip() for cell in re.split("[│┃|║]", line)], list[str]()
    section = _SECTION.match(cells[1]) if len(cells) > 1 else None
    for name, cell in pairwise(cells):
        if _entry(cell):
            prefix = f"{section[1]}/".removeprefix("other/") if section else ""
            entries.append(prefix + cell.removeprefix(section[0] if section else ""))
        elif cell[:1] in _NUMBER_STARTS and name[:1].isalpha() and to_number(cell) is not None:
            entries.append(f"{name}: {cell}")
    return entries or [line.lstrip()]


class Blocks(Form):
    """Joins adjacent `key: value` lines into one step, of which only numbers are read; a name that comes again begins
    the next block. Any other line ends a block, except blank lines."""

    def __init__(self, reading: LineReading) -> None:
        super().__init__(reading)
        self._metrics = dict[str, float]()
        self._in_box = self._evaluated = False

    def read(self, line: str) -> Iterator[Event]:
        self._in_box = line.lstrip()[:1] in _EDGES
        for text in _cells(line) if self._in_box else [line]:
            yield from self._take_entry(text)

    def _take_entry(self, line: str) -> Iterator[Event]:
        entry = _entry(line)
        if entry and entry[1].strip() in self._metrics:
            yield from self.finish()
        title = _RESULTS_TITLE.fullmatch(line[:_MAX_LINE])
        if title or len(line) > _MAX_LINE or not self._belongs(line, entry):
            yield from self.finish()
            self._evaluated = title is not None and title[1] is not None

    def _belongs(self, line: str, entry: re.Match[str] | None) -> bool:
        in_block = bool(self._metrics) or self._in_box or self._evaluated or self.reading.header is not None
        if entry and self._add(entry[1].strip(), line[entry.end() :], in_block):
            return True
        return not line.strip() or line[0] in _BOX or (in_block and _OTHER_ENTRY.match(line) is not None)

    def _add(self, name: str, text: str, in_block: bool) -> bool:
        text = text.strip().lstrip("`*")
        number = leading_number(text)
        if number is None or not (in_block or is_measurement(name) or name.casefold() in _STEP_NAMES):
            return False
        unit = _SHARE.sub("", text[number[1] :].lstrip("`* ,").rstrip("`*, "))
        if unit.casefold() not in _UNITS:
            return False
        self._metrics[name] = number[0]
        return True

    def finish(self) -> Iterator[Event]:
        """End the block: the events of its step, if something was measured."""
        metrics, self._metrics = self._metrics, {}
        named = [name for name in metrics if name.casefold() in _STEP_NAMES]
        step = int(metrics.pop(named[0])) if named and 0 <= metrics[named[0]] < MOST_STEPS else None
        if self._evaluated:
            heading = self.reading.header if self.reading.numbers.basis.by_heading else None
            metrics = evaluated(metrics, labelled=True)
            yield from self.reading.evaluation(metrics, heading if step is None else step) if metrics else ()
            return
        if not any(map(is_measurement, metrics)):
            return
        if step is None:
            step = self.reading.heading()
        if self.reading.numbers.admits("block", LOOSE if step is None else NAMED, step):
            yield from self.reading.step(self.reading.numbers.next(None) if step is None else step, metrics)
        elif all(map(after_training, metrics)):
            yield from self.reading.evaluation(metrics)
