"""Downloads what a run needs from hubs before any process starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from launcher.config.explain import explain
from launcher.core.problems import Problems
from launcher.core.state import RunState, Sink, write_all
from launcher.hubs.choice import FromHub
from launcher.hubs.progress import Progress
from launcher.models import store
from launcher.models.pretrained import Pretrained
from launcher.monitor.console import ProgressTimer
from launcher.rewards.combined import replace_each
from launcher.rewards.model import RewardModel
from launcher.spec.data import DataProgress
from launcher.spec.reward import Reward
from launcher.spec.run import RunSpec
from launcher.spec.stored import Prepared


def localized(run: RunSpec, found: Prepared) -> RunSpec:
    """The run with the local folders and facts of `found`. Raises `Problems` where its settings do not fit them."""
    try:
        return found.applied_to(run)
    except ValidationError as error:  # the model's folder tells more than its name
        raise Problems(explain(error, {})) from error


def fetched(run: RunSpec, sinks: Sequence[Sink]) -> Prepared:
    """Models and data of a run in folders of this machine. Raises `Problems` where one cannot be had, or must not be
    loaded. A model whose own code may run is left to transformers, which downloads code and weights."""
    model, reward, show = run.model, run.reward, _phase_view(sinks)

    def local(part: RewardModel) -> Reward:
        return replace(part, path=str(_download(part, show))) if part.on_hub else part

    if isinstance(model, Pretrained) and model.on_hub and not model.trust_remote_code:
        model = replace(model, path=str(_download(model, show)))
    reward = replace_each(reward, RewardModel, local)
    if problems := [*model.problems(), *reward.problems(), *run.environment.problems()]:
        raise Problems(problems)

    def show_files(at: DataProgress) -> None:
        phase = f"{at.doing} {100 * at.done_bytes // max(at.bytes, 1)} %"
        show(phase, phase)

    data = run.data.fetched(show_files)
    environment = run.environment.with_absolute_paths()
    return Prepared(directory=os.getcwd(), model=model, data=data, reward=reward, environment=environment)


def _phase_view(sinks: Sequence[Sink]) -> Callable[..., None]:
    """A function that shows the phase of a run without processes yet, and every few seconds a line on the console."""
    timer = ProgressTimer()

    def show(phase: str, line: str, notes: Sequence[str] = ()) -> None:
        lines = [*notes, *([line] if timer.due() else [])]
        write_all(sinks, RunState(status="running", phase=phase), [], lines)

    return show


def _download(source: FromHub, show: Callable[..., None]) -> Path:
    def show_bytes(progress: Progress) -> None:
        phase = f"downloading {source.path} {100 * progress.done_bytes // max(progress.total_bytes, 1)} %"
        speed = f"{progress.total_bytes / 1e9:.2f} GB, {progress.bytes_per_s / 1e6:.1f} MB/s"
        show(phase, f"{phase} of {speed}", progress.notes)

    return store.find_or_download(source, show_bytes).resolve()
