"""Creates, starts, stops and resumes jobs, each by the function of `launch.job` that the command line calls. A run is a
process of its own and outlives the server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from launcher.core import checkpoints
from launcher.core.overrides import argument
from launcher.core.problems import Problem, Problems
from launcher.launch import job
from launcher.launch.job import Submitted
from launcher.launch.rerun import prepare_rerun
from launcher.launch.start import to_resume
from launcher.preflight.plan import Page, first_rows, page_node
from launcher.runs.folder import holder
from launcher.runs.stop_requests import StopMode
from launcher.server.jobs import Jobs, ServedJob
from launcher.server.records import JobRecord, JobRequest, id_of_key
from launcher.server.rows import words_of_node
from launcher.server.words import arguments_of
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

ROOT, EXPERIMENT, STEPS = "trainer.run_root", "trainer.experiment_name", "trainer.total_training_steps"
ENDED = ("finished", "doubtful", "failed", "stopped", "paused")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class NewJob:
    """A request for a new job."""

    about: Mapping[str, Any] = field(default_factory=dict)
    """name, description, notes, who and tags."""
    words: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the job API, see conf/job_words.yaml."""
    arguments: Sequence[str] = ()

    @property
    def typed(self) -> list[str]:
        """The arguments of `rlrun train` for it."""
        return [*arguments_of(self.words), *self.arguments]

    @property
    def digest(self) -> str:
        """SHA-256 of the request; equal for equal requests."""
        node = [dict(self.about), dict(self.words), list(self.arguments)]
        return hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()


