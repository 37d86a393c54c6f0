"""Hostile scripts change, execute, send, signal and leave nothing outside, as root and as a plain user."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.sandbox import confine

pytestmark = pytest.mark.skipif(bool(confine.missing()), reason="this system has no sandbox")
PYTHON = "/usr/bin/python3"
"""One that a user without rights may execute, too."""
SECRET = "s3cret-of-somebody"
STOPPED = {"fork bomb", "traps", "endless sleep", "huge output", "a daemon", "orphans",
           "a daemon that sleeps"}  # fmt: skip
"""They end at a limit."""
NO_LAUNCH = {*STOPPED, "huge memory", "huge file", "signal all", "its folder", "records"}
"""Before their last line, or what they started cannot be told."""


@pytest.fixture(scope="module", params=[0, 65534], ids=["root", "a plain user"])
def seen(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    if os.geteuid() != 0 or not Path(PYTHON).exists():
        pytest.skip("root alone can be somebody else, and Python must be readable to that user")
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as server:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(Path(__file__).parents[2] / "launcher", folder / "launcher")
        shutil.copy(Path(__file__).with_name("hostile.py"), folder)
        for each in ("out", "work", "home", "tmp"):
            (folder / each).mkdir()
            (folder / each).chmod(0o777)  # so that only the sandbox says no
        for file, text in (("kept", "kept\n"), ("secret", SECRET)):
            (folder / "out" / file).write_text(text)
            (folder / "out" / file).chmod(0o666)
        with subprocess.Popen(["sleep", "900"], user=request.param, start_new_session=True) as bystander:
            before = {path.name: path.stat() for path in (folder / "out").iterdir()}
            ran = subprocess.run(
                [PYTHON, "hostile.py", name, str(server.getsockname()[1]), str(bystander.pid)], cwd=folder,
                env={"PYTHONPATH": name, "HOME": f"{name}/home", "TMPDIR": f"{name}/tmp", "PATH": os.environ["PATH"]},
                user=request.param, group=request.param, extra_groups=[], capture_output=True, text=True, check=False,
            )  # fmt: skip
            server.settimeout(0)
            connected = True
            try:
                server.accept()
            except BlockingIOError:
                connected = False
            yield {
                "runs": json.loads(ran.stdout or "{}"), "errors": ran.stderr, "folder": folder, "before": before,
                "bystander": bystander.poll(), "state": Path(f"/proc/{bystander.pid}/stat").read_text().split()[2],
                "connected": connected,
            }  # fmt: skip
            bystander.kill()


def test_each_script_ends_and_its_launch_is_found(seen: dict[str, Any]) -> None:
    assert seen["runs"], seen["errors"]
    stopped = {name for name, run in seen["runs"].items() if run["stopped"]}
    assert stopped >= STOPPED - {"huge output"}
    without = {name for name, run in seen["runs"].items() if not any("done=1" in words for words in run["words"])}
    assert without <= NO_LAUNCH


def test_a_script_costs_little(seen: dict[str, Any]) -> None:
    """A fork bomb has no certain bound: the system's limit of processes does not bind root, and how many there are
    before they are counted is the scheduler's doing."""
    costs = {name: run["cpu_s"] for name, run in seen["runs"].items() if name != "fork bomb"}
    assert {name: cost for name, cost in costs.items() if cost > 1.5} == {}


def test_nothing_is_written_outside(seen: dict[str, Any]) -> None:
    out = seen["folder"] / "out"
    assert {path.name for path in out.iterdir()} == {"kept", "secret"}
    assert (out / "kept").read_text() == "kept\n" and (out / "secret").read_text() == SECRET
    for path in out.iterdir():
        now, before = path.stat(), seen["before"][path.name]
        assert (now.st_mode, now.st_uid, now.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)
    assert not list((seen["folder"] / "home").iterdir()) and not list((seen["folder"] / "tmp").iterdir())
    assert {path.suffix for path in (seen["folder"] / "work").iterdir()} == {".sh"}


def test_nothing_is_read_outside(seen: dict[str, Any]) -> None:
    told = json.dumps(seen["runs"])
    assert SECRET not in told and "root:" not in told and "nobody:" not in told
    assert "PYTHONPATH" not in told  # of the environment of others


def test_nothing_is_sent_and_nobody_is_signalled(seen: dict[str, Any]) -> None:
    assert not seen["connected"]
    assert (seen["bystander"], seen["state"]) == (None, "S")


def test_nothing_is_left_running(seen: dict[str, Any]) -> None:
    assert seen["runs"]
    left = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            left += [path] if f"{seen['folder']}/tmp/rlrun-".encode() in path.read_bytes() else []
        except OSError:
            continue
    assert left == []
