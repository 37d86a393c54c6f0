"""Which processes are a node's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from launcher.clusters.nodes import processes
from launcher.clusters.nodes.home import Home, Node, State
from launcher.clusters.nodes.processes import MARK
from launcher.core.problems import Problems

SLEEP = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"]


def test_files_of_another_version_are_read(tmp_path: Path) -> None:
    """It may know of more, or of less."""
    home, node = Home(tmp_path), Node(address="127.0.0.1:1", ip="127.0.0.1", head=True, mark="m", temp="/t")
    for file, written in (("node.json", asdict(node)), ("state.json", asdict(State("up", pid=3)))):
        (tmp_path / file).write_text(json.dumps({**written, "new": 1}))
    state = home.state()
    assert home.node() == node and state and (state.phase, state.pid) == ("up", 3)
    (tmp_path / "node.json").write_text(json.dumps({"address": "127.0.0.1:1"}))
    with pytest.raises(Problems, match="is not a node's; remove"):
        home.node()


@pytest.fixture
def begun() -> Iterator[list[subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for process in made:
        process.kill()
        process.communicate()


def test_processes_with_the_mark_and_the_keepers_own_children(begun: list[subprocess.Popen[bytes]]) -> None:
    node = Node(address="127.0.0.1:1", ip="127.0.0.1", head=True, mark="of-this-test", temp="")
    for words, mark in ((SLEEP, node.mark), (SLEEP, "of-another")):
        begun.append(subprocess.Popen(words, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE))
    for process in begun:
        assert process.stdout and process.stdout.readline() == b"ready\n"
    marked, other = (process.pid for process in begun)
    assert {one.pid for one in processes.find(node)} == {marked}
    found = {one.pid for one in processes.find(node, os.getpid())}  # as if this process kept the node
    assert {marked, other} <= found
