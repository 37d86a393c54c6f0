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
_OF_ANOTHER = "RayTaskError("  # the frames and the error of another process follow
_IGNORED = "Exception ignored in"
ENDED = "ended-by-error"
"""`rule` of the alert of an error after the last step, where it is no other."""
_FINISHED = re.compile(
    r"\btraining (?:is |has |was |run |job )?(?:completed?|finished|done)\b|\bfinished training\b|train_runtime|"
    r"\bFinal validation metrics\b|\btrain(?:ing)? metrics\b",
    re.IGNORECASE,
)
_LINES = 2_000  # most lines of one traceback
_LONGEST = 500  # characters of an error that are kept


class TracebackReader:
    """Keeps the first and the last error since `forget`, or since the beginning."""

    def __init__(self) -> None:
        self.first = ""
        self.last = ""
        self.ending: endings.LogEnding | None = None
        """The end without a traceback that tells more than `last`; `ending_line` is its line."""
        self.ending_line = ""
        self._column = 0
        self._source = ""
        self._left = 0
        self._before = ""

    @property
    def open(self) -> bool:
        """Whether a traceback has begun and its error has not come yet."""
        return self._left > 0

    def forget(self) -> None:
        """The program went on: those errors did not end it."""
        self.first = self.last = self.ending_line = ""
        self.ending = None

    def end(self, ending: endings.LogEnding, text: str) -> None:
        """The program ended so. The first says why; after a Python error only one that came from outside does."""
        if self.ending is None and (ending.outside or not self.last):
            self.ending, self.ending_line = ending, _short(text)

    def take(self, text: str, source: str) -> None:
        """Look at a line; `source` is the process that printed it (Ray's prefix)."""
        begins = text.find(MARK)
        if begins >= 0:
            ignored = _IGNORED in self._before
            self._column, self._source, self._left = begins, source, 0 if ignored else _LINES
        elif self.open:
            self._left -= 1
            if source == self._source:
                self._line(text[self._column :])
        self._before = text

    def _line(self, text: str) -> None:
        if not text.strip() or text[0] in " \t|+" or _OF_ANOTHER in text:
            return
        if _ERROR.fullmatch(text.rstrip()):
            self.last = _short(text)
            self.first = self.first or self.last
        self._left = 0


class LogErrors:
    """The error after which no step came: where the log has ended, most likely it ended the program."""

    def __init__(self, reading: LineReading) -> None:
        self._reading = reading
        self._errors = TracebackReader()
        self._after: int | None = None  # the last step before the errors

        self._finished = False

    @property
    def open(self) -> bool:
        """Whether a traceback has begun."""
        return self._errors.open

    def watch(self, text: str, quoted: bool) -> None:
        """Look at a line; `quoted` where it is within an answer, which may speak of an end. A step line is long, and
        tells none."""
        if "rain" in text or "Final " in text:
            self._finished = self._finished or (not quoted and _FINISHED.search(text[:_LONGEST]) is not None)
        if self._errors.open or "Traceback" in text or "Exception ignored" in text:
            self._forget()
            self._errors.take(text, self._reading.source)
        elif not quoted and not text.startswith("step:") and (ending := endings.find(text)):
            self._forget()
            self._errors.end(ending, text)

    def _forget(self) -> None:
        """The program went on after them."""
        if self._after != self._reading.last:
            self._errors.forget()
            self._after = self._reading.last

    def alert(self) -> Alert | None:
        """The error after the last step, with its cause and what helps."""
        errors = self._errors
        if not (errors.last or errors.ending) or self._after != self._reading.last:
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


def _short(text: str) -> str:
    return " ".join(text[:_LONGEST].split())
