"""Runs of another user, as a user without rights meets them: they are seen, neither stopped nor written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.runs.folder import Folder, Lock

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A run of root in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        monkeypatch.chdir(name)
        run = Path("runs/p/a")
        run.mkdir(parents=True)
        (run / "spec.yaml").write_text("")
        yield Folder(run)


def as_plain_user(call: Callable[[], str]) -> str:
    """What `call` returns in a process of that user, or what it raised. Imports are done before: Python itself may lie
    where only root can read."""
    call()
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            output = call()
        except BaseException as error:  # noqa: BLE001  the process has to end here
            output = repr(error)
        os.write(writing, output.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        output = stream.read()
    os.waitpid(child, 0)
    return output


def command(*words: str) -> Callable[[], str]:
    def call() -> str:
        ran = CliRunner().invoke(app, [*words])
        return f"{ran.exit_code} {ran.output} {ran.exception!r}"

    return call


def test_it_is_seen_as_its_events_say_and_not_stopped(run: Folder) -> None:
    with Lock(run):
        shown = as_plain_user(command("show", "a"))
        assert shown.startswith("0 ") and "its processes are gone" not in shown
        stopped = as_plain_user(lambda: command("stop", "none" if os.geteuid() == 0 else "a")())
    assert stopped.startswith("2 ") and "permission denied" in stopped, stopped
    assert sorted(path.name for path in Path("runs/p/a").iterdir()) == [".lock", "spec.yaml"]
