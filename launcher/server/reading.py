"""The run that a request is about, as routes read it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, Query

from launcher.core.events import Event
from launcher.core.problems import Problem, Problems, short_repr
from launcher.runs.folder import Folder
from launcher.server.columns import Columns
from launcher.server.jobs import Mark
from launcher.server.services import Services, UsesServices
from launcher.server.values import Uuid
from launcher.views.read import LogOrRun

PageNumber = Annotated[int, Query(ge=1, le=10**6)]
PageSize = Annotated[int, Query(ge=1, le=500)]
StepNumber = Annotated[int, Query(ge=0, lt=2**53)]


@dataclass(frozen=True)
class ReadRun:
    """A run as its folder is now."""

    uuid: str
    folder: Folder
    services: Services
    mark: Mark
    """Sizes and times of its files: equal where nothing has changed."""
    log: Path | None = None
    """The log of another program that it is."""

    @cached_property
    def columns(self) -> Columns:
        """Its steps, and where its other events stand."""
        return self.services.logs.now(Columns(self.folder.events))

    def source(self, *kinds: type[Event], steps: Collection[int] = ()) -> LogOrRun:
        """It as views read it, but for other kinds of events than these and, where all these steps have some, for those
        of other steps."""
        of = self.columns
        known = set(of.places_of(*kinds)[:, 3].tolist())
        only = steps if steps and known.issuperset(steps) else None
        return LogOrRun(self.folder, "rlrun", lambda: of.events(*kinds, steps=only))

    def row_of(self, step: int) -> list[int]:
        """The rows of a step, more than one where the log repeats it. Raises `Problems`."""
        rows: list[int] = np.nonzero(self.columns.steps == step)[0].tolist()
        if not rows:
            steps = self.columns.steps
            fix = f"the steps are {steps.min()} to {steps.max()}" if steps.size else "the run has no step yet"
            raise Problems(Problem(f"step {step}", "no such step", fix, "not-found"))
        return rows

    def inside(self, path: Path) -> Path:
        """`path`, a file of the run that is there. Raises `Problems` for any other, also where a link leads away, as a
        copied folder may hold one."""
        root = self.folder.path.resolve()
        if not path.resolve().is_relative_to(root) or not path.is_file():
            got = f"the run has no {short_repr(str(path.relative_to(self.folder.path)))}"
            raise Problems(Problem("name", got, "use a file of the run", "not-found"))
        return path

    def metrics_of(self, step: int) -> dict[str, float]:
        """All metrics of a step; those of its later rows count."""
        found: dict[str, float] = {}
        for event in self.columns.step_events(self.row_of(step)):
            found |= event.metrics
        return found


def read_run(uuid: Uuid, services: UsesServices) -> ReadRun:
    """Raises `Problems` where there is no such job, or its folder holds links and pipes instead of files."""
    job = services.jobs.get(uuid)
    job.folder.check()
    return ReadRun(uuid, job.folder, services, job.mark, Path(job.record.log) if job.record.log else None)


UsesRun = Annotated[ReadRun, Depends(read_run)]


def read_own_run(run: UsesRun) -> ReadRun:
    """Raises `Problems` where it is the log of another program, which has neither settings nor checkpoints."""
    run.services.launching.check_own(run.uuid)
    return run


UsesOwnRun = Annotated[ReadRun, Depends(read_own_run)]


def page_of(items: list[Any], total: int, page: int, size: int) -> dict[str, Any]:
    """A part of a list that is counted whole."""
    return {"items": items, "total": total, "page": page, "size": size}
