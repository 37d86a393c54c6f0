"""A server, and scripts whose logger speaks to it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logger_platform import ROOT, Platform

WANDB = '''
"""Writes down how it is called."""
import json, os
def note(name, /, *words, **more):
    with open(os.environ["WANDB_CALLS"], "a") as file:
        file.write(json.dumps([name, *words, more], default=repr) + "\\n")
class Values:
    def __init__(self, name):
        self.name = name
    def update(self, values, **more):
        note(self.name, values)
    def __setitem__(self, key, value):
        note(self.name, {key: value})
class Run:
    config, summary = Values("config"), Values("summary")
    def __getattr__(self, name):
        return lambda *words, **more: note(name, *words, **more)
def Settings(**more):
    return more
def init(**more):
    exec(os.environ.get("WANDB_RUNS", ""))
    note("init", **more)
    return Run()
'''
"""The place of W&B, whose own package is tried in tests/trackers."""


class Shared(Platform):
    """One server for all tests; each has a spool and a job of its own."""

    job = ""


class Scripts:
    """Runs scripts beside a server."""

    def __init__(self, folder: Path, platform: Shared) -> None:
        self.folder, self.platform, self._calls = folder, platform, folder / "calls.jsonl"

    def run(self, text: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        known = self.platform.environment(WANDB_CALLS=str(self._calls), JOB=self.platform.job, **more)
        known["PYTHONPATH"] += f":{self.folder / 'modules'}"
        (self.folder / "script.py").write_text(text)
        command = [sys.executable, "script.py", *words]
        return subprocess.run(command, cwd=self.folder, env=known, capture_output=True, text=True)

    def calls(self, name: str) -> list[list[Any]]:
        """Of W&B: the arguments of each call of that name."""
        text = self._calls.read_text() if self._calls.exists() else ""
        return [words for called, *words in map(json.loads, text.splitlines()) if called == name]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    platform = Shared(tmp_path_factory.mktemp("platform"))
    platform.start()
    yield platform
    platform.kill()


@pytest.fixture
def platform(server: Shared, tmp_path: Path) -> Shared:
    server.spool, server.job = tmp_path / "spool", f"job-{tmp_path.name}"
    return server


@pytest.fixture
def scripts(tmp_path: Path, platform: Shared) -> Scripts:
    guides = tmp_path / "modules" / "training_platform" / "core" / "wandb_callback.py"  # as pip installs it
    guides.parent.mkdir(parents=True)
    shutil.copy(ROOT / "launcher" / "logger" / guides.name, guides)
    (tmp_path / "modules" / "wandb.py").write_text(WANDB)
    return Scripts(tmp_path, platform)
