"""A Ray that costs nothing: a package of that name which does what a keeper can see of `ray start --block`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from launcher.clusters.nodes.home import Home

ROOT = Path(__file__).parents[3]
FAKE = """
import json, os, pathlib, signal, socket, subprocess, sys, time
words = dict(word[2:].partition("=")[::2] for word in sys.argv[2:])
folder = pathlib.Path(os.environ["FAKE_RAY"])
child = None
if not (folder / "fails").exists():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={}, start_new_session=True)
with (folder / "starts").open("a") as log:
    shown = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS")}
    pids = {"pid": os.getpid(), "child": child and child.pid}
    log.write(json.dumps({"words": sys.argv[2:], "env": shown, **pids}) + "\\n")
if (folder / "fails").exists():
    print((folder / "fails").read_text())
    sys.exit(1)
subprocess.run(["sh", "-c", "sleep 0.2 &"])  # its parent has ended before it
signal.signal(signal.SIGTERM, lambda *_: (child.kill(), sys.exit(0)))
if "head" in words:
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind(("", int(words["port"])))
    door.listen(16)
(pathlib.Path(words["temp-dir"]) / "session_1").mkdir(exist_ok=True)
(pathlib.Path(words["temp-dir"]) / "ray_current_cluster").write_text("up")
while child.poll() is None:
    time.sleep(0.05)
sys.exit(1)
"""


@pytest.fixture
def fake_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Its folder: `starts` has a line for each start; what is written to `fails` is said before it fails."""
    package = tmp_path / "fake" / "ray" / "scripts"
    package.mkdir(parents=True)
    for file in (package.parent / "__init__.py", package / "__init__.py"):
        file.touch()
    (package / "scripts.py").write_text(FAKE)
    monkeypatch.setenv("FAKE_RAY", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{package.parents[1]}:{ROOT}")
    yield tmp_path
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("FAKE_RAY") == str(tmp_path) and process.pid != os.getpid():
            for each in [*process.children(recursive=True), process]:
                each.kill()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("RLRUN_CLUSTER", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.fixture
def rlrun() -> list[str]:
    return [sys.executable, "-m", "launcher", "cluster"]
