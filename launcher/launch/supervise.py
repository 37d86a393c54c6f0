"""A run's attempts, one after the other: where one ends by a fault that may pass, the next resumes from the newest
checkpoint that verifies."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.config.amend import is_free
from launcher.core import checkpoints, machine
from launcher.core.events import Alert, Crashed, Ended, Event, How, Restarted, Resumed, events_of
from launcher.core.problems import Problem, Problems
from launcher.core.state import Sink
from launcher.health.advice import leading_arguments
from launcher.launch import provenance
from launcher.launch.follow import POLL_S, Follower, Outcome, follow
from launcher.monitor.failure import CONFIGURATION, NODE, Cause, FailureDiagnosis, ProcessExit, diagnose, read_exit
from launcher.monitor.stall import StallDetector
from launcher.runs.folder import Folder, Lock, unheard_events
from launcher.runs.stop_requests import SIGNALS, Handle, StopRequest, no_signals
from launcher.spec.cluster import Job
from launcher.spec.engine import Engine
from launcher.spec.run import RunSpec

LONGEST_PAUSE_S = 60.0
MAKE_ROOM = "delete something there, then rlrun train --resume goes on"


class Interrupted(BaseException):
    """A signal arrived while no job was running that could save a checkpoint."""


def may_restart(cause: Cause, row: list[Cause], most: int) -> bool:
    """Whether `cause` permits a restart after those of `row`, since which no checkpoint was written; `most` in all."""
    return len(row) < most and (cause.most is None or row.count(cause) < cause.most)


def pause_s(restarts: int) -> float:
    """Seconds to wait before the restart of this number in a row, of a run or a tracker: 0, then 1, 2, 4, ..., at most
    `LONGEST_PAUSE_S`."""
    return min(2.0 ** (restarts - 2), LONGEST_PAUSE_S) if restarts > 1 else 0.0


# ---- where a run resumes


def check_unchanged(run: RunSpec, folder: Folder) -> None:
    """Raises `Problems` where the data or the model is not what the run began with."""
    recorded = provenance.read(folder)
    if run.data.fingerprint() != recorded.get("data"):
        got = "is not what the run began with (its sha256 differs)"
        raise Problems(Problem("data", got, "use the original data", "changed"))
    same_model = not needs_initial_weights(run, folder) or provenance.same_files(
        recorded.get("model"), provenance.model_origin(run.model)
    )
    if not same_model:
        got = "is not what the run began with (its files differ)"
        raise Problems(Problem("model", got, "use the original model", "changed"))


def needs_initial_weights(run: RunSpec, folder: Folder) -> bool:
    """Whether it needs the model that it began with, besides what is in its checkpoints."""
    return "reference" in run.algorithm.needs or not checkpoints.newest_first(folder.checkpoints)


def newest_checkpoint(folder: Folder, engine: Engine | None = None) -> tuple[Path | None, list[Problem]]:
    """The checkpoint to resume from, None for the beginning, and the faults of newer ones. With `engine`, as the run's
    writer calls it, what a kill left is removed or recovered. Raises `Problems` where none verifies."""
    if engine:
        checkpoints.tidy(folder.checkpoints)
        engine.recover(folder.path)
    newest, faults = checkpoints.newest_verified(folder.checkpoints)
    if faults and newest is None:
        raise Problems([*faults, Problem(folder.name, "no checkpoint verifies", "start a new run", "bad-file")])
    return newest, faults


def rollback_to(checkpoint: Path | None, faults: list[Problem], folder: Folder) -> list[Event]:
    """Sets aside the checkpoints that are newer than `checkpoint`, because of their `faults` or, without any, because
    the user asked for an earlier one. Returns an alert for each fault."""
    step = step_of(checkpoint)
    checkpoints.set_aside_after(folder.checkpoints, step, "damaged" if faults else "aside")
    resumed = f"resumed from {checkpoint.name if checkpoint else 'the beginning'}"
    return [Alert(step=step, text=f"checkpoints/{fault}; {resumed}") for fault in faults]


def step_of(checkpoint: Path | None) -> int:
    return checkpoints.step_of(checkpoint) if checkpoint else 0


# ---- how an attempt ends


@dataclass(frozen=True)
class Ending:
    how: How
    why: str
    exit_code: int
    diagnosis: FailureDiagnosis | None = None
    """Of failed processes or an invalid configuration; None for other endings."""
    following: tuple[str, ...] = ()
    """The command to suggest next, as in `Ended`."""


def _fault(diagnosis: FailureDiagnosis, logs: Path | None = None) -> Ending:
    log_note = f"; its log is {logs / f'rank-{diagnosis.rank}.log'}" if logs and diagnosis.rank is not None else ""
    user_error = diagnosis.crash is not None and diagnosis.crash.user_error
    return Ending("failed", f"{diagnosis.why}{log_note}", 2 if user_error else 1, diagnosis)


def _with_advice(ending: Ending, restarts: int) -> Ending:
    """The ending of the last attempt, whose `why` also says how many restarts were tried, and what the user may do."""
    if ending.diagnosis is None:
        return ending
    cause = ending.diagnosis.cause
    times = "once" if restarts == 1 else f"{restarts} times"
    tries = f"; restarted {times} without a new checkpoint" if restarts and cause.most != 0 else ""
    return replace(ending, why=f"{ending.why}{tries}{f'; {cause.fix}' if cause.fix else ''}")


def _diagnosis(cause: Cause, lines: list[str]) -> FailureDiagnosis:
    return FailureDiagnosis(cause, None, "; ".join(lines), Crashed(lines=tuple(lines), cause="configuration"))


class Supervisor:
    """Requests to stop go to the current processes; between two attempts they end the run. `handle` brings signals."""

    def __init__(
        self, run: RunSpec, folder: Folder, lock: Lock, sinks: Sequence[Sink], handle: Handle = no_signals
    ) -> None:
        self.run, self.folder, self.lock, self.sinks, self.handle = run, folder, lock, sinks, handle
        self._job: Job | None = None
        self._starting = False

    def work(self, step: int, alerts: list[Event], steps: int | None = None) -> Outcome:
        """Train on after `step` until the run ends. `alerts` are about where it resumes; `steps` are those of the whole
        run, where they were changed.

        Raises `Problems` where the processes cannot be started at all.
        """
        causes: list[Cause] = []
        unheard, attempt = unheard_events(self.folder), self.folder.next_attempt
        request = StopRequest(self, self.folder)
        with (
            self.handle(request),
            closing(Follower(self.run, self.folder, self.sinks, attempt - 1)) as follower,
        ):
            follower.tell(unheard)
            first_events = [*([Resumed(step=step, attempt=attempt, steps=steps)] if follower.next_seq else []), *alerts]
            while True:
                follower.begin(self.folder.next_attempt)
                follower.tell(first_events)
                end = self._run_attempt(step, follower, request, len(causes))
                try:
                    next_start = self._next_start(step, end, causes)
                except Problems as problems:
                    end, next_start = _fault(_diagnosis(CONFIGURATION, [end.why, *problems.lines])), None
                if next_start is None:
                    end = _with_advice(end, len(causes))
                    verdict = follower.health.verdict(follower.state)
                    crash, cause = (end.diagnosis.crash, end.diagnosis.cause.name) if end.diagnosis else (None, "")
                    ended = Ended(how=end.how, why=end.why, following=end.following, verdict=verdict, cause=cause)
                    follower.tell([ended])
                    return Outcome(end.exit_code, follower.state, crash, self.folder.path)
                follower.tell(unheard_events(self.folder))
                step, first_events = next_start

    def stop(self, number: int) -> None:
        self._forward_stop(lambda job: job.stop(number))

    def kill(self) -> None:
        self._forward_stop(lambda job: job.kill())

    def _forward_stop(self, call: Callable[[Job], None]) -> None:
        if self._job:
            call(self._job)
        elif self._starting:
            raise Interrupted

    def _run_attempt(self, step: int, follower: Follower, request: StopRequest, restarts: int) -> Ending:
        if not self._pause(pause_s(restarts), follower, request):
            return self._stopped(request.first)
        logs = self.folder.new_attempt()
        try:
            return self._run_processes(step, logs, follower, request)
        except Interrupted:
            return self._stopped(request.first)
        except Problems as problems:
            if not restarts:
                raise
            return _fault(_diagnosis(NODE, problems.lines))  # what the run had before is missing now

    def _pause(self, seconds: float, follower: Follower, request: StopRequest) -> bool:
        """Wait; False as soon as the run is asked to end."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not request:
            request.look()
            follower.tell([])
            time.sleep(POLL_S)
        return not request

    def _run_processes(self, step: int, logs: Path, follower: Follower, request: StopRequest) -> Ending:
        """Start the processes and follow them to their end. Raises `Interrupted`, or `Problems` where none start."""
        run, ooms = self.run, machine.oom_kill_count()
        plan, events = run.engine.plan(run, self.folder.path, step), events_of(self.folder.events)
        watch = StallDetector(run.cluster.stall_factor, run.cluster.stall_grace_s, events, time.monotonic())
        try:
            self._starting = True
            if request:
                raise Interrupted
            self._job = job = run.cluster.start(plan, logs, self.lock.descriptor)
            code = follow(job, follower, watch, request)
            if code == 0:
                return self._finished(follower)
            if follower.disk_full:
                return Ending("failed", f"the disk of {self.folder.path} is full; {self._saved_text()}; {MAKE_ROOM}", 1)
            if follower.critical and not request and run.health.on_critical != "warn":
                return self._critical_ending(follower.critical)
            ooms = machine.oom_kill_count() - ooms
            return self._stopped_by(code, job, request) or _fault(self._diagnose(code, job, logs, follower, ooms), logs)
        finally:
            self._starting = False  # before the job goes: a signal that arrives now interrupts nothing
            if self._job:
                self._job.kill()
            self._job = None

    def _finished(self, follower: Follower) -> Ending:
        step, saved = follower.state.step, checkpoints.newest_first(self.folder.checkpoints)
        unsaved = step > 0 and not (saved and checkpoints.step_of(saved[0]) == step)
        reasons = [f"the last step is not saved; {self._saved_text()}"] if unsaved else []
        verdict = follower.health.verdict(follower.state)
        findings = follower.health.reasons(learned=verdict.kind == "learned")
        reasons += [finding.text for finding in findings] or ([verdict.text] if verdict.kind == "harmed" else [])
        fixes = [verdict.fix] if verdict.kind == "harmed" else [finding.fix for finding in reversed(findings)]
        settings = {word.partition("=")[0]: word for fix in fixes for word in leading_arguments(fix)}
        following = ("rerun", *settings.values()) if settings else ("logs",) if findings else ()
        return Ending("finished", "; ".join(reasons), 0, following=following)

    def _critical_ending(self, alert: Alert) -> Ending:
        """The ending by a critical finding, as `health.on_critical` asks for."""
        why = f"{alert.rule} at step {alert.step}: {alert.text}; {self._saved_text()}"
        if self.run.health.on_critical == "pause":
            settings = leading_arguments(alert.fix)
            refused = any(not is_free(word.partition("=")[0]) for word in settings)  # by train --resume
            following = ("rerun", *settings) if refused else ()
            return Ending("stopped", f"paused by {why}", 128 + signal.SIGTERM, following=following)
        return Ending("failed", f"stopped by {why}", 1, following=("logs",))

    def _stopped(self, number: int, how: str = "") -> Ending:
        return Ending("stopped", f"{signal.Signals(number).name}{how}; {self._saved_text()}", 128 + number)

    def _saved_text(self) -> str:
        saved = checkpoints.newest_first(self.folder.checkpoints)
        return f"checkpoints/{saved[0].name} is the newest checkpoint" if saved else "nothing is saved yet"

    def _stopped_by(self, code: int, job: Job, request: StopRequest) -> Ending | None:
        """The ending of a job that was asked to stop and exited with `code`; None where it ended by a fault."""
        if request:
            return self._stopped(request.first, "" if code == 128 + request.first else ", ended at once")
        number = code - 128 if code >= 128 else -code
        if number in SIGNALS:  # the process itself was asked to stop, or before its handler was installed
            return self._stopped(number, f" to rank {job.failed_rank()}")
        return None

    def _diagnose(self, code: int, job: Job, logs: Path, follower: Follower, oom_kills: int) -> FailureDiagnosis:
        rank, lost, crash = job.failed_rank(), job.lost_resources(), follower.crash
        if rank is None and crash and not lost:  # the cluster started nothing, and said why
            return FailureDiagnosis(CONFIGURATION, None, "; ".join(crash.lines), crash)

        def left(rank: int, code: int | None = None) -> ProcessExit:
            return read_exit(rank, code, logs / f"rank-{rank}.log")

        failed = None if rank is None else left(rank, code)
        if failed and rank == 0 and crash:
            failed = replace(failed, crash=crash)
        others = (left(other) for other in range(self.run.taken.processes) if other != rank)
        return diagnose(failed, others, lost, oom_kills)

    def _next_start(self, step: int, end: Ending, causes: list[Cause]) -> tuple[int, list[Event]] | None:
        """The step to resume after, and the next attempt's first events; None where the run ends. `causes` are those of
        the restarts since the last checkpoint. Raises `Problems` where there is nothing to resume from."""
        most = self.run.trainer.max_restarts
        if end.diagnosis is None or not may_restart(end.diagnosis.cause, [], most):
            return None
        newest, faults = newest_checkpoint(self.folder, self.run.engine)
        if step_of(newest) > step:
            causes.clear()
        if not may_restart(end.diagnosis.cause, causes, most):
            return None
        check_unchanged(self.run, self.folder)
        causes.append(end.diagnosis.cause)
        alerts = rollback_to(newest, faults, self.folder)
        step, cause = step_of(newest), end.diagnosis.cause.name
        return step, [Restarted(step=step, attempt=self.folder.next_attempt, cause=cause, why=end.why), *alerts]
