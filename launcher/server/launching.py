"""Jobs that are created, started, stopped and gone on with, each by the function of `launch.job` that the command line
calls. A run is a process of its own and outlives the server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from launcher.core.check_result import CheckResult
from launcher.core.overrides import argument
from launcher.core.problems import Problem, Problems
from launcher.launch import job
from launcher.launch.job import StartRequest, Submitted
from launcher.launch.rerun import prepare_rerun
from launcher.preflight.plan import Page, first_rows, page_node
from launcher.runs.folder import holder
from launcher.runs.stop_requests import StopMode
from launcher.server.jobs import Jobs, ServedJob
from launcher.server.records import JobRecord, JobRequest
from launcher.server.rows import words_of_node
from launcher.server.words import arguments_of, settings_as_arguments
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

ROOT, EXPERIMENT = "trainer.run_root", "trainer.experiment_name"
ENDED = ("finished", "doubtful", "failed", "stopped", "paused")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class NewJob:
    """A job as it is asked for."""

    about: Mapping[str, Any] = field(default_factory=dict)
    """name, description, notes, who and tags."""
    words: Mapping[str, Any] = field(default_factory=dict)
    """The documents' fields."""
    arguments: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def typed(self) -> list[str]:
        """As it would be typed after `rlrun train`. Raises `Problems`."""
        return [*arguments_of(self.words), *self.arguments, *settings_as_arguments(self.settings)]

    @property
    def digest(self) -> str:
        """Equal for equal requests."""
        node = [dict(self.about), dict(self.words), list(self.arguments), dict(self.settings)]
        return hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()


