"""One event stream from the lines of any log: which form a line has is decided line by line, as logs mix them.

Steps come in the order of the log; which lines make them says `numbering`. Between step lines that follow each other,
only the latest progress bar is reported. Nothing here raises: what cannot be read is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence

from launcher.core.events import Alert, Event, Step
from launcher.logs.forms.answers import Answers
from launcher.logs.forms.bars import ProgressBars
from launcher.logs.forms.blocks import Blocks
from launcher.logs.forms.broken_dicts import BrokenDicts
from launcher.logs.forms.loose_lines import BesideSteps, Headings, NamedSteps
from launcher.logs.forms.metric_dicts import MetricDicts
from launcher.logs.forms.numbering import Basis
from launcher.logs.forms.prefixes import Wrapper, without_prefix, without_source
from launcher.logs.forms.reading import Form, LineReading
from launcher.logs.forms.step_lines import LONGEST, PlainSteps, StepLines
from launcher.logs.forms.tables import Tables
from launcher.logs.tracebacks import LogErrors

_REPEATED = re.compile(r"\s{0,4}\[repeated [0-9]{1,9}x across cluster\].{0,200}$")
_NOTHING = re.compile(rb"(?!\[|\xe2[\x94\x95]|Killed|Segm|Abort|Bus )[^:=|{}#]*").fullmatch
"""Whether a line has none of the marks that all forms have one of: these, and some at its beginning."""
_CARD = re.compile(r"device memory used/total \(GB\): [0-9.]{1,20}/([0-9]{1,9}(?:\.[0-9]{1,9})?)", re.IGNORECASE)
"""What verl prints of the GPU while it loads a model."""
_OF_TABLES = b"tep", b"poch", b"</t"
"""What a header has, or a heading, or a row of HTML, also without such a mark."""


class _Overlong(Form):
    """A line that only step lines, answers and dicts are as long as."""

    def claims(self, line: str) -> bool:
        return len(line) > LONGEST and "{" not in line

    def take(self, line: str) -> Iterator[Event]:
        return iter(())


class LogParser:
    """Reads lines in order. `at` is the time that events get: logs rarely name one. `basis` is what is known of its
    numbers from an earlier reading."""

    def __init__(self, at: float = 0.0, basis: Basis | None = None) -> None:
        self.reading = reading = LineReading(at, basis)
        self._errors = LogErrors(reading)
        self._steps, self._answers, self._broken = StepLines(reading), Answers(reading), BrokenDicts(reading)
        self._blocks, self._tables = Blocks(reading), Tables(reading)
        self._forms: Sequence[Form] = (
            self._steps, self._answers, self._broken, _Overlong(reading), ProgressBars(reading), MetricDicts(reading),
        )  # fmt: skip
        self._loose: Sequence[Form] = (
            BesideSteps(reading), NamedSteps(reading), self._tables, Headings(reading), self._blocks,
        )  # fmt: skip
        self._plain = PlainSteps(reading)
        self._wrapper, self._card = Wrapper(), False

    @property
    def error(self) -> Alert | None:
        return self._errors.alert()

    def feed(self, text: bytes) -> Iterator[Event]:
        """The events of whole lines. Most of a large log is step lines with a bar between them: while nothing waits,
        these go by the forms."""
        bar, drawn, settled = b"", False, self._settled
        for raw in text.splitlines():
            if settled:
                if found := self._plain.take(raw):
                    drawn = False
                    yield Step(at=self.reading.at, step=found[0], metrics=self.reading.kept(found[1]))
                    continue
                if _NOTHING(raw) and not any(mark in raw for mark in _OF_TABLES):
                    continue
                if not drawn and self.reading.sure and raw.endswith(b"it]") and b"{" not in raw:
                    bar, drawn = raw, True
                    continue
            for line in (bar, raw) if bar else (raw,):
                yield from self._line(line)
            bar, drawn, settled = b"", False, self._settled
        if bar:
            yield from self._line(bar)

    def finish(self) -> Iterator[Event]:
        """The events that waited for more lines: the log has ended."""
        for form in (*self._forms, *self._loose):
            yield from form.finish()
        yield from self.reading.samples()
        yield from self.reading.overfull()
        if self.error:
            yield self.error

    @property
    def _settled(self) -> bool:
        """Whether nothing waits for the number of a step, or is ended by one."""
        if self.reading.answers or self._answers.open or self.reading.kind == "unknown":
            return False
        forms = self._errors, self._blocks, self._broken, self._steps, self._tables
        return not any(form.open for form in forms)

    def _line(self, raw: bytes) -> Iterator[Event]:
        """The first form that claims a line takes it; what claims none is another program's talk."""
        reading, quoted = self.reading, self._answers.open
        text, reading.source = without_source(self._wrapper.without(raw.decode("utf-8", "replace"), quoted))
        if reading.source in reading.writers.excluded:
            yield from reading.notice()
            return
        if "[repeated " in text:
            text = _REPEATED.sub("", text)
        self._errors.watch(text, quoted)
        if "emory" in text and not self._card and (card := _CARD.search(text)):
            self._card = True
            yield from reading.step(reading.last or 0, {"perf/gpu_memory_total_gb": float(card[1])})
        steps = reading.steps
        rest = yield from self._take(self._forms, text)
        if rest and not reading.sure:
            yield from self._take(self._loose, without_prefix(rest))
        if reading.steps > steps:
            self._plain.follow(raw)

    def _take(self, forms: Sequence[Form], text: str) -> Generator[Event, None, str]:
        """Yields the events of a line; returns what no form took."""
        for form in forms:
            if form.claims(text):
                if form.ends_block:
                    yield from self._blocks.finish()
                yield from form.take(text)
                text = form.rest
                if not text:
                    break
        return text
