"""What a run needs from hubs is brought here before any process starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.core.problems import Problems
from launcher.core.state import RunState, Sink, write_all
from launcher.hubs.choice import FromHub
from launcher.hubs.progress import Progress
from launcher.models import store
from launcher.models.pretrained import Pretrained
from launcher.monitor.console import Seldom
from launcher.rewards.combined import Combined
from launcher.rewards.model import RewardModel
from launcher.spec.data import DataProgress as Rows
from launcher.spec.data import OnDataProgress
from launcher.spec.reward import Reward
from launcher.spec.run import RunSpec


def prepared(run: RunSpec, sinks: Sequence[Sink]) -> RunSpec:
    """The run with its models and data in folders of this machine. Raises `Problems` where one cannot be had, or must
    not be loaded. A model whose own code may run is left to transformers, which fetches code and weights."""
    model, reward = run.model, run.reward
    if isinstance(model, Pretrained) and model.on_hub and not model.trust_remote_code:
        model = replace(model, path=str(_here(model, sinks)))
    reward = _rewarded(reward, sinks)
    if found := [*model.problems(), *reward.problems()]:
        raise Problems(found)
    data = run.data.prepared(run.algorithm.data, _reading(sinks))
    return replace(run, model=model, reward=reward, data=data)


def _reading(sinks: Sequence[Sink]) -> OnDataProgress:
    """Shows data being prepared as the phase that the run is in."""
    seldom = Seldom()

    def watch(at: Rows) -> None:
        told = f"{at.doing} {100 * at.done_bytes // max(at.bytes, 1)} %"
        lines = [f"{told}, {at.rows:,} rows"] if seldom.due() else []
        write_all(sinks, replace(RunState(), status="running", phase=told), [], lines)

    return watch


def _rewarded(reward: Reward, sinks: Sequence[Sink]) -> Reward:
    """The reward with every model in it in a folder."""
    if isinstance(reward, RewardModel) and reward.on_hub:
        return replace(reward, path=str(_here(reward, sinks)))
    if isinstance(reward, Combined):
        return replace(reward, parts={name: _rewarded(part, sinks) for name, part in reward.parts.items()})
    return reward


def _here(asked: FromHub, sinks: Sequence[Sink]) -> Path:
    found = store.find(asked.path, asked.revision)
    if found is None:
        found = store.download(asked.path, _told(asked.path, sinks), sources=asked.hub_order, revision=asked.revision)
    return found.resolve()


def _told(repo: str, sinks: Sequence[Sink]) -> Callable[[Progress], None]:
    """Shows a download as the phase that the run is in."""
    seldom = Seldom()

    def watch(progress: Progress) -> None:
        share = 100 * progress.done_bytes // max(progress.total_bytes, 1)
        size, speed = progress.total_bytes / 1e9, progress.bytes_per_s / 1e6
        told = f"downloading {repo} {share} % of {size:.2f} GB, {speed:.1f} MB/s"
        lines = [*progress.notes, *([told] if seldom.due() else [])]
        write_all(sinks, replace(RunState(), status="running", phase=f"downloading {repo} {share} %"), [], lines)

    return watch