class Launching:
    """What may be done with jobs. Methods may be called from any thread, and none waits for training."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self._processes = dict[str, Submitted]()
        self._root = "runs" if jobs.root.absolute() == Path("runs").absolute() else str(jobs.root.absolute())
        self._at_root = [] if self._root == "runs" else [argument(ROOT, self._root)]

    # ---- before it starts

    def plan(self, new: NewJob) -> dict[str, Any]:
        """What `rlrun plan --json` prints of it, with the command line that does the same, and the first rows as
        tokens."""
        try:
            typed = new.typed
        except Problems as error:
            results = [CheckResult("FAIL", each.where, each.got, each.fix) for each in error.problems]
            return {**page_node(Page(None, results)), "command": "", "rows": []}
        page = job.plan(StartRequest((*typed, *self._at_root)))
        command = shlex.join(["rlrun", "train", *typed, *self._at_root])
        return {**page_node(page), "command": command, "rows": first_rows(page)}

    def create(self, new: NewJob, key: str = "") -> tuple[ServedJob, bool]:
        """The job, and whether it is new: of the same key and request it is the one that the first of them made.
        Raises `Problems` where the request makes no run; what this machine lacks for it is found when it starts."""
        digest = new.digest
        if key and (made := self.jobs.of_key(key, digest)):
            return made, False
        typed = [*new.typed, *self._at_root]
        page = job.plan(StartRequest(tuple(new.typed)))
        if page.run is None:
            failed = (each for each in page.results if each.level == "FAIL")
            raise Problems(Problem(each.subject, each.message, each.fix) for each in failed)
        _check_root(page.run, "runs", self._root)
        about, trainer = dict(new.about), page.run.trainer
        named: dict[str, Any] = {name: about[name] for name in ("name", "description") if name in about}
        with self.jobs.lock:
            if trainer.experiment_name is None and (name := str(about.get("name", ""))):
                typed.append(f"{EXPERIMENT}={self._free_name(trainer.project_name, name)}")
            record = JobRecord(
                str(uuid4()), **about, created_at=time.time(), words={**new.words, **named},
                planned=words_of_node(to_node(page.run), page.choices.get("model", "")),
                arguments=tuple(typed), key=key, digest=digest if key else "",
            )  # fmt: skip
            return self.jobs.add_once(record)

    def _free_name(self, project: str, name: str) -> str:
        """A name that neither a folder nor a job that waits to be started has."""
        stem = _UNSAFE.sub("-", name)[:100].strip(".-") or "job"
        jobs = self.jobs.every(unread=True)
        waiting = {word for each in jobs if not each.has_folder for word in each.record.arguments}

        def is_free(name: str) -> bool:
            return f"{EXPERIMENT}={name}" not in waiting and not (self.jobs.root / project / name).exists()

        names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
        return next(filter(is_free, names))

    # ---- starting

    def start(self, uuid: str) -> ServedJob:
        """Start a job that was created. Raises `Problems` with all that would fail."""
        self.check_own(uuid)
        found = self.jobs.get(uuid)
        with found.busy:
            if found.has_folder:
                raise Problems(_not_now(found, "resume goes on with it, rerun repeats it"))
            return self._begun(found, job.submit(StartRequest(found.record.arguments)), "start")

    def resume(self, uuid: str, settings: Mapping[str, Any], from_step: int | None) -> ServedJob:
        """Go on with it from its newest checkpoint that verifies, or that of a step, as a new attempt. What ended
        before it had settings is started again."""
        found, words = self._startable(uuid), settings_as_arguments(settings)
        with found.busy:
            if self.jobs.get(uuid).standing.status not in ENDED:
                raise Problems(_not_now(found, "stop it first"))
            if found.folder.spec.is_file():
                return self._begun(found, job.resume(found.folder, words, from_step), "resume")
            named = f"{EXPERIMENT}={found.folder.path.name}"
            return self._begun(found, job.submit(StartRequest((*found.record.arguments, *words, named))), "resume")

    def rerun(self, uuid: str, settings: Mapping[str, Any], *, anyway: bool = False) -> ServedJob:
        """A new job with the same settings but these. Raises `Problems` where its data, model or reward are not what
        the run began with, unless `anyway`."""
        old, words = self._startable(uuid), settings_as_arguments(settings)
        made = prepare_rerun(old.folder, words)
        _check_root(made.run, str(old.folder.path.absolute().parents[1]))
        if made.refused and not anyway:
            raise Problems(made.refused)
        trainer = made.run.trainer
        named = [f"trainer.project_name={trainer.project_name}", f"{EXPERIMENT}={trainer.experiment_name}"]
        typed = (str(old.folder.spec.absolute()), *words, *named, argument(ROOT, self._root))
        submitted = job.submit(StartRequest(typed))
        record = JobRecord(
            str(uuid4()), f"{old.node['name']} again", tags=old.record.tags, created_at=time.time(), arguments=typed,
            place=self.jobs.place_of(submitted.folder),
        )  # fmt: skip
        return self._begun(self.jobs.add(record), submitted, "start")

    def _begun(self, of: ServedJob, submitted: Submitted, request: JobRequest) -> ServedJob:
        self._processes[of.uuid] = submitted  # kept, so that its exit is collected
        place = of.record.place or self.jobs.place_of(submitted.folder)
        return self.jobs.change(of, place=place, request=request, requested_at=time.time(), pid=submitted.process.pid)

    def _startable(self, uuid: str) -> ServedJob:
        found = self.jobs.get(uuid)
        if not found.has_folder:
            raise Problems(_not_now(found, "start it first"))
        self.check_own(uuid)
        if found.record.origin != "rlrun":
            got = f"is trained by another program ({found.record.origin})"
            raise Problems(Problem(found.uuid, got, "start it where that is started", "changed"))
        return found

    def check_own(self, uuid: str) -> None:
        """Raises `Problems` where the job is a log, of which nobody here knows the run."""
        if log := self.jobs.get(uuid).record.log:
            fix = "it has curves, findings and its text; ask the program that wrote it for more"
            raise Problems(Problem(uuid, f"is the log {log}, and no run of this server", fix, "changed"))

    def collect(self) -> None:
        """Take notice of processes that have ended."""
        for uuid, submitted in list(self._processes.items()):
            if submitted.process.poll() is not None:
                del self._processes[uuid]

    # ---- stopping

    def stop(self, uuid: str, *, now: bool = False, pause: bool = False) -> ServedJob:
        """Ask it to save and end (`now`: to end at once). It is remembered as paused where that was meant."""
        found = self._startable(uuid)
        with found.busy:
            if found.standing.status in ENDED:
                raise Problems(_not_now(found, "only a run that goes on can be stopped"))
            changed = self.jobs.change(found, request="pause" if pause else "stop", requested_at=time.time())
            mode: StopMode = "now" if now else "save"
            if holder(found.folder) is None and self.jobs.begins(found) and found.record.pid:
                os.kill(found.record.pid, signal.SIGTERM)  # it reads its settings, and writes nothing yet
            else:
                job.stop(found.folder, mode, wait_s=0.0)
            return self.jobs.get(changed.uuid)


def _check_root(run: RunSpec, *roots: str) -> None:
    """Raises `Problems` where a request, however it is spelled, asks for another folder of runs than these."""
    if run.trainer.run_root not in roots:
        got = "is the folder that the server was started with"
        raise Problems(Problem(ROOT, got, "leave it out", "not-permitted"))


def _not_now(found: ServedJob, fix: str) -> Problem:
    return Problem(found.uuid, f"is {found.standing.status}", fix, "changed")
