"""A run's attempts, one after the other: where one ends by a fault that may pass, the next goes on from the newest
checkpoint that verifies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from launcher.core import machine
from launcher.core.events import Crashed, Event, Restarted, Resumed, events_of
from launcher.core.files import write_atomic
from launcher.core.problems import Problems
from launcher.core.state import Sink
from launcher.launch import ending, resume
from launcher.launch.ending import Ending
from launcher.launch.follow import POLL_S, Follower, Outcome, follow
from launcher.monitor.failure import CONFIGURATION, NODE, Cause, FailureDiagnosis
from launcher.monitor.stall import StallDetector
from launcher.runs import attempts
from launcher.runs.folder import FIRST_SEQ, Folder, Lock, unheard_events
from launcher.runs.stop_requests import StopRequest, handle_stop_requests
from launcher.spec.cluster import Job
from launcher.spec.run import RunSpec

LONGEST_PAUSE_S = 60.0


class Interrupted(BaseException):
    """A signal came while no job was running that could save a checkpoint."""


def may_restart(cause: Cause, row: list[Cause], most: int) -> bool:
    """After the restarts in `row`, between which no checkpoint was made."""
    return len(row) < most and (cause.most is None or row.count(cause) < cause.most)


def pause_s(restarts: int) -> float:
    """Seconds before a restart, by how many there were in a row with it: the first at once, then 1, 2, 4, ..."""
    return min(2.0 ** (restarts - 2), LONGEST_PAUSE_S) if restarts > 1 else 0.0


class Supervisor:
    """Signals go to the processes of the moment; between two attempts they end the run."""

    def __init__(self, run: RunSpec, folder: Folder, lock: Lock, sinks: Sequence[Sink]) -> None:
        self.run, self.folder, self.lock, self.sinks = run, folder, lock, sinks
        self._checkpoints = run.engine.checkpoints(folder.path)
        self._job: Job | None = None
        self._starting = False

    def work(self, step: int, alerts: list[Event]) -> Outcome:
        """Train on after `step` to the end, whatever that is. `alerts` are about where it goes on from.

        Raises `Problems` where the processes cannot be started at all.
        """
        row: list[Cause] = []
        unheard, attempt = unheard_events(self.folder, self.run.engine.reader()), self.folder.next_attempt
        with (
            handle_stop_requests(self, self.folder) as asked,
            closing(Follower(self.folder, self.sinks, attempt - 1)) as follower,
        ):
            follower.tell(unheard)
            told = [*([Resumed(step=step, attempt=attempt)] if follower.next_seq else []), *alerts]
            while True:
                follower.begin(self.folder.next_attempt)
                follower.tell(told)
                end = self._attempt(step, follower, asked, len(row))
                try:
                    again = self._again(step, end, row)
                except Problems as problems:
                    end = ending.failed(_diagnosis(CONFIGURATION, [end.why, *problems.lines]), None)
                    again = None
                if again is None:
                    end = ending.given_up(end, len(row)) if end.diagnosis else end
                    follower.tell([end.event])
                    return Outcome(end.exit_code, follower.state, end.diagnosis.crash if end.diagnosis else None)
                follower.tell(unheard_events(self.folder, self.run.engine.reader()))
                step, told = again

    def stop(self, number: int) -> None:
        self._pass_on(lambda job: job.stop(number))

    def kill(self) -> None:
        self._pass_on(lambda job: job.kill())

    def _pass_on(self, tell: Callable[[Job], None]) -> None:
        if self._job:
            tell(self._job)
        elif self._starting:
            raise Interrupted

    def _attempt(self, step: int, follower: Follower, asked: StopRequest, restarts: int) -> Ending:
        if not self._pause(pause_s(restarts), follower, asked):
            return ending.stopped(asked.first, "", self._checkpoints)
        logs = self.folder.new_attempt()
        write_atomic(logs / FIRST_SEQ, str(follower.next_seq))
        try:
            end = self._run(step, logs, follower, asked)
        except Interrupted:
            end = ending.stopped(asked.first, "", self._checkpoints)
        except Problems as problems:
            if not restarts:
                raise
            end = ending.failed(_diagnosis(NODE, problems.lines), None)  # what the run had is not there now
        attempts.write(logs, end.end(follower.state.step, time.time()))
        return end

    def _pause(self, seconds: float, follower: Follower, asked: StopRequest) -> bool:
        """Wait; False as soon as the run is asked to end."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not asked:
            asked.look()
            follower.tell([])
            time.sleep(POLL_S)
        return not asked

    def _run(self, step: int, logs: Path, follower: Follower, asked: StopRequest) -> Ending:
        """Start the processes and follow them to their end. Raises `Interrupted`, or `Problems` where none start."""
        run, kills = self.run, machine.oom_kill_count()
        plan, before = run.engine.plan(run, self.folder.path, step), events_of(self.folder.events)
        watch = StallDetector(run.cluster.stall_factor, run.cluster.stall_grace_s, before, time.monotonic())
        try:
            self._starting = True
            if asked:
                raise Interrupted
            self._job = job = run.cluster.start(plan, logs, self.lock.descriptor)
            code = follow(job, run.engine.reader(), follower, watch, asked)
            kills = machine.oom_kill_count() - kills
            return ending.of_job(code, job, run, self._checkpoints, logs, follower, asked, kills)
        finally:
            self._starting = False  # before the job goes: a signal that comes now interrupts nothing
            if self._job:
                self._job.kill()
            self._job = None

    def _again(self, step: int, end: Ending, row: list[Cause]) -> tuple[int, list[Event]] | None:
        """The step to go on after, and what there is to tell then; None where the run ends. `row` are the restarts
        since the last checkpoint. Raises `Problems` where there is nothing to go on from."""
        most = self.run.trainer.max_restarts
        if end.diagnosis is None or not may_restart(end.diagnosis.cause, [], most):
            return None
        newest, faults = resume.newest(self.run, self.folder)
        if resume.step_of(newest) > step:
            row.clear()
        if not may_restart(end.diagnosis.cause, row, most):
            return None
        resume.unchanged(self.run, self.folder)
        row.append(end.diagnosis.cause)
        alerts = resume.rollback_to(newest, faults, self.run, self.folder)
        step, cause = resume.step_of(newest), end.diagnosis.cause.name
        return step, [Restarted(step=step, attempt=self.folder.next_attempt, cause=cause, why=end.why), *alerts]


def _diagnosis(cause: Cause, lines: list[str]) -> FailureDiagnosis:
    return FailureDiagnosis(cause, None, "; ".join(lines), Crashed(lines=tuple(lines), cause="configuration"))
