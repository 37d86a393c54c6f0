"""What is asked of a run: by signals, and from another machine by a file in its folder."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.runs import stop_requests, store
from launcher.runs.folder import Folder, Lock
from launcher.runs.stop_requests import StopRequest, ask, handle_signals


class ScriptedCluster:
    """A job that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[int | str] = []

    def stop(self, number: int) -> None:
        self.told.append(number)

    def kill(self) -> None:
        self.told.append("kill")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """Of a run that somebody writes."""
    path = tmp_path / "p" / "a"
    path.mkdir(parents=True)
    with Lock(Folder(path)):
        yield Folder(path)


Stopping = tuple[StopRequest, ScriptedCluster]


@pytest.fixture
def asked(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Stopping:
    monkeypatch.setattr(stop_requests, "LOOK_S", 0.0)
    job = ScriptedCluster()
    return StopRequest(job, folder), job


def test_the_first_signal_stops_and_the_next_one_kills(asked: Stopping) -> None:
    request, job = asked
    before = signal.getsignal(signal.SIGTERM)
    with handle_signals(request):
        assert not request
        os.kill(os.getpid(), signal.SIGINT)
        assert request and request.first == signal.SIGINT and job.told == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.first == signal.SIGINT and job.told == [signal.SIGINT, "kill"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_only_the_file_stops(folder: Folder, asked: Stopping) -> None:
    request, job = asked
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with handle_signals(request):
            assert signal.getsignal(signal.SIGTERM) is before
            ask(folder, "save")
            request.look()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()
    assert job.told == [signal.SIGTERM]


def test_who_asks_twice_to_save_ends_nothing_and_who_does_not_want_to_wait_asks_for_now(
    folder: Folder, asked: Stopping
) -> None:
    """As `rlrun stop` where saving takes long, and as two people at the page."""
    request, job = asked
    before = signal.signal(signal.SIGTERM, request.request)
    try:
        for number in range(3):
            if number:
                store.stop(folder, now=False, wait_s=0.0)
            ask(folder, "save")
            assert stat.S_IMODE((folder.path / ".stop").stat().st_mode) == 0o600
            for _ in range(3):
                request.look()
            assert job.told == request.signals == [signal.SIGTERM]
            assert not (folder.path / ".stop").exists(), "it is handled once"
        ask(folder, "now")
        request.look()
        assert job.told == [signal.SIGTERM, "kill"]
        store.stop(folder, now=True, wait_s=0.0)
        assert job.told == [signal.SIGTERM, *["kill"] * 3]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_request_older_than_the_run_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made before this process started."""
    monkeypatch.setattr(stop_requests, "LOOK_S", 0.0)
    folder, job = Folder(tmp_path), ScriptedCluster()
    ask(folder, "now")
    os.utime(tmp_path / ".stop", (time.time() - 5, time.time() - 5))
    with Lock(folder):
        StopRequest(job, folder).look()
        assert job.told == [] and not (tmp_path / ".stop").exists()
        ask(folder, "now")
        StopRequest(job, folder).look()
        assert job.told == [signal.SIGTERM, "kill"]


def test_invalid_requests_are_ignored(folder: Folder, asked: Stopping, tmp_path: Path) -> None:
    request, job = asked
    file = folder.path / ".stop"
    for text in (b"", b"\xff\xfe", b"save\n" * 10**6, b"NOW"):
        file.write_bytes(text)
        request.look()
    (tmp_path / "elsewhere").write_text("now")
    file.symlink_to(tmp_path / "elsewhere")
    request.look()
    file.unlink()
    os.mkfifo(file)  # nobody writes it: opening it would wait for ever
    request.look()
    assert job.told == [] and (tmp_path / "elsewhere").exists()


def test_a_run_of_another_host_is_asked_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setattr(stop_requests, "LOOK_S", 0.0)
    folder, job = Folder(tmp_path), ScriptedCluster()
    with ThreadPoolExecutor(1) as threads, Lock(folder):
        (tmp_path / ".lock").write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
        request = StopRequest(job, folder)
        stopped = threads.submit(store.stop, folder, now=False, wait_s=0.5)
        while not request:
            request.look()
            time.sleep(0.01)
        assert stopped.result().startswith("was asked to stop and is still saving")
        assert job.told == [signal.SIGTERM] and not folder.stop_request.exists()
        stopped = threads.submit(store.stop, folder, now=False)
        until(folder.stop_request.exists)
    assert stopped.result() == "stopped" and not folder.stop_request.exists(), "it ended before it looked"
