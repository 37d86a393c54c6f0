"""How an attempt ended, for the run's last event, its exit code, and whoever decides whether it goes on."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.core.checkpoints import Checkpoints
from launcher.core.events import Ended, How
from launcher.launch.follow import Follower
from launcher.monitor.failure import CONFIGURATION, FailureDiagnosis, diagnose, left_by
from launcher.runs.attempts import End
from launcher.runs.stop_requests import SIGNALS, StopRequest
from launcher.spec.cluster import Job
from launcher.spec.run import RunSpec


@dataclass(frozen=True)
class Ending:
    how: How
    why: str
    exit_code: int
    diagnosis: FailureDiagnosis | None = None
    """Of a fault."""

    @property
    def event(self) -> Ended:
        return Ended(how=self.how, why=self.why)

    def end(self, step: int, at: float) -> End:
        """As the attempt's folder keeps it."""
        cause, rank = (self.diagnosis.cause.name, self.diagnosis.rank) if self.diagnosis else (self.how, None)
        return End(cause, self.why, rank, step, at)


def finished(step: int, checkpoints: Checkpoints) -> Ending:
    there = checkpoints.newest_first()
    unsaved = step > 0 and not (there and there[0].step == step)
    return Ending("finished", f"the last step is not saved; {saved(checkpoints)}" if unsaved else "", 0)


def stopped(number: int, told: str, checkpoints: Checkpoints) -> Ending:
    """By signal `number`; what is `told` of that stands after its name."""
    return Ending("stopped", f"{signal.Signals(number).name}{told}; {saved(checkpoints)}", 128 + number)


def failed(diagnosis: FailureDiagnosis, logs: Path | None) -> Ending:
    its_log = f"; its log is {logs / f'rank-{diagnosis.rank}.log'}" if logs and diagnosis.rank is not None else ""
    user_error = diagnosis.crash is not None and diagnosis.crash.user_error
    return Ending("failed", f"{diagnosis.why}{its_log}", 2 if user_error else 1, diagnosis)


def given_up(ending: Ending, restarts: int) -> Ending:
    """Of a fault after which the run does not go on by itself."""
    cause = ending.diagnosis.cause if ending.diagnosis else None
    times = "once" if restarts == 1 else f"{restarts} times"
    tries = f"; restarted {times} without a new checkpoint" if restarts and cause and cause.most != 0 else ""
    fix = f"; {cause.fix}" if cause and cause.fix else ""
    return replace(ending, why=f"{ending.why}{tries}{fix}")


def saved(checkpoints: Checkpoints) -> str:
    there = checkpoints.newest_first()
    return f"checkpoints/{there[0].name} is the newest checkpoint" if there else "nothing is saved yet"


def of_job(
    code: int,
    job: Job,
    run: RunSpec,
    checkpoints: Checkpoints,
    logs: Path,
    follower: Follower,
    asked: StopRequest,
    oom_kills: int,
) -> Ending:  # fmt: skip
    """Of an attempt whose processes have all ended, the first with `code`."""
    rank = job.failed_rank()
    if code == 0:
        return finished(follower.state.step, checkpoints)
    if asked:
        return stopped(asked.first, "" if code == 128 + asked.first else ", ended at once", checkpoints)
    number = code - 128 if code >= 128 else -code
    if number in SIGNALS:  # the process itself was asked to stop, or before its handler was installed
        return stopped(number, f" to rank {rank}", checkpoints)
    if rank is None and follower.crash and not job.lost_resources():  # the cluster started nothing, and said why
        return failed(FailureDiagnosis(CONFIGURATION, None, "; ".join(follower.crash.lines), follower.crash), logs)
    found = None if rank is None else left_by(rank, code, logs / f"rank-{rank}.log", run.engine.reader())
    if found and rank == 0 and follower.crash:
        found = replace(found, crash=follower.crash)
    others = (
        left_by(other, None, logs / f"rank-{other}.log", run.engine.reader())
        for other in range(run.taken.processes)
        if other != rank
    )
    return failed(diagnose(found, others, job.lost_resources(), oom_kills), logs)
