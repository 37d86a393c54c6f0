"""Errors that ended a program: those of Python, with Ray's and rank prefixes or without, and those of `endings`.

Traceback (most recent call last):
  File "train.py", line 3, in <module>
RuntimeError: CUDA out of memory
"""

from __future__ import annotations

import re

from launcher.core.events import Alert, Level
from launcher.logs import endings
from launcher.logs.forms.reading import LineReading

MARK = "Traceback (most recent call last):"
_ERROR = re.compile(r"[A-Za-z_][\w.]{0,200}(?:\([\w.]{1,200}\))?(?::\s.*)?")
_REMOTE_ERROR = "RayTaskError("  # the traceback of another process follows
_IGNORED = "Exception ignored in"
ENDED = "ended-by-error"
"""`rule` of the alert of an error after the last step that has no rule of its own."""
_FINISHED = re.compile(
    r"\btraining (?:is |has |was |run |job )?(?:completed?|finished|done)\b|\bfinished training\b|train_runtime|"
    r"\bFinal validation metrics\b|\btrain(?:ing)? metrics\b",
    re.IGNORECASE,
)
_MAX_LINES = 2_000  # most lines of one traceback
_MAX_ERROR = 500  # characters of an error that are kept


class TracebackReader:
    """Keeps the first and the last error since the last call of `forget`."""

    def __init__(self) -> None:
        self.first = ""
        self.last = ""
        self.ending: endings.LogEnding | None = None
        """An end without a traceback that says more than `last`, read in `ending_line`."""
        self.ending_line = ""
        self._column = 0
        self._source = ""
        self._lines_left = 0
        self._previous_line = ""

    @property
    def open(self) -> bool:
        """Whether a traceback has begun whose error was not read yet."""
        return self._lines_left > 0

    def forget(self) -> None:
        """Drop the errors so far, as the program went on after them."""
        self.first = self.last = self.ending_line = ""
        self.ending = None

    def end(self, ending: endings.LogEnding, text: str) -> None:
        """Note how the program ended: the first end counts; after a Python error only one from outside does."""
        if self.ending is None and (ending.outside or not self.last):
            self.ending, self.ending_line = ending, _shorten(text)

    def take(self, text: str, source: str) -> None:
        """Read a line; `source` is the process that printed it (Ray's prefix)."""
        begins = text.find(MARK)
        if begins >= 0:
            ignored = _IGNORED in self._previous_line
            self._column, self._source, self._lines_left = begins, source, 0 if ignored else _MAX_LINES
        elif self.open:
            self._lines_left -= 1
            if source == self._source:
                self._read_line(text[self._column :])
        self._previous_line = text

    def _read_line(self, text: str) -> None:
        if not text.strip() or text[0] in " \t|+" or _REMOTE_ERROR in text:
            return
        if _ERROR.fullmatch(text.rstrip()):
            self.last = _shorten(text)
            self.first = self.first or self.last
        self._lines_left = 0


class LogErrors:
    """The error after which no step came; at the end of a log it most likely ended the program."""

    def __init__(self, reading: LineReading) -> None:
        self._reading = reading
        self._errors = TracebackReader()
        self._last_step: int | None = None  # last step before the errors
        self._finished = False

    def watch(self, text: str, quoted: bool) -> None:
        """Read a line; `quoted`: it is within an answer, which may mention an end. Step lines are skipped, as they are
        long and never mark the end."""
        if "rain" in text or "Final " in text:
            self._finished = self._finished or (not quoted and _FINISHED.search(text[:_MAX_ERROR]) is not None)
        if self._errors.open or "Traceback" in text or "Exception ignored" in text:
            self._forget()
            self._errors.take(text, self._reading.source)
        elif not quoted and not text.startswith("step:") and (ending := endings.find(text)):
            self._forget()
            self._errors.end(ending, text)

    def _forget(self) -> None:
        """Drop the errors if a step came after them."""
        if self._last_step != self._reading.last:
            self._errors.forget()
            self._last_step = self._reading.last

    def alert(self) -> Alert | None:
        """The error after the last step, with its cause and what helps."""
        errors = self._errors
        if not (errors.last or errors.ending) or self._last_step != self._reading.last:
            return None
        first, last, fix, rule = errors.first, errors.last, "", ENDED
        level: Level = "critical"
        cause = f"the first error after the last step: {first}" if first != last else ""
        if errors.ending:
            last, cause, fix, level = errors.ending_line, errors.ending.cause, errors.ending.fix, errors.ending.level
        elif memory := next(filter(endings.is_gpu_memory, (first, last)), ""):
            last, rule, fix = memory, endings.OUT_OF_MEMORY, endings.fixes_of(endings.OUT_OF_MEMORY)["any"]
            cause = "the batch, or the length of its answers, needs more memory than the GPU has"
        if last.startswith("KeyboardInterrupt"):
            level = "info"
        elif level == "critical" and (self._reading.complete or self._finished):
            level = "warn"
        text = f"an error, and no step after it: {last}"
        step = self._reading.last or 0
        return Alert(at=self._reading.at, step=step, text=text, level=level, rule=rule, cause=cause, fix=fix)


def _shorten(text: str) -> str:
    return " ".join(text[:_MAX_ERROR].split())
