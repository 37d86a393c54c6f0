"""What each library's own reader finds is what the event log says: `make test-trackers` has the libraries.

Each test sends in pieces: before a restart, after it, and once again.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from launcher.core.events import Restarted, Step
from launcher.trackers.sending import Sender
from launcher.trackers.tracker import Remembered, read_state, write_state
from launcher.views.read import find


def needs(name: str):
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed; make test-trackers has it")


def read(module: str, name: str):
    """From a library that is not always there."""
    return getattr(importlib.import_module(module), name)


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    settings = {"WANDB_MODE": "offline", "SWANLAB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio"),
                "WANDB_SILENT": "true", "SWANLAB_ROOT": str(tmp_path / "swanlab"), "HOME": str(tmp_path)}  # fmt: skip
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    for module in [each for name, each in sys.modules.items() if name.partition(".")[0] == "trackio"]:
        if hasattr(module, "TRACKIO_DIR"):  # it is read only when it is imported, which another test did
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.chdir(tmp_path)  # where MLflow puts artifacts of a store that has no place for them
    for key in ("TENSORBOARD_DIR", "WANDB_DIR", "MLFLOW_TRACKING_URI", "SWANLAB_LOG_DIR", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(key, raising=False)


def send(folder, name: str) -> int:
    sent = Sender(name, folder.path, lambda: False, print, pause=lambda seconds: None).run()
    assert sent.failure == ""
    return sent.steps


def send_in_pieces(folder, name: str, events) -> None:
    """Up to the middle of what is undone; then the rest; then nothing is left."""
    place = next(place for place, event in enumerate(events) if isinstance(event, Restarted))
    folder.write(events[: place - 4])
    assert send(folder, name) > 0
    folder.write(events[place - 4 :])
    assert send(folder, name) > 0
    assert send(folder, name) == 0


# ---- readers: each row of a tracker, with its number; the later row of a step counts


def of_tensorboard(folder: Path):
    from_file = read("tensorboard.backend.event_processing.event_accumulator", "EventAccumulator")
    events = from_file(str(folder), {"scalars": 0, "histograms": 0, "tensors": 0})
    events.Reload()
    return events


def of_wandb(folder: Path) -> list[tuple[int, dict]]:
    """Rows of the history in all offline files, by a reader that is not ours."""
    record = read("wandb.proto.wandb_internal_pb2", "Record")
    reader = read("swanlab.converter.wb.wbdatastore", "WBDataStoreReader")
    cut, rows = read("swanlab.converter.wb.wbdatastore", "DataStoreTruncatedError"), []
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        with reader() as data, contextlib.suppress(cut):  # of a file whose writer was killed
            data.open(file)
            while (each := data.scan()) is not None:
                found = record()
                found.ParseFromString(each)
                if items := found.history.item:
                    row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                    rows.append((row["_step"], row))
    return rows


def of_trackio(folder: Path) -> list[tuple[int, dict]]:
    storage = read("trackio.sqlite_storage", "SQLiteStorage")
    (run,) = storage.get_runs("p")
    return [(row["step"], row) for row in storage.get_logs("p", run, max_points=10**6)]


def of_mlflow(folder: Path, uri: str = "", experiment: str = "p") -> tuple:
    """A client, and the only run of the experiment."""
    client = read("mlflow.tracking", "MlflowClient")(tracking_uri=uri or f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return client, run


def values_of_swanlab(folder: Path) -> list[tuple[str, int, float]]:
    store = read("swanlab.sdk.internal.core_python.store", "DataStoreReader")
    record = read("swanlab.proto.swanlab.record.v1.record_pb2", "Record")
    found = []
    for file in sorted(folder.glob("swanlog/run-*/run-*.swanlab")):
        if file.stat().st_size < 7:  # its writer was killed before it had begun
            continue
        reader = store()
        reader.open(file)
        with contextlib.suppress(read("swanlab.exceptions", "DataStoreError"), AssertionError):  # where a kill cut it
            while (data := reader.scan()) is not None:
                each = record()
                each.ParseFromString(data)
                if each.WhichOneof("record_type") == "scalar":
                    found.append((each.scalar.key, each.scalar.step, each.scalar.value.number))
        reader.close()
    return found


def of_swanlab(folder: Path) -> list[tuple[int, dict]]:
    rows: dict[int, dict[str, float]] = {}
    for name, number, value in values_of_swanlab(folder):
        assert name not in rows.setdefault(number, {})
        rows[number][name] = value
    return sorted(rows.items())


ROWS = {"wandb": of_wandb, "swanlab": of_swanlab, "trackio": of_trackio}


def same(found: dict, expected: dict) -> None:
    assert sorted(found) == sorted(expected)
    for step, metrics in expected.items():
        values = {name: float(found[step][name]) + 0.0 for name in metrics}  # W&B does not keep the sign of -0
        assert repr(values) == repr({name: value + 0.0 for name, value in metrics.items()}), step


# ---- TensorBoard


@needs("tensorboard")
def test_tensorboards_own_reader_finds_every_value(folder, awkward, expected):
    import_float = read("numpy", "float32")
    send_in_pieces(folder, "tensorboard", awkward)
    events = of_tensorboard(folder.path / "tensorboard")
    for name in expected[0]:
        found = {each.step: each.value for each in events.Scalars(name)}
        with read("numpy", "errstate")(over="ignore"):
            wanted = {step: float(import_float(metrics[name])) for step, metrics in expected.items()}
        assert repr(found) == repr(wanted), name
        assert len(events.Scalars(name)) == 13, "what is undone is gone"
    rewards, again = (events.Scalars(name) for name in ("critic/rewards/mean", "train/core/reward/mean"))
    assert [each.value for each in again] == [each.value for each in rewards]
    for name in ("train/core/policy_loss", "train/core/entropy", "val/core/reward/mean@1"):
        assert len(events.Scalars(name)) == 13
    histogram = events.Histograms("train/core/reward/distribution")[-1]
    assert (histogram.step, histogram.histogram_value.num) == (7, 9.0)
    assert histogram.histogram_value.bucket == [0.0, 7.0, 2.0]
    assert {"settings", "alerts", "val/samples/gsm8k"} <= {*events.Tags()["tensors"]}


@needs("tensorboard")
def test_an_event_file_is_a_log(folder):
    folder.write([Step(at=float(n), step=n, metrics={"a": n / 4, "b": -1.0}) for n in range(1, 9)])
    send(folder, "tensorboard")
    (file,) = (folder.path / "tensorboard").iterdir()
    source = find(str(file), folder.path)
    assert source.kind == "tensorboard"
    assert [(each.step, each.metrics["a"], each.metrics["b"]) for each in source.steps()] == [
        (n, n / 4, -1.0) for n in range(1, 9)
    ]


# ---- the others


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[needs(name), needs("swanlab" if name == "wandb" else name)])  # which reads W&B's files
    for name in ROWS
])  # fmt: skip
def test_the_librarys_reader_finds_every_value_once(folder, awkward, expected, name):
    send_in_pieces(folder, name, awkward)
    numbers, rows = zip(*ROWS[name](folder.path), strict=True)
    same({int(row["training/global_step"]): row for row in rows if "actor/entropy" in row}, expected)
    assert list(numbers) == sorted(set(numbers))
    if name == "wandb":
        assert rows[0]["_timestamp"] == 101.0
        ids = {file.stem for file in folder.path.glob("wandb/offline-run-*/run-*.wandb")}
        assert ids == {f"run-{read_state(folder.path, 'wandb').id}"}, "one run for life"


@needs("mlflow")
@pytest.mark.parametrize("store", ["", "sqlite"])
def test_mlflows_client_finds_every_value(folder, awkward, expected, store, tmp_path, monkeypatch):
    if store:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/shared.db")
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    send_in_pieces(folder, "mlflow", awkward)
    client, run = of_mlflow(folder.path, os.environ.get("MLFLOW_TRACKING_URI", ""), "ours" if store else "p")
    assert run.info.status == "FINISHED" and run.data.params["optim.lr"] == "0.1"
    largest = sys.float_info.max  # what MLflow keeps for infinity
    for name in expected[0]:
        history = client.get_metric_history(run.info.run_id, name.replace("@", "_at_"))
        found = {each.step: each.value for each in sorted(history, key=lambda each: each.timestamp)}
        wanted = {step: max(min(metrics[name], largest), -largest) if math.isinf(metrics[name]) else metrics[name]
                  for step, metrics in expected.items()}  # fmt: skip
        assert {step: repr(abs(value)) for step, value in found.items()} == {
            step: repr(abs(value)) for step, value in wanted.items()
        }, name
        assert max(Counter((each.step, each.timestamp) for each in history).values()) == 1
    assert len(client.list_artifacts(run.info.run_id, "samples")) == 2  # of steps 0 and 6; that of 12 is undone


@needs("mlflow")
def test_what_mlflow_has_already_is_not_sent_again(folder):
    folder.write([Step(at=float(n), step=n, metrics={"a": n / 7, "b": 1.0}) for n in range(5)])
    send(folder, "mlflow")
    client, run = of_mlflow(folder.path)
    client.set_tag(run.info.run_id, "rlrun.row", "1")  # as if a kill had come before it was set
    write_state(folder.path, "mlflow", Remembered(read_state(folder.path, "mlflow").id))
    folder.write([Step(at=5.0, step=5, metrics={"a": 5 / 7})])
    send(folder, "mlflow")
    assert [each.step for each in client.get_metric_history(run.info.run_id, "a")] == [0, 1, 2, 3, 4, 5]
    assert len(client.get_metric_history(run.info.run_id, "b")) == 5


@needs("swanlab")
def test_a_row_that_a_kill_has_cut_is_completed_once(folder):
    """Its file is cut behind each value of the last row; a row of three values and the step has four places."""
    folder.write([Step(at=float(n), step=n, metrics={"a": 1.0, "b": 2.0, "c": n / 7}) for n in range(4)])
    send(folder, "swanlab")
    (file,) = folder.path.glob("swanlog/run-*/run-*.swanlab")
    whole, data, left = values_of_swanlab(folder.path), file.read_bytes(), 16
    for size in range(len(data), 0, -1):
        os.truncate(file, size)
        if len(values_of_swanlab(folder.path)) == left:
            continue
        left -= 1
        assert send(folder, "swanlab") == 1, left
        assert Counter(values_of_swanlab(folder.path)) == Counter(whole)
        assert send(folder, "swanlab") == 0
        for other in {*folder.path.glob("swanlog/run-*/run-*.swanlab")} - {file}:
            other.unlink()
        if left == 12:
            break
    assert left == 12


@needs("swanlab")
def test_swanlab_without_a_key_says_once_what_to_do(folder, awkward, monkeypatch):
    monkeypatch.setenv("SWANLAB_MODE", "online")
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)
    folder.write(awkward)
    lines = list[str]()
    sent = Sender("swanlab", folder.path, lambda: False, lines.append, pause=lambda seconds: None).run()
    assert sent.failure and len(lines) == 1
    assert "no API key; export SWANLAB_API_KEY=KEY, or run swanlab login, or export SWANLAB_MODE=offline" in lines[0]


# ---- kill -9


def sent_steps(folder: Path, name: str) -> list[int]:
    if name == "tensorboard":
        return [each.step for each in of_tensorboard(folder / "tensorboard").Scalars("a")]
    if name in ROWS:
        return sorted(number for number, _ in ROWS[name](folder))  # files of the same second come in any order
    client, run = of_mlflow(folder)
    return sorted(each.step for each in client.get_metric_history(run.info.run_id, "a"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in ("tensorboard", *ROWS, "mlflow")])
def test_killed_in_the_middle_nothing_is_lost_and_nothing_is_there_twice(folder, name, kill_once_sent):
    """Three kills, each once some of the steps have arrived: the first as soon as the tracker is open."""
    steps, chance = 2000, random.Random(1)
    folder.write([Step(at=float(n), step=n, metrics={"a": n / 7, "b": 1.0}) for n in range(steps)])
    argv = [sys.executable, "-m", "launcher.trackers.sending", name, str(folder.path)]
    for seq in (-1, chance.randrange(steps // 2), chance.randrange(steps // 2, steps - 300)):
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        kill_once_sent(process, name, seq)
    assert send(folder, name) <= steps
    assert sent_steps(folder.path, name) == list(range(steps))
    assert send(folder, name) == 0


@needs("mlflow")
def test_mlflows_database_that_a_kill_has_left_half_made_is_made_anew(folder, expected, awkward):
    folder.write(awkward)
    (folder.path / "mlflow.db.part").write_bytes(b"half a database")
    (folder.path / "mlflow.db.part-journal").write_bytes(b"of it")
    assert send(folder, "mlflow") > 0
    assert send(folder, "mlflow") == 0
    assert not [*folder.path.glob("mlflow.db.part*")]
