"""The run of a request, as routes read it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Query

from launcher.core.events import Event
from launcher.core.problems import Problem, Problems, short_repr
from launcher.runs.folder import Folder
from launcher.server.columns import Columns
from launcher.server.jobs import Mark
from launcher.server.services import Services, UsesServices
from launcher.server.values import Uuid
from launcher.views.read import LogOrRun

StepNumber = Annotated[int, Query(ge=0, lt=2**53)]


@dataclass(frozen=True)
class ReadRun:
    """A run, read from its folder."""

    uuid: str
    folder: Folder
    services: Services
    mark: Mark
    """Sizes and times of its files: equal where nothing has changed."""
    log: Path | None = None
    """The log from which the run was read, where another program wrote one."""

    @cached_property
    def columns(self) -> Columns:
        """Its steps as arrays, and the index of its other events. Raises `OSError`."""
        path = self.folder.events
        columns: Columns = self.services.columns.update(path, lambda old: old.read_on() if old else Columns.of(path))
        return columns

    def source(self, *kinds: type[Event], steps: Collection[int] = ()) -> LogOrRun:
        """The run as views read it, with events of these kinds only; also only those of these `steps`, where each of
        the steps has some."""
        log_columns = self.columns
        covered_steps = set(log_columns.places_of(*kinds)[:, 3].tolist())
        only_steps = steps if steps and covered_steps.issuperset(steps) else None
        return LogOrRun(self.folder, "rlrun", lambda: log_columns.events(*kinds, steps=only_steps))

    def inside(self, path: Path) -> Path:
        """`path`, if it is an existing file of the run. Raises `Problems` otherwise, also for a link that leads out of
        the folder, as a copied one may hold."""
        root = self.folder.path.resolve()
        if not path.resolve().is_relative_to(root) or not path.is_file():
            got = f"the run has no {short_repr(str(path.relative_to(self.folder.path)))}"
            raise Problems(Problem("name", got, "use a file of the run", "not-found"))
        return path


def read_run(uuid: Uuid, services: UsesServices) -> ReadRun:
    """Raises `Problems` where there is no such job, or its folder holds links or pipes in place of files."""
    job = services.jobs.get(uuid)
    job.folder.check()
    return ReadRun(uuid, job.folder, services, job.mark, Path(job.record.log) if job.record.log else None)


UsesRun = Annotated[ReadRun, Depends(read_run)]


def read_own_run(run: UsesRun) -> ReadRun:
    """Raises `Problems` for the log of another program, which has neither settings nor checkpoints."""
    run.services.launching.check_own(run.uuid)
    return run


UsesOwnRun = Annotated[ReadRun, Depends(read_own_run)]
