"""A server of run folders below a folder of the test's own, asked without a socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from launcher.core.events import Ended, Event, Loaded, Started, Step, to_line
from launcher.server.routes.app import create_app
from launcher.server.services import ServerSettings

SPEC = """
algorithm: {_target_: launcher.algorithms.grpo.GRPO, kl_loss_coef: 0.001}
model: {_target_: launcher.models.pretrained.Pretrained, path: Qwen/Qwen3-0.6B}
data: {train_batch_size: 8, max_prompt_length: 512, max_response_length: 1024, train_files: [/data/train.parquet]}
hardware: {n_gpus_per_node: 8}
optim: {lr: 1.0e-06}
sampler: {n: 5}
trainer: {total_epochs: 15}
"""


def write_run(folder: Path, steps: int = 3, *, how: str = "finished", more: tuple[Event, ...] = ()) -> Path:
    """A run folder as a run of so many steps leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.yaml").write_text(SPEC)
    name = f"{folder.parent.name}/{folder.name}"
    events: list[Event] = [
        Started(at=1000.0, run=name, algorithm="grpo", processes=1),
        Loaded(at=1001.0, rows=64, refused=0, val_rows=8, val_refused=0, steps_per_epoch=steps, steps=steps),
    ]
    for step in range(1, steps + 1):
        metrics = {"critic/score/mean": 0.1 * step, "val-core/gsm8k/reward/mean@1": 0.2 * step}
        events.append(Step(at=1001.0 + step, step=step, metrics=metrics))
    events += [*more, Ended(at=2000.0, how=how)]  # type: ignore[arg-type]
    lines = [to_line(event, seq=seq, attempt=1) for seq, event in enumerate(events)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def serve(root: Path) -> Iterator[Callable[..., TestClient]]:
    """`serve(**settings)` starts a server of `root`; each is stopped in the end."""
    open_clients = list[TestClient]()

    def start(**settings: Any) -> TestClient:
        client = TestClient(create_app(ServerSettings(root=root, **settings)), base_url="http://localhost:8000")
        client.__enter__()
        open_clients.append(client)
        return client

    yield start
    for client in open_clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(serve: Callable[..., TestClient]) -> TestClient:
    return serve()


def record_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "job.json").read_text())
    return found
