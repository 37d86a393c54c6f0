"""What a keeper does when Ray, its head, or the keeper itself dies; Ray is a small fake here."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.clusters.nodes import begin, processes
from launcher.clusters.nodes.home import Home, Node
from launcher.core.machine import free_ports
from launcher.core.problems import Problems

pytestmark = pytest.mark.usefixtures("fake_ray")
Until = Callable[..., None]


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def silent(_: str) -> None:
    pass


def starts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "starts").read_text().splitlines()]


def up(**more: Any) -> Node:
    return begin.up(**{"port": None, "address": "127.0.0.1", "token": None, "words": [], "tell": silent} | more)


def test_a_head_is_up_until_it_is_taken_down(home: Home, fake_ray: Path, until: Until) -> None:
    node = up(port=(port := free_ports(1)[0]), words=["--num-cpus=2"])
    (started,) = starts(fake_ray)
    assert home.has_keeper() and home.node() == node and node.address == f"127.0.0.1:{port}"
    assert {"--head", f"--port={port}", "--num-cpus=2"} <= set(started["words"])
    assert started["env"]["RAY_AUTH_MODE"] == "token"
    # nobody else may read the token, or enter what Ray writes
    assert stat.S_IMODE(home.token.stat().st_mode) == 0o600 and len(home.token.read_text()) == 64
    assert stat.S_IMODE(Path(node.temp).stat().st_mode) == 0o700 and len(node.temp) <= begin.SHORT
    assert home.token.read_text() not in json.dumps(starts(fake_ray))
    everything = processes.find(node)
    assert len(everything) >= 2  # `ray start` and what it started, though that one's environment has no mark
    keeper = psutil.Process(home.state().pid)  # which adopts what ends without its parent, and buries it

    def statuses() -> list[str]:
        found = []
        for child in keeper.children():
            with suppress(psutil.NoSuchProcess):  # it ended between the two looks
                found.append(child.status())
        return found

    until(lambda: statuses() == [psutil.STATUS_SLEEPING])
    # a list of hosts may be gone through twice, and may name the head; a second cluster is refused
    assert begin.join(node.address, "secret" * 8, None, [], silent) == node
    refused = f"this machine is the head of the cluster at {node.address}; end it by rlrun cluster down"
    with pytest.raises(Problems, match=refused):
        up()
    assert home.has_keeper() and len(starts(fake_ray)) == 1, "neither harms the first"
    output = begin.down(silent)
    assert output == f"the cluster at {node.address} has ended"
    assert not home.has_keeper() and home.node() is None and not home.token.exists() and not Path(node.temp).exists()
    assert not any(is_alive(process) for process in everything)


@pytest.mark.parametrize("number", ["%d", '"x"', "1e30"])
def test_down_signals_the_keeper_whatever_number_is_written(number: str, home: Home) -> None:
    up(port=free_ports(1)[0])
    with subprocess.Popen(["sleep", "60"]) as other:
        written = number.replace("%d", str(other.pid))
        (home.path / "state.json").write_text(f'{{"phase": "up", "pid": {written}}}')
        assert begin.down(silent).endswith("has ended")
        assert not home.has_keeper() and other.poll() is None
        other.kill()


def test_two_homes_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_CLUSTER", str(tmp_path / "one"))
    one = up()
    monkeypatch.setenv("RLRUN_CLUSTER", str(tmp_path / "two"))
    two = up()
    assert one.address != two.address and one.temp != two.temp
    begin.down(silent)
    assert len(processes.find(one)) >= 2 and not processes.find(two)
    monkeypatch.setenv("RLRUN_CLUSTER", str(tmp_path / "one"))
    begin.down(silent)


def test_ray_that_dies_is_started_again_at_the_same_port(home: Home, fake_ray: Path, until: Until) -> None:
    node = up()
    os.kill(starts(fake_ray)[-1]["pid"], signal.SIGKILL)
    until(lambda: len(starts(fake_ray)) == 2 and home.state().phase == "up")
    ports = {word for start in starts(fake_ray) for word in start["words"] if word.startswith("--port=")}
    assert ports == {f"--port={node.address.rpartition(':')[2]}"}
    assert home.state().starts == 2
    left = [start["child"] for start in starts(fake_ray)[:-1] if psutil.pid_exists(start["child"])]
    assert not left and processes.find(node), "what a killed start has left is ended before the next"
    begin.down(silent)


def test_a_node_starts_again_when_its_head_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Until) -> None:
    """A new head does not know the old nodes, however alive they are."""
    (tmp_path / "head").mkdir()
    with socket.socket() as head:
        head.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        head.bind(("127.0.0.1", 0))
        head.listen(16)
        address = f"127.0.0.1:{head.getsockname()[1]}"
        monkeypatch.setenv("RLRUN_CLUSTER", str(tmp_path / "node"))
        node = begin.join(address, "secret" * 8, None, [], silent)
        assert f"--address={address}" in starts(tmp_path)[0]["words"]
        home = Home(tmp_path / "node")
    until(lambda: home.state().phase == "waiting")
    assert "the head" in home.state().why and not processes.find(node), "nothing of the old cluster is left"
    with socket.socket() as head:
        head.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        head.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        head.listen(16)
        until(lambda: len(starts(tmp_path)) == 2 and home.state().phase == "up")
    assert begin.down(silent) == f"left the cluster at {address}"


@pytest.mark.parametrize(
    ("output", "why", "least"),
    [  # the last: how often it is tried
        ("Unauthenticated: WrongAuthToken", "the token is not the cluster's; use the head's, by --token-file", 1),
        ("Error: No such option: --gpus", "ray start does not know one of the options that are passed to it; ", 1),
        ("an unknown thing", "ray ended with 1: an unknown thing; see ", 4),  # a busy machine gets more tries
    ],
)
def test_what_cannot_start_is_told_and_leaves_nothing(
    home: Home, fake_ray: Path, output: str, why: str, least: int
) -> None:
    (fake_ray / "fails").write_text(output)
    with pytest.raises(Problems) as caught:
        up()
    assert caught.value.lines[0].startswith(f"ray start: {why}"), caught.value.lines
    assert len(starts(fake_ray)) == least
    assert not home.has_keeper() and home.node() is None and not home.token.exists()


def test_a_port_that_is_taken_is_refused(home: Home) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen(1)
        port = other.getsockname()[1]
        with pytest.raises(Problems, match=f"--port: {port}: address already in use; use [0-9]+"):
            up(port=port)
    assert home.node() is None


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("10.0.0.1", "10.0.0.1: is not an address; expected HOST:PORT, as rlrun cluster up prints it"),
        ("127.0.0.1:1", "127.0.0.1:1: connection refused; use rlrun cluster up there, and its address"),
    ],
)
def test_a_head_that_cannot_be_is_refused(home: Home, address: str, line: str) -> None:
    with pytest.raises(Problems) as caught:
        begin.join(address, "secret" * 8, None, [], silent)
    assert caught.value.lines == [line] and home.node() is None


def test_a_keeper_that_was_killed_leaves_what_down_ends(home: Home, until: Until) -> None:
    node = up()
    left = processes.find(node)
    psutil.Process(home.state().pid).kill()
    until(lambda: not home.has_keeper())
    with pytest.raises(Problems, match=r"[0-9] processes of the cluster at .* have lost their keeper; "):
        up()
    begin.down(silent)
    assert not any(is_alive(process) for process in left)
    assert begin.down(silent) == "nothing of a cluster was up"


def test_block_ends_the_node_with_itself(home: Home, rlrun: list[str], until: Until) -> None:
    blocked = subprocess.Popen([*rlrun, "up", "--block", "--address", "127.0.0.1"], stdout=subprocess.PIPE, text=True)
    until(lambda: home.state() is not None and home.state().phase == "up")
    assert blocked.stdout is not None and "the cluster is up" in blocked.stdout.readline()
    blocked.send_signal(signal.SIGTERM)
    assert blocked.wait(600) == 128 + signal.SIGTERM
    assert not home.has_keeper() and home.node() is None
