"""Reports the log of another program, such as an unmodified verl, to a job of the platform while it grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from launcher.core.events import Event, Step
from launcher.core.problems import Problem, Problems
from launcher.logger.dual_logger import DualLogger
from launcher.logger.spool import JOB
from launcher.logs.sources import GrowingLog, open_log

LOOK_S = 0.5


class LogReport:
    """Sends the steps of a log to a session of the job. Where the log starts over, a new session begins."""

    def __init__(self, path: Path, job: str, url: str) -> None:
        self._log, self._job, self._url = GrowingLog(path, time.time), job, url
        self._logger, self._readings, self.steps, self.arrived = self._new_session(), 0, 0, True

    def _new_session(self) -> DualLogger:
        return DualLogger(self._job, self._url, wandb_enabled=False)  # the program has its own W&B

    def look(self) -> None:
        """Report the steps since the last call."""
        for event in self._log.new():
            if self._log.readings != self._readings:
                self._end_session()
                self._logger, self._readings, self.steps = self._new_session(), self._log.readings, 0
            self._report_step(event)

    def finish(self) -> None:
        """Report the rest of the log and end the session, as failed if the log ends with an error."""
        self.look()
        for event in self._log.finish():
            self._report_step(event)
        if error := self._log.parser.error:
            self._logger.log_status("failed", error.text)
        self._end_session()

    def _end_session(self) -> None:
        self._logger.finish()
        self.arrived &= self._logger.arrived

    def _report_step(self, event: Event) -> None:
        if isinstance(event, Step):
            self._logger.log_metrics(event.step, event.metrics)
            self.steps += 1


def report_log(path: Path, job: str, url: str, goes_on: Callable[[], bool]) -> tuple[int, bool]:
    """Report a log to a job for as long as it `goes_on`; returns the number of its steps, and whether all have arrived.
    Raises `Problems` where the log cannot be read or `job` is not a valid id."""
    if not JOB.fullmatch(job):
        fix = "use letters, digits, `-`, `_` and `.`, 128 at most, of which `-` and `.` are not the first"
        raise Problems(Problem("--job", f"got {job!r}", fix))
    open_log(path)
    report = LogReport(path, job, url)
    while goes_on():
        report.look()
        time.sleep(LOOK_S)
    report.finish()
    return report.steps, report.arrived
