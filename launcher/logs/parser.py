"""One event stream from the lines of any log: which form a line has is decided line by line, as logs mix them.

Steps come in the order of the log; which lines make them says `numbering`. Between step lines that follow each other,
only the latest progress bar is reported. Nothing here raises: what cannot be read is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence

from launcher.core.events import Alert, Event, Step
from launcher.logs import step_lines
from launcher.logs.bars import ProgressBars
from launcher.logs.blocks import Blocks
from launcher.logs.dict_lines import BrokenDicts, MetricDicts, ValidationDicts
from launcher.logs.dicts import of_docker
from launcher.logs.log_errors import LogErrors
from launcher.logs.loose_lines import BesideSteps, Headings, NamedSteps
from launcher.logs.numbering import Basis, Kind, Numbering
from launcher.logs.prefixes import RAY, without_prefix, without_source
from launcher.logs.reading import Form, Reading
from launcher.logs.samples import Answers
from launcher.logs.writers import Writers

_LABEL = re.compile(r"[0-9]{1,5}: ")
"""What `srun --label` puts before every line."""
_BELOW_LABEL = ("[prompt]", "step:")
"""What no other line has behind such a number, beside a process that Ray names."""
_REPEATED = re.compile(r"\s{0,4}\[repeated [0-9]{1,9}x across cluster\].{0,200}$")
_NOTHING = re.compile(rb"(?!\[|\xe2\x95\xad|Killed|Segm|Abort|Bus )[^:=|{}#]*").fullmatch
"""Whether a line has none of the marks that all forms have one of: these, and some at its beginning."""


class _Overlong(Form):
    """A line that only step lines, answers and dicts are as long as."""

    def claims(self, line: str) -> bool:
        return len(line) > step_lines.LONGEST and "{" not in line

    def take(self, line: str) -> Iterator[Event]:
        return iter(())


class LogParser:
    """Reads lines in order. `at` is the time that events get: logs rarely name one. `basis` is what is known of its
    numbers from an earlier reading."""

    def __init__(self, at: float = 0.0, basis: Basis | None = None) -> None:
        self.reading = reading = Reading(at, basis)
        self._errors = LogErrors(reading)
        self._validations, self._steps = ValidationDicts(reading), step_lines.StepLines(reading)
        self._answers, self._bars, self._blocks = Answers(reading), ProgressBars(reading), Blocks(reading)
        self._forms: Sequence[Form] = (
            self._validations, self._steps, self._answers, _Overlong(reading), self._bars,
            BrokenDicts(reading), MetricDicts(reading),
        )  # fmt: skip
        self._loose: Sequence[Form] = BesideSteps(reading), NamedSteps(reading), Headings(reading), self._blocks
        self._labelled = False  # whether lines have the label of their task
        self._prefix = b""  # what Ray put before the last step line

    @property
    def at(self) -> float:
        return self.reading.at

    @at.setter
    def at(self, at: float) -> None:
        self.reading.at = at

    @property
    def numbers(self) -> Numbering:
        return self.reading.numbers

    @property
    def writers(self) -> Writers:
        return self.reading.writers

    @property
    def kind(self) -> Kind:
        return self.reading.kind

    @property
    def needs_beginning(self) -> bool:
        """Whether the number of a step depends on what stands before it."""
        return self.numbers.counted or self._bars.counts_epochs

    @property
    def error(self) -> Alert | None:
        return self._errors.alert()

    def feed(self, text: bytes) -> Iterator[Event]:
        """The events of whole lines. Most of a large log is step lines with a bar between them: while nothing waits,
        these go by the forms."""
        bar, drawn, usual = b"", False, None
        settled, sure = self._settled, self.reading.sure
        for raw in text.splitlines():
            start = raw.find(b"step:")
            if start >= 0 and settled and sure and (raw[:start] == usual or self._goes_on(raw[:start])):
                if found := step_lines.plain(raw, start):
                    drawn, usual = False, raw[:start]
                    self.reading.last, metrics = found
                    yield Step(at=self.reading.at, step=found[0], metrics=metrics)
                    continue
            elif settled and _NOTHING(raw):
                continue
            elif settled and sure and not drawn and raw.endswith(b"it]") and b"{" not in raw:
                bar, drawn = raw, True
                continue
            if bar:
                yield from self._line(_decoded(bar))
                bar, drawn = b"", False
            steps = self.reading.steps
            yield from self._line(_decoded(raw))
            if start >= 0 and self.reading.steps > steps:
                self._prefix = raw[max(raw.rfind(b"(", 0, start), 0) : start] if self.reading.source else b""
            usual, settled, sure = None, self._settled, self.reading.sure
        if bar:
            yield from self._line(_decoded(bar))

    def finish(self) -> Iterator[Event]:
        """The events that waited for more lines: the log has ended."""
        for form in (*self._forms, *self._loose):
            yield from form.finish()
        yield from self.reading.samples()
        if self.error:
            yield self.error

    @property
    def _settled(self) -> bool:
        """Whether nothing waits for the number of a step, or is ended by one."""
        answers = self._answers.open or self.reading.answers
        waits = answers or self._errors.open or self._blocks.open or self._validations.open or self._steps.open
        return self.reading.kind != "unknown" and not waits

    def _goes_on(self, before: bytes) -> bool:
        """Whether a step line that has this before it is of the process that wrote the last."""
        same = before.endswith(self._prefix) if self._prefix else b"pid=" not in before
        return same and len(before) < 100 and b"%|" not in before and b"{" not in before

    def _line(self, text: str) -> Iterator[Event]:
        """The first form that claims a line takes it; what claims none is another program's talk."""
        text, self.reading.source = without_source(self._unwrapped(text))
        if self.reading.source in self.writers.excluded:
            yield from self.reading.notice()
            return
        if "[repeated " in text:
            text = _REPEATED.sub("", text)
        self._errors.watch(text, self._answers.open)
        rest = yield from self._take(self._forms, text)
        if rest and not self.reading.sure:
            yield from self._take(self._loose, without_prefix(rest))

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

    def _unwrapped(self, text: str) -> str:
        """What a container's or srun's line holds of the program's."""
        if text.startswith('{"log":'):
            text = of_docker(text)
        if text[:1].isdigit() and (label := _LABEL.match(text)):
            behind = text[label.end() :]
            if not (self._labelled or self._answers.open):  # within an answer such numbers are its own
                self._labelled = behind.startswith(_BELOW_LABEL) or RAY.match(behind) is not None
            text = behind if self._labelled else text
        return text


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