class Launching:
    """The operations on jobs. Methods may be called from any thread, and none waits for training."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self._root = "runs" if jobs.root.absolute() == Path("runs").absolute() else str(jobs.root.absolute())
        self._root_argument = [] if self._root == "runs" else [argument(ROOT, self._root)]

    # ---- before it starts

    def plan(self, new: NewJob) -> dict[str, Any]:
        """What `rlrun plan --json` prints for it, with the equivalent `command` and the first `rows` as tokens."""
        arguments = [*new.typed, *self._root_argument]
        if named := self._name_argument(new, page := job.plan(arguments)):
            page = job.plan(arguments := [*arguments, *named])
        return {**page_node(page), "command": shlex.join(["rlrun", "train", *arguments]), "rows": first_rows(page)}

    def create(self, new: NewJob, key: str = "") -> tuple[ServedJob, bool]:
        """The job, and whether it is new: a repeated request with the same key gives the job of the first. Raises
        `Problems` where the request is not a valid run; checks of this machine run when it starts."""
        uuid, digest = (id_of_key(key), new.digest) if key else (str(uuid4()), "")
        if existing := self.jobs.repeated(uuid, digest):
            return existing, False
        page = job.plan(new.typed)
        if page.run is None:
            failures = (result for result in page.results if result.level == "FAIL")
            raise Problems(Problem(result.subject, result.message, result.fix) for result in failures)
        _check_root(page.run, "runs", self._root)
        planned = words_of_node(to_node(page.run), page.choices.get("model", ""))
        words = {**planned, **new.words}
        with self.jobs.lock:
            arguments = (*new.typed, *self._root_argument, *self._name_argument(new, page))
            record = JobRecord(
                uuid, **new.about, created_at=time.time(), words=words, arguments=arguments, digest=digest
            )
            return self.jobs.add(record)

    def _name_argument(self, new: NewJob, page: Page) -> list[str]:
        """Names the run as the job, with a number where a run or a waiting job has it; none where it has a name."""
        name = str(new.about.get("name", ""))
        if not name or page.run is None or page.run.trainer.experiment_name is not None:
            return []
        stem = _UNSAFE.sub("-", name)[:100].strip(".-") or "job"
        waiting = {word for job in self.jobs.every(unread=True) if not job.has_folder for word in job.record.arguments}
        folder = self.jobs.root / page.run.trainer.project_name
        names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
        free = (each for each in names if f"{EXPERIMENT}={each}" not in waiting and not (folder / each).exists())
        return [f"{EXPERIMENT}={next(free)}"]

    # ---- starting

    def start(self, uuid: str) -> ServedJob:
        """Start a created job. Raises `Problems` with all failed checks, or where it was started before."""
        self.check_own(uuid)
        served = self.jobs.get(uuid)
        with served.busy:
            if served.has_folder:
                self._get_startable(uuid)
                raise Problems(_wrong_status(served, "once it has ended, resume goes on with it; rerun repeats it"))
            with self.jobs.claimed(served):
                return self._track(served, job.submit(served.record.arguments), "start")

    def resume(self, uuid: str, changes: Sequence[str], from_step: int | None) -> ServedJob:
        """Resume a job from its newest checkpoint that verifies, or that of `from_step`, as a new attempt. A job that
        ended before it wrote its settings is started again. Raises `Problems`."""
        served = self._get_startable(uuid)
        with served.busy:
            if self.jobs.get(uuid).standing.status not in ENDED:
                raise Problems(_wrong_status(served, "stop it first"))
            if served.folder.spec.is_file():
                _check_goes_on(served, changes, from_step)
                return self._track(served, job.resume(served.folder, changes, from_step), "resume")
            name = f"{EXPERIMENT}={served.folder.path.name}"
            return self._track(served, job.submit([*served.record.arguments, *changes, name]), "resume")

    def rerun(self, uuid: str, changes: Sequence[str], *, anyway: bool = False) -> ServedJob:
        """A new job with the settings of this one but for these `changes`. Raises `Problems` where its data, model or
        reward have changed since the run began, unless `anyway`."""
        source = self._get_startable(uuid)
        prepared = prepare_rerun(source.folder, changes)
        _check_root(prepared.run, str(source.folder.path.absolute().parents[1]))
        if prepared.refused and not anyway:
            raise Problems(prepared.refused)
        trainer = prepared.run.trainer
        names = [f"trainer.project_name={trainer.project_name}", f"{EXPERIMENT}={trainer.experiment_name}"]
        all_arguments = (str(source.folder.spec.absolute()), *changes, *names, argument(ROOT, self._root))
        submitted = job.submit(all_arguments)
        record = JobRecord(
            str(uuid4()), f"{source.node['name']} again", tags=source.record.tags, created_at=time.time(),
            arguments=all_arguments, place=self.jobs.place_of(submitted.folder),
        )  # fmt: skip
        return self._track(self.jobs.add(record)[0], submitted, "start")

    def _track(self, served: ServedJob, started: Submitted, request: JobRequest) -> ServedJob:
        threading.Thread(target=started.process.wait, daemon=True).start()  # its exit status is collected
        place = served.record.place or self.jobs.place_of(started.folder)
        return self.jobs.change(served, place=place, request=request, requested_at=time.time(), pid=started.process.pid)

    def _get_startable(self, uuid: str) -> ServedJob:
        served = self.jobs.get(uuid)
        if not served.has_folder:
            raise Problems(_wrong_status(served, "start it first"))
        self.check_own(uuid)
        if served.record.origin != "rlrun":
            got = f"is trained by another program ({served.record.origin})"
            raise Problems(Problem(served.uuid, got, "start it where that is started", "changed"))
        return served

    def check_own(self, uuid: str) -> None:
        """Raises `Problems` where the job is the log of another program, whose run this server does not control."""
        if log := self.jobs.get(uuid).record.log:
            fix = "it has curves, findings and its text; ask the program that wrote it for more"
            raise Problems(Problem(uuid, f"is the log {log}, and no run of this server", fix, "changed"))

    # ---- stopping

    def stop(self, uuid: str, *, now: bool = False, pause: bool = False) -> ServedJob:
        """Ask a run to save and end (`now`: to end at once); with `pause` it becomes paused. Raises `Problems`."""
        served = self._get_startable(uuid)
        with served.busy:
            if served.standing.status in ENDED:
                raise Problems(_wrong_status(served, "only a run that goes on can be stopped"))
            changed = self.jobs.change(served, request="pause" if pause else "stop", requested_at=time.time())
            mode: StopMode = "now" if now else "save"
            if holder(served.folder) is None and self.jobs.begins(served) and served.record.pid:
                os.kill(served.record.pid, signal.SIGTERM)  # it still reads its settings, and holds no lock yet
            else:
                job.stop(served.folder, mode, wait_s=0.0)
            return self.jobs.get(changed.uuid)


def _check_root(run: RunSpec, *roots: str) -> None:
    """Raises `Problems` where the resolved settings have another run root than these."""
    if run.trainer.run_root not in roots:
        got = "is the folder that the server was started with"
        raise Problems(Problem(ROOT, got, "leave it out", "not-permitted"))


def _check_goes_on(served: ServedJob, changes: Sequence[str], from_step: int | None) -> None:
    """Raises `Problems` where there is no such checkpoint, which is not verified here, or nothing is left to do."""
    kept = sorted(map(checkpoints.step_of, checkpoints.newest_first(served.folder.checkpoints)))
    if from_step not in (None, *kept):
        fix = f"use {' or '.join(map(str, kept)) or 'none, as nothing is saved'}"
        raise Problems(Problem("from_step", f"there is no checkpoint of step {from_step}", fix))
    if served.state.status == "finished" and to_resume(served.folder, changes, from_step).is_done:
        fix = f"{STEPS}={2 * served.state.step} would go on, as an earlier from_step would"
        raise Problems(_wrong_status(served, fix))


def _wrong_status(served: ServedJob, fix: str) -> Problem:
    return Problem(served.uuid, f"is {served.standing.status}", fix, "changed")
