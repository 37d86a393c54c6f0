"""The only writer of a run's events: it reads what the processes report, logs it, and shows it."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.core.events import (
    GOES_BACK,
    Alert,
    Crashed,
    Ended,
    Event,
    HeldOutEpisodes,
    LoggedEvent,
    WentOn,
    events_of,
    scan,
)
from launcher.core.files import AppendOnlyFile
from launcher.core.rubric import evaluation_of
from launcher.core.state import RunState, Sink, after, fold, write_all
from launcher.health.run_judge import RunJudge
from launcher.launch.disk_watch import DiskWatch
from launcher.monitor.agents import saved_line
from launcher.monitor.console import console_lines, next_command, screen_lines
from launcher.monitor.stall import StallDetector, any_stopped, stalled
from launcher.runs.folder import Folder
from launcher.runs.stop_requests import StopRequest
from launcher.runs.summary import keep
from launcher.spec.cluster import Job
from launcher.spec.engine import marked_events
from launcher.spec.run import RunSpec

POLL_S = 0.05
CRASHED_S = 30.0  # for a process that has reported a crash to exit; some never do
STACKS_S = 1.0  # for the processes to return their stacks


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    state: RunState
    crash: Crashed | None = None
    folder: Path | None = None


class Follower:
    """Writes events to the run's logs, with the number of the current `attempt`, then passes them to the sinks."""

    def __init__(self, run: RunSpec, folder: Folder, sinks: Sequence[Sink], attempt: int) -> None:
        self.run, self.folder, self.attempt = run, folder, attempt
        self.state, self.health = fold(events_of(folder.events)), RunJudge(run)
        self._events, self._console = AppendOnlyFile.open(folder.events), AppendOnlyFile.open(folder.console)
        self._sinks = sinks
        self.verbose = os.environ.get("VERBOSE", "").lower() in ("1", "true", "yes")
        self.next_seq = scan(folder.events)[0]
        self.crash: Crashed | None = None
        self.critical: Alert | None = None
        """The first critical finding of this attempt."""
        self.disk_full = False
        """Whether this attempt was ended because its disk was full."""
        self.tell([*self.health.replay(events_of(folder.events))])

    def begin(self, attempt: int) -> None:
        """From now on events belong to another attempt, without a crash or a critical finding yet."""
        self.attempt, self.crash, self.critical = attempt, None, None

    def tell(self, events: list[Event]) -> None:
        """Log and show events. Where one goes back to a checkpoint, the state is folded again without later steps."""
        logged, lines, shown, pending = list[LoggedEvent](), list[str](), list[str](), deque(events)
        while pending:
            event = pending.popleft()
            logged.append(LoggedEvent(self.next_seq, self.attempt, event))
            self.next_seq += 1
            if isinstance(event, GOES_BACK):
                self.state, self.health = fold(events_of(self.folder.events, more=logged)), RunJudge(self.run)
                alerts = self.health.replay(events_of(self.folder.events, more=logged))
            else:
                self.state, alerts = after(self.state, event), self.health.hear(event)
                self.critical = next(
                    (alert for alert in (self.critical, *alerts) if alert and alert.level == "critical"), None
                )
            pending.extendleft(reversed(alerts))
            saved = self._write_evaluation(event) if isinstance(event, HeldOutEpisodes) else []
            for output, write in ((lines, console_lines), (shown, screen_lines)):
                output += [*write(event, self.state, verbose=self.verbose), *saved]
                if isinstance(event, Ended) and event.following:
                    output[-1] += f"; next: {next_command(event.following, str(self.folder.path))}"
            if isinstance(event, Crashed):
                self.crash = event
        for entry in logged:
            self._events.append(entry.line)
        for line in lines:
            self._console.append(line)
        write_all(self._sinks, self.state, logged, shown)

    def _write_evaluation(self, event: HeldOutEpisodes) -> list[str]:
        """The line that says where the statistics of an agent's evaluation are written."""
        evaluation = evaluation_of(event, self.state.first_reward)
        if not evaluation:
            return []
        path = self.folder.write_evaluation(evaluation.step, evaluation.json, self.run.trainer.keep_eval_logs)
        return [saved_line(str(path)) if path else f"eval stats cannot be written into {self.folder.evaluations}"]

    def close(self) -> None:
        """Close the run's logs, and write its state to `summary.json`."""
        self._events.close()
        self._console.close()
        keep(self.folder, self.state)


def follow(job: Job, follower: Follower, watch: StallDetector, asked: StopRequest) -> int:
    """Wait until all processes have ended, reporting stalls; returns `Job.exit_code()`."""
    crashed_at: float | None = None
    has_acted, disk = False, DiskWatch(follower.folder)

    def read_events() -> list[Event]:
        """What the cluster and the processes reported since the last call."""
        return [*job.poll_events(), *(event for line in job.lines() for event in marked_events(line))]

    while (code := job.exit_code()) is None:
        new_events, now = read_events(), time.monotonic()
        usage: list[Event] = [*disk.look(now), *job.usage()]
        if new_events:
            stalled_s = watch.hear(new_events, now)
            went_on: list[Event] = [] if stalled_s is None else [WentOn(step=follower.state.step, after_s=stalled_s)]
            follower.tell([*went_on, *new_events, *usage])
        elif why := watch.stalls(follower.state, now, lambda: any_stopped(job.stacks(STACKS_S))):
            follower.tell([stalled(why, job.stacks(STACKS_S), follower.state, watch.silent_s), *usage])
        else:
            follower.tell([*usage])  # no sign that training goes on
        if follower.crash:
            crashed_at = crashed_at or now
            if now - crashed_at > CRASHED_S:
                job.kill()
        if disk.is_over(now):
            follower.disk_full = True
            job.kill()
        asked.look()
        if follower.critical and not has_acted:
            has_acted = True
            _handle_critical(follower.run.health.on_critical, job)
        time.sleep(POLL_S)
    disk.close()
    follower.tell(read_events())
    return code


def _handle_critical(on_critical: str, job: Job) -> None:
    """Ends the job after a critical finding, as `health.on_critical` says."""
    if on_critical == "pause":  # a checkpoint, then the end of the processes
        job.stop(signal.SIGTERM)
    elif on_critical == "stop":
        job.kill()
