"""One event stream from the lines of any log: the form is decided line by line, as logs mix forms.

Steps come in the order of the log; `numbering` decides which lines make them. Nothing here raises: what cannot be read
is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence

from launcher.core.events import Alert, Event
from launcher.logs.forms.answers import Answers
from launcher.logs.forms.bars import ProgressBars
from launcher.logs.forms.blocks import Blocks
from launcher.logs.forms.broken_dicts import BrokenDicts
from launcher.logs.forms.loose_lines import BesideSteps, Headings, NamedSteps
from launcher.logs.forms.metric_dicts import MetricDicts
from launcher.logs.forms.numbering import Basis
from launcher.logs.forms.prefixes import without_prefix, without_source
from launcher.logs.forms.reading import Form, LineReading
from launcher.logs.forms.step_lines import StepLines
from launcher.logs.forms.tables import Tables
from launcher.logs.tracebacks import LogErrors

_REPEATED = re.compile(r"\s{0,4}\[repeated [0-9]{1,9}x across cluster\].{0,200}$")
_GPU_MEMORY = re.compile(r"device memory used/total \(GB\): [0-9.]{1,20}/([0-9]{1,9}(?:\.[0-9]{1,9})?)", re.IGNORECASE)
"""The memory of the GPU, which verl prints while it loads a model."""


class LogParser:
    """Reads lines in order. `at` is the time of all events, as logs rarely name one. `basis` is how the steps are
    numbered, if known from an earlier reading."""

    def __init__(self, at: float = 0.0, basis: Basis | None = None) -> None:
        self.reading = reading = LineReading(at, basis)
        self._errors = LogErrors(reading)
        self._answers, self._blocks = Answers(reading), Blocks(reading)
        self._forms: Sequence[Form] = (
            StepLines(reading), self._answers, BrokenDicts(reading), ProgressBars(reading), MetricDicts(reading),
        )  # fmt: skip
        self._loose_forms: Sequence[Form] = (
            BesideSteps(reading), NamedSteps(reading), Tables(reading), Headings(reading), self._blocks,
        )  # fmt: skip
        self._gpu_memory_seen = False

    @property
    def error(self) -> Alert | None:
        return self._errors.alert()

    def feed(self, text: bytes) -> Iterator[Event]:
        """The events of whole lines."""
        for raw in text.splitlines():
            yield from self._read_line(raw)

    def finish(self) -> Iterator[Event]:
        """The events that waited for more lines, at the end of the log."""
        for form in (*self._forms, *self._loose_forms):
            yield from form.finish()
        yield from self.reading.samples()
        yield from self.reading.overfull()
        if self.error:
            yield self.error
        elif self._errors.is_finished and not self.reading.complete:
            yield from self.reading.progress(self.reading.last or 0, self.reading.last or 0)

    def _read_line(self, raw: bytes) -> Iterator[Event]:
        """The events of a line, by the first form that reads it; a line that none reads is other output."""
        reading, quoted = self.reading, self._answers.open
        text, reading.source = without_source(raw.decode("utf-8", "replace"))
        if "[repeated " in text:
            text = _REPEATED.sub("", text)
        self._errors.watch(text, quoted)
        if "emory" in text and not self._gpu_memory_seen and (match := _GPU_MEMORY.search(text)):
            self._gpu_memory_seen = True
            yield from reading.step(reading.last or 0, {"perf/gpu_memory_total_gb": float(match[1])})
        rest = yield from self._take_by(self._forms, text)
        if rest and not reading.sure:
            yield from self._take_by(self._loose_forms, without_prefix(rest))

    def _take_by(self, forms: Sequence[Form], text: str) -> Generator[Event, None, str]:
        """Yields the events of a line; returns the rest of it that no form read."""
        for form in forms:
            if (events := form.read(text)) is not None:
                if form.ends_block:
                    yield from self._blocks.finish()
                yield from events
                text = form.rest
                if not text:
                    break
        return text
