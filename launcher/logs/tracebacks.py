"""Errors that ended a program: those of Python, with Ray's and rank prefixes or without, and those of `endings`.

Traceback (most recent call last):
  File "train.py", line 3, in <module>
RuntimeError: CUDA out of memory
"""

from __future__ import annotations

import re

from launcher.core.events import Alert, Level
from launcher.logs import endings
from launcher.logs.forms.bars import behind_bars
from launcher.logs.forms.reading import LineReading

MARK = "Traceback (most recent call last):"
_ERROR = re.compile(r"[A-Za-z_][\w.]{0,200}(?:\([\w.]{1,200}\))?(?::\s.*)?")
_NAME = r"(?!ray\.exceptions\.)[A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt)"
_BARE_ERROR = re.compile(rf"{endings.LABEL.pattern}({_NAME}(?::\s(?!\s{{0,9}}[-+.0-9]{{1,40}}$).*)?)\s{{0,9}}")
"""An error without its traceback, behind labels; with a number behind it, it would be a metric."""
_JSON_ERROR = re.compile(rf'.*\\n({_NAME}(?::[^"\\]{{0,500}})?)')
"""The error at the end of a traceback within a JSON text."""
_REMOTE_ERROR = "RayTaskError("  # the traceback of another process follows
_FRAME = '  File "'
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
    """Keeps the first and the last error in `errors`; empty it where the program went on after them."""

    def __init__(self) -> None:
        self.errors = list[str]()
        self.lines_left = 0
        """Most lines until the error of the traceback that has begun; 0 outside of one."""
        self._column, self._source, self._previous_line, self._ignored = 0, "", "", False

    def take(self, text: str, source: str) -> None:
        """Read a line; `source` is the process that printed it (Ray's prefix)."""
        begins = text.find(MARK)
        if begins >= 0 and (match := _JSON_ERROR.match(text, begins)):
            self.errors = [*self.errors[:1], match[1]]
        elif begins >= 0:
            self._ignored = _IGNORED in self._previous_line
            self._column, self._source, self.lines_left = begins, source, _MAX_LINES
        elif self.lines_left:
            self.lines_left -= 1
            frame = text.find(_FRAME)
            if source == self._source and frame >= 0 and endings.LABEL.fullmatch(text[:frame]):
                self._column = frame  # other text may stand before the mark only
            line = text[self._column :]
            is_within = not line.strip() or line[0] in " \t|+>" or _REMOTE_ERROR in line
            if source == self._source and not is_within:
                self.lines_left = 0
                if _ERROR.fullmatch(line.rstrip()) and not self._ignored:
                    self.errors = [*self.errors[:1], _shorten(line)]
        self._previous_line = text


class LogErrors:
    """The error after which no step came; at the end of a log it most likely ended the program."""

    def __init__(self, reading: LineReading) -> None:
        self._reading = reading
        self._tracebacks = TracebackReader()
        self._ending: tuple[endings.LogEnding, str] | None = None  # an end without a traceback, and its line
        self._last_step: int | None = None  # last step before the errors
        self._finished = False  # whether a line said that the training has ended, and the last step before it
        self._finished_at: int | None = None

    @property
    def is_finished(self) -> bool:
        """Whether a line said that the training has ended, and no step came after it."""
        return self._finished and self._finished_at == self._reading.last

    def watch(self, text: str, quoted: bool) -> None:
        """Read a line; `quoted`: it is within an answer, which may mention an end. Step lines are skipped, as they are
        long and never mark the end."""
        if ("rain" in text or "Final " in text) and not quoted and _FINISHED.search(text[:_MAX_ERROR]):
            self._finished, self._finished_at = True, self._reading.last
        text = behind_bars(text)
        if self._tracebacks.lines_left or "Traceback" in text or "Exception ignored" in text:
            self._forget()
            self._tracebacks.take(text, self._reading.source)
        elif not quoted and not text.startswith("step:"):
            self._take_ending(text)

    def _take_ending(self, text: str) -> None:
        """Read a line that may be an end without a traceback."""
        if error := _BARE_ERROR.fullmatch(text[:_MAX_ERROR]):
            self._forget()
            self._tracebacks.errors = self._tracebacks.errors or [_shorten(error[1])]
        elif ending := endings.find(text):
            self._forget()
            if not self._ending and (ending.outside or not self._tracebacks.errors):  # which it may have caused
                self._ending = ending, _shorten(text)

    def _forget(self) -> None:
        """Drop the errors if a step came after them."""
        if self._last_step != self._reading.last:
            self._last_step, self._tracebacks.errors, self._ending = self._reading.last, [], None

    def alert(self) -> Alert | None:
        """The error after the last step, with its cause and what helps."""
        errors = self._tracebacks.errors
        if not (errors or self._ending) or self._last_step != self._reading.last:
            return None
        cause, fix, rule = "", "", ENDED
        level: Level = "critical"
        gpu_memory = next(filter(endings.is_gpu_memory, errors), "")
        ending, shown = self._ending or (None, errors[0])
        ending = ending or (None if gpu_memory else endings.find(shown))
        if ending:
            cause, fix, level = ending.cause, ending.fix, ending.level
        elif gpu_memory:
            shown, rule = gpu_memory, endings.OUT_OF_MEMORY
            fix = endings.fixes_of(rule)["any"]
            cause = "the batch, or the length of its answers, needs more memory than the GPU has"
        else:
            shown = errors[-1]
            cause = f"the first error after the last step: {errors[0]}" if errors[0] != shown else ""
        level = self._grade(shown, level)
        text = f"an error, and no step after it: {shown}"
        step = self._reading.last or 0
        return Alert(at=self._reading.at, step=step, text=text, level=level, rule=rule, cause=cause, fix=fix)

    def _grade(self, shown: str, level: Level) -> Level:
        """The level of an end that would have `level` if it were not the user's, or came before the last step."""
        if shown.startswith("KeyboardInterrupt"):
            return "info"
        return "warn" if level == "critical" and (self._reading.complete or self._finished) else level


def _shorten(text: str) -> str:
    return " ".join(text[:_MAX_ERROR].split())
