"""The live view of a log that another program writes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.cli.live_view import watching
from launcher.cli.output import out
from launcher.core.files import NewLines
from launcher.core.redaction import printable
from launcher.logs.sources import GrowingLog, LogSource
from launcher.views.log_state import LogState

LOOK_S = 0.3
LINES = 10  # old lines of a log that are printed before new ones, without a terminal


def watch_log(source: LogSource) -> None:
    """Show a log as it grows, until Ctrl-C. Raises `Problems` where it is no text."""
    source.check_text()
    path = source.path
    if not out.is_terminal:
        for line in tail(path, lambda: True, LINES):
            print(printable(line.rstrip("\r")), flush=True)
        return
    log, state, changed = GrowingLog(path, time.time), LogState(path.name, source.kind), time.time()
    with watching() as view:
        while True:
            state, count = see_new(state, log)
            changed = time.time() if count else changed
            idle_s, reads = time.time() - changed, log.parser
            view.write(state.at(time.time(), idle_s, counted=reads.reading.numbers.counted, error=reads.error), [], [])
            time.sleep(LOOK_S if not count else 0.0)


def see_new(state: LogState, log: GrowingLog) -> tuple[LogState, int]:
    """The state after a log's new events, and their number. A log that is reread from its start gets a new state."""
    count, readings = 0, log.readings
    for event in log.new():
        if log.readings != readings:
            state, readings = state.anew(), log.readings
        state.see(event)
        count += 1
    return (state if log.readings == readings else state.anew()), count


def tail(path: Path, alive: Callable[[], bool] | None, last: int | None) -> Iterator[str]:
    """The `last` complete lines of a file, or all; with `alive`, also new lines until it returns False."""
    lines = NewLines(path)
    while True:
        is_alive = alive() if alive else False
        yield from lines.read() if last is None else deque(lines.read(), last)
        if path.is_file():
            last = None
        if not is_alive:
            return
        time.sleep(LOOK_S)
