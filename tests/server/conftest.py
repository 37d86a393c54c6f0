"""A server of run folders below a folder of the test's own, asked without a socket."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from launcher.core.events import Ended, Event, Loaded, Phase, Saved, Started, Step, TrainingGroup, Usage, to_line
from launcher.server.database import Base
from launcher.server.routes.app import create_app
from launcher.server.services import ServerSettings
from tests.cli.test_golden import HOSTILE, make_folders
from tests.conftest import wait_until

PLAN = "/api/jobs?dry_run=1"
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The canonical runs; that of GRPO has groups, facts about their tokens, usage, a log and checkpoints, too."""
    place = tmp_path_factory.mktemp("served")
    make_folders(place)
    folder = place / "runs" / "p" / "grpo"
    groups = [
        TrainingGroup(
            at=60.0 + step, step=step, group=group, data_source="maths", prompt=f"<b>{group} + 1</b> {HOSTILE}",
            ground_truth="2", responses=("one two", f"one {step}", ""), scores=(0.0, step / 6, math.nan),
            parts={"format": (1.0, 0.0, 1.0)}, advantages=(-1.0, 1.0, 0.0),
        )
        for step in (1, 6) for group in (1, 2)
    ]  # fmt: skip
    usage = [
        Usage(at=70.0 + n, rank=n % 2, host="h", cpu_percent=n, memory_bytes=n, machine_cpu_percent=1.0,
              machine_memory_bytes=1, machine_memory_total_bytes=2, disk_free_bytes=None, gpu_percent=float(n))
        for n in range(20)
    ]  # fmt: skip
    more = [*groups, *usage, Phase(at=80.0, name="saving"), Saved(at=81.0, step=5, path="checkpoints/step_000005")]
    with (folder / "events.jsonl").open("a") as log:
        seq = sum(1 for _ in (folder / "events.jsonl").open())
        log.writelines(to_line(event, seq=seq + n, attempt=1) + "\n" for n, event in enumerate(more))
    (folder / "samples").mkdir()
    facts = {"step": 6, "group": 1, "answer": 1, "ids": [1, 2, 3], "texts": ["one", "<i>", "pad"],
             "log_probs": [-1.0, -2.0, None], "sampler_log_probs": [-1.0, -3.0, None], "advantages": [1.0, 1.0, None],
             "mask": [1, 1, 0]}  # fmt: skip
    damaged = '{"step":6,"group":2,"answer":0,"texts":["a"],"log_probs":[]}'
    (folder / "samples" / "tokens.jsonl").write_text(f"{json.dumps(facts)}\n{damaged}\nnone\n")
    (folder / "words.txt").write_text("rlrun train algorithm=grpo 'data=a b.jsonl'\nrlrun train --resume grpo\n")
    (folder / "console.log").write_text("".join(f"line {n} é€😀 \x1b[31m\n" for n in range(3000)))
    (folder / "checkpoints" / "step_000006").mkdir(parents=True)
    (folder / "checkpoints" / "step_000006" / "model.safetensors").write_bytes(b"0" * 100)
    (place / "secret.log").write_text("not for you")
    (place / "runs" / "p" / "linked").mkdir()
    (place / "runs" / "p" / "linked" / "spec.yaml").write_text("{}")
    (place / "runs" / "p" / "linked" / "events.jsonl").symlink_to(place / "secret.log")
    return place


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL of the tests' own, which Debian's package begins as its user; empty without
    POSTGRES, as SQLite takes no address."""
    if "POSTGRES" not in os.environ:
        yield ""
        return
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
    with TemporaryDirectory() as place:
        user = {"user": "postgres", "cwd": place} if os.getuid() == 0 else {"cwd": place}
        if user.get("user"):
            shutil.chown(place, "postgres")
        subprocess.run([programs / "initdb", "-D", "data", "-U", "tests", "-A", "trust", "-N"],
                       check=True, stdout=subprocess.DEVNULL, **user)  # fmt: skip
        options = ["-c", "listen_addresses=", "-k", place, "-F"]
        server = subprocess.Popen([programs / "postgres", "-D", "data", *options], stderr=subprocess.DEVNULL, **user)
        try:
            yield f"postgresql+psycopg://tests@/postgres?host={place}"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()


@pytest.fixture
def database(postgres: str, tmp_path: Path) -> str:
    """The address of a database that is empty."""
    if not postgres:
        return ""
    name, engine = f"t{uuid4().hex}", create_engine(postgres)

    def make() -> bool:
        with suppress(OperationalError), engine.begin() as connection:  # it may be beginning
            connection.execute(text(f"CREATE SCHEMA {name}"))
            return True
        return False

    wait_until(make)
    engine.dispose()
    return f"{postgres}&options=-csearch_path%3D{name}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def serve(root: Path, database: str) -> Iterator[Callable[..., TestClient]]:
    """`serve(**settings)` starts a server of `root`; each is stopped in the end."""
    open_clients = list[TestClient]()

    def start(**settings: Any) -> TestClient:
        app = create_app(ServerSettings(root=root, **{"database": database, **settings}))
        client = TestClient(app, base_url="http://localhost:8000")
        client.__enter__()
        open_clients.append(client)
        return client

    yield start
    for client in open_clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(serve: Callable[..., TestClient]) -> TestClient:
    return serve()


@pytest.fixture
def one(root: Path, client: TestClient) -> dict[str, Any]:
    """The only job of a server: a run of three steps that has finished."""
    write_run(root / "math" / "one")
    return only_job(client)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server without a job, for requests that make none."""
    settings = ServerSettings(root=tmp_path_factory.mktemp("idle") / "runs")
    with TestClient(create_app(settings), base_url="http://localhost:8000") as client:
        yield client
        assert client.get("/api/jobs").json()["total"] == 0


def only_job(client: TestClient) -> dict[str, Any]:
    """The only job of a server, after a look at its folders."""
    client.app.state.services.jobs.scan()  # type: ignore[attr-defined]
    [job] = client.get("/api/jobs").json()["items"]
    return dict(job)


def lose_database(client: TestClient) -> None:
    Base.metadata.drop_all(client.app.state.services.database.engine)  # type: ignore[attr-defined]


def record_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "job.json").read_text())
    return found
