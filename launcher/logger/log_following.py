"""Reports the log of another program, such as an unmodified verl, to a job of the platform while it grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.core.events import Event, Step
from launcher.core.problems import Problem, Problems
from launcher.logger.dual_logger import DualLogger
from launcher.logger.spool import JOB
from launcher.logs.sources import GrowingLog, LogSource, open_log

LOOK_S = 0.5


def report_log(path: Path, job: str, url: str, goes_on: Callable[[], bool]) -> tuple[int, bool]:
    """Report a log to a job for as long as it `goes_on`, as failed if it ends with an error; where the log starts over,
    a new session begins. Returns the number of its steps, and whether all have arrived. Raises `Problems` where the log
    cannot be read, `job` is not a valid id, or what is no text should be followed."""
    if not JOB.fullmatch(job):
        fix = "use letters, digits, `-`, `_` and `.`, 128 at most, of which `-` and `.` are not the first"
        raise Problems(Problem("--job", f"got {job!r}", fix))
    source = open_log(path)
    if goes_on():
        source.check_text()
    log, reading, steps, arrived = GrowingLog(path, time.time), 0, 0, True
    logger = _begin_session(job, url)
    for event in _events_of(source, log, goes_on):
        if log.readings != reading:
            logger.finish()
            logger, arrived = _begin_session(job, url), arrived and logger.arrived
            reading, steps = log.readings, 0
        if isinstance(event, Step):
            logger.log_metrics(event.step, event.metrics)
            steps += 1
    if error := log.parser.error:
        logger.log_status("failed", error.text)
    logger.finish()
    return steps, arrived and logger.arrived


def _begin_session(job: str, url: str) -> DualLogger:
    return DualLogger(job, url, wandb_enabled=False)  # the program has its own W&B


def _events_of(source: LogSource, log: GrowingLog, goes_on: Callable[[], bool]) -> Iterator[Event]:
    """The events as they are written, and the rest once it no longer `goes_on`; of what is no text those it has."""
    if source.document:
        yield from source.events()
        return
    while goes_on():
        yield from log.new()
        time.sleep(LOOK_S)
    yield from log.new()
    yield from log.finish()
