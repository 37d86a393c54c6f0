"""The error after which no step came: where the log has ended, most likely it ended the program."""

from __future__ import annotations

from launcher.core.events import Alert, Level
from launcher.logs import endings
from launcher.logs.forms.reading import Reading
from launcher.logs.tracebacks import TracebackReader


class LogErrors:
    """Looks at all lines, whatever their form."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._errors = TracebackReader()
        self._after: int | None = None  # the last step before the errors

    @property
    def open(self) -> bool:
        """Whether a traceback has begun."""
        return self._errors.open

    def watch(self, text: str, quoted: bool) -> None:
        """Look at a line; `quoted` where it is within an answer, which may speak of an end."""
        if self._errors.open or "Traceback" in text or "Exception ignored" in text:
            self._forget()
            self._errors.take(text, self._reading.source)
        elif not quoted and (ending := endings.find(text)):
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
        first, last, fix, rule = errors.first, errors.last, "", ""
        level: Level = "critical"
        cause = f"the first error after the last step: {first}" if first != last else ""
        if errors.ending:
            last, cause, fix, level = errors.ending_line, errors.ending.cause, errors.ending.fix, errors.ending.level
        elif memory := next(filter(endings.is_gpu_memory, (first, last)), ""):
            last, rule, fix = memory, endings.OUT_OF_MEMORY, endings.FIXES[endings.OUT_OF_MEMORY]["any"]
            cause = "the batch, or the length of its answers, needs more memory than the GPU has"
        if last.startswith("KeyboardInterrupt"):
            level = "info"
        elif level == "critical" and self._reading.complete:
            level = "warn"
        text = f"an error, and no step after it: {last}"
        step = self._reading.last or 0
        return Alert(at=self._reading.at, step=step, text=text, level=level, rule=rule, cause=cause, fix=fix)
