"""Rows of loggers as the route stores them: exactly those that are new, in the run folder of their job."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from launcher.core.events import Step, events_of
from launcher.core.problems import Problems
from launcher.runs.folder import Folder, Lock, holder, writer_here
from launcher.server.ingest import Ingest


def metrics(count: int) -> list[dict[str, Any]]:
    return [{"kind": "metrics", "at": 1000.0 + n, "step": n, "metrics": {"loss": n / 3}} for n in range(count)]


def lines_of(folder: Folder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.events.read_bytes().splitlines()]


ROWS = metrics(12)


@pytest.mark.parametrize("seed", range(4))
def test_any_batches_with_kills_between_them_store_each_row_once(seed: int, tmp_path: Path) -> None:
    """A kill may leave any beginning of what was being written; after any batch `next` says where to go on."""
    draw, folder, following = random.Random(seed), Folder(tmp_path / "logged" / "job"), 0
    ingest = Ingest(lambda _: folder)
    while following < len(ROWS):
        first = max(following + draw.randint(-3, 1), 0)
        following = ingest.store("job", "a", first, ROWS[first : first + draw.randint(0, 6)])
        if draw.random() < 0.3:
            ingest.close()
            text = folder.events.read_bytes()
            folder.events.write_bytes(text[: draw.randint(max(len(text) - 250, 0), len(text))])
            ingest = Ingest(lambda _: folder)
            following = ingest.store("job", "a", 0, [])
    ingest.close()
    stored = lines_of(folder)
    assert [line["seq"] for line in stored] == [*range(len(stored))]
    assert [(line["row"], line["step"], line["metrics"]) for line in stored if line["kind"] == "Step"] == [
        (n, n, {"train/loss": n / 3}) for n in range(len(ROWS))
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "logged" / "job")


@pytest.fixture
def ingest(folder: Folder) -> Iterator[Ingest]:
    made = Ingest(lambda _: folder)
    yield made
    made.close()


def test_a_session_that_ran_beside_one_that_has_ended_undoes_nothing(folder: Folder, ingest: Ingest) -> None:
    """While no server ran, both waited; the rows of one come after the end of the other."""
    begin, finish = {"kind": "begin", "at": 999.0}, {"kind": "finish", "at": 1100.0}
    for session, rows, stands in (
        ("script", [begin, *metrics(3), finish], [0, 1, 2]),
        ("worker", [begin, *metrics(2), finish], [0, 1, 2, 0, 1]),
        ("again", [begin | {"at": 1101.0}, *metrics(1)], [0]),
    ):
        ingest.store("job", session, 0, rows)
        assert [event.step for event in events_of(folder.events) if isinstance(event, Step)] == stands


def test_one_value_that_is_no_number_takes_no_other_with_it(folder: Folder, ingest: Ingest) -> None:
    row = {"metrics": {"loss": 1.0, "big": 10**400}, "epoch": "NaN", "held_out": {"a": "none", "b": 0.5}}
    assert ingest.store("job", "script", 0, [metrics(1)[0] | row, metrics(1)[0] | {"epoch": "first"}]) == 2
    assert [line["metrics"] for line in lines_of(folder) if line["kind"] == "Step"] == [
        {"training/epoch": "NaN", "train/loss": 1.0, "val-core/b/reward/mean@1": 0.5}, {"train/loss": 0.0},
    ]  # fmt: skip


def test_a_job_is_written_by_one_server_whom_stop_does_not_end(folder: Folder, ingest: Ingest) -> None:
    ingest.store("job", "a", 0, metrics(1))
    assert holder(folder) == {} and writer_here(folder) is None
    with pytest.raises(Problems, match="is being written"):
        Lock(folder, wait_s=0.0)
    ingest.close()
    assert holder(folder) is None


def test_a_job_of_a_logger_is_a_job_and_a_run(client: TestClient, root: Path) -> None:
    """What its script warns of, and rows that were left out, are findings."""
    begin, finish = {"kind": "begin", "host": "node", "at": 999.0}, {"kind": "finish", "at": 1100.0}
    error = {"kind": "status", "at": 1010.0, "status": "error", "message": "no loss"}
    wrong = [{"kind": "new"}, {"kind": "metrics", "step": "x", "metrics": {}}, error, error | {"status": "up"}]
    rows = [begin, *metrics(3), None, *wrong, finish]
    url = "/api/jobs/my-job-001/rows"
    answer = client.post(url, json={"session": "a", "first": 0, "rows": rows})
    assert (answer.status_code, answer.json()) == (200, {"next": 10})
    job = client.get("/api/jobs/my-job-001").json()
    assert (job["origin"], job["run"], job["status"], job["step"]) == ("logger", "logged/my-job-001", "finished", 2)
    found = list(events_of(root / "logged/my-job-001/events.jsonl"))
    assert [event.step for event in found if isinstance(event, Step)] == [0, 1, 2]
    for word in ("start", "resume"):
        [problem] = client.post(f"/api/jobs/my-job-001/{word}").json()["problems"]
        assert problem["fix"] == "start it where that is started"
    findings = client.get("/api/jobs/my-job-001/findings").json()
    assert [(each["level"], each["text"][:24]) for each in findings] == [
        ("critical", "error: no loss"), ("warn", "row 5 of session a was l"), ("warn", "row 6 of session a was l"),
    ]  # fmt: skip


@pytest.mark.parametrize("uuid", ["-x", ".x", "a b", "x" * 129])
def test_a_name_that_no_job_can_have_is_refused(uuid: str, idle: TestClient) -> None:
    assert idle.post(f"/api/jobs/{uuid}/rows", json={"session": "a", "first": 0, "rows": []}).status_code == 422


def test_a_run_of_ours_takes_no_rows(client: TestClient, one: dict[str, Any], root: Path) -> None:
    events = root / "math" / "one" / "events.jsonl"
    before = events.read_bytes()
    answer = client.post(f"/api/jobs/{one['uuid']}/rows", json={"session": "a", "first": 0, "rows": metrics(1)})
    assert answer.status_code == 409 and "not made by a logger" in answer.json()["detail"]
    assert events.read_bytes() == before
