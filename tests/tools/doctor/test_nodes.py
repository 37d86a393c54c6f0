"""Nodes beside each other: what differs, what is shared, who reaches whom; and answers that cannot be read."""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from launcher.core.check_result import CheckResult
from launcher.core.machine import free_ports
from launcher.core.problems import Problems
from launcher.tools.doctor import bridge, cluster, facts, rendezvous
from launcher.tools.doctor.bridge import Bridge, Node, Reply
from launcher.tools.doctor.facts import Facts
from launcher.tools.doctor.rendezvous import Met

A = Facts(
    python="3.11.7", packages={"torch": "2.13.0", "ray": "2.60.0", "rlrun": "0.1.0"}, code="c0de", driver="550.54",
    driver_cuda="12.4", gpus=("NVIDIA H200", "NVIDIA H200"), usable_gpus=2, torch_cuda="12.4", nccl="2.27.3",
    interfaces={"10.0.0.1": "eth0"}, ports=(1001, 1002), tokens={},
)  # fmt: skip
NODES = {name: Node(f"id-{name}", True, f"10.0.0.{number}", name, 4, 2) for number, name in enumerate("abc", 1)}


@pytest.mark.parametrize(
    ("b", "level", "line"),
    [
        (A, "OK", "versions: equal on 3 nodes: python 3.11.7, torch 2.13.0, 3 packages, rlrun's code, driver and GPUs"),
        (replace(A, python="3.12.1"), "FAIL", "python: 3.11.7 on a, c; 3.12.1 on b; one version on all nodes would do"),
        (replace(A, packages={**A.packages, "torch": "2.12.0"}), "FAIL",
         "torch: 2.13.0 on a, c; 2.12.0 on b; one version on all nodes would do"),
        (replace(A, packages={"torch": "2.13.0"}), "FAIL",
         "ray: 2.60.0 on a, c; not installed on b; one version on all nodes would do"),
        (replace(A, code="beef"), "FAIL", "rlrun: other code on b than on a, c, the machine that asks; one version,"),
        (replace(A, nccl="2.26.0"), "FAIL", "NCCL: 2.27.3 on a, c; 2.26.0 on b; one build of torch on all nodes"),
        (replace(A, driver="535.1"), "WARN", "driver: 550.54 on a, c; 535.1 on b; nodes of one kind would do"),
        (replace(A, gpus=("NVIDIA H200",)), "WARN", "GPUs: 2 NVIDIA H200 on a, c; 1 NVIDIA H200 on b; nodes of one"),
        (replace(A, ports=(5, 6), interfaces={}), "OK", "versions: equal"),  # what every node has of its own
    ],
)  # fmt: skip
def test_what_differs_is_named_by_node(b: Facts, level: str, line: str) -> None:
    (found,) = facts.compared({"a": A, "b": b, "c": A}, A.code)
    assert found.level == level and found.line.startswith(line), found.line


def test_the_code_hash_sees_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr("launcher.__file__", str(tmp_path / "__init__.py"))
    before = facts.code()
    (tmp_path / "a.py").write_text("x = 2\n")
    assert facts.code() != before


@pytest.mark.parametrize(
    ("what", "seen", "level", "word"),
    [
        ("run root", {"a": {"/s/1", "/s/2"}, "b": {"/s/1", "/s/2"}}, "OK", "/s is one folder on 2 nodes"),
        ("run root", {"a": {"/s/1"}, "b": {"/s/2"}}, "WARN", "is not seen by a, b"),
        ("model store", {"a": {"/s/1"}, "b": {"/s/2"}}, "OK", "each fetches its own"),
        ("run root", {"a": {"/s/1", "/s/2"}, "b": {"/s/2"}}, "WARN", "is not seen by b"),
    ],
)
def test_shared_folders(what: str, seen: dict[str, set[str]], level: str, word: str) -> None:
    found = cluster.shared(what, {"a": "/s/1", "b": "/s/2"}, seen)
    assert found.level == level and found.message.endswith(word), found


def test_ranks_count_on_through_the_nodes() -> None:
    known = {"a": A, "b": replace(A, usable_gpus=1, interfaces={"10.0.0.2": "ib0"}), "c": replace(A, interfaces={})}
    found = cluster.ranks(NODES, known)
    assert [(one.first, one.count, one.world) for one in found.values()] == [(0, 2, 5), (2, 1, 5), (3, 2, 5)]
    assert {(one.address, one.port, one.backend) for one in found.values()} == {("10.0.0.1", 1002, "nccl")}
    assert [one.interface for one in found.values()] == ["eth0", "ib0", ""]
    # where one has no GPU that works, all add on the CPU
    found = cluster.ranks(NODES, {**known, "b": replace(A, usable_gpus=0)})
    assert {(one.count, one.world, one.backend) for one in found.values()} == {(1, 3, "gloo")}


def test_nodes_of_one_address_have_their_ids_in_their_names() -> None:
    one, two = Node("abcdefgh", True, "10.0.0.1", "h", 1, 0), Node("12345678", True, "10.0.0.1", "h", 1, 0)
    other = Node("x", True, "10.0.0.2", "h2", 1, 0)
    assert list(cluster.named([one, two, other])) == ["10.0.0.1 (h, abcdef)", "10.0.0.1 (h, 123456)", "10.0.0.2 (h2)"]


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (Reply(lost="did not answer in 60 s"), "did not answer in 60 s"),
        (Reply(1, err="python: No module named 'launcher.tools.doctor'"), "is not on this node"),
        (Reply(1, err="rlrun 0.2.0 answers in format 2, was asked in 1"), "answers in format 2"),
        (Reply(0, out='{"format": 2, "answer": []}'), "cannot be read"),
        (Reply(0, out='noise\n{"format": 1, "answer": "x"}'), "cannot be read"),
        (Reply(0, out=""), "cannot be read"),
        (Reply(-9), "ended by signal 9"),
    ],
)  # fmt: skip
def test_answers_that_are_none(reply: Reply, word: str) -> None:
    found = cluster._answer(reply, list[bool])
    assert isinstance(found, CheckResult) and found.level == "FAIL" and word in found.message, found


def test_an_answer_after_noise() -> None:
    assert cluster._answer(Reply(0, out=f"noise\n{json.dumps({'format': 1, 'answer': [True]})}\n"), list[bool]) == [
        True
    ]


def test_two_nodes_meet_and_their_clocks_agree() -> None:
    one, two = free_ports(2)
    with ThreadPoolExecutor(2) as pool:
        a = pool.submit(rendezvous.meet, one, {"b": ("127.0.0.1", two)}, 20)
        b = pool.submit(rendezvous.meet, two, {"a": ("127.0.0.1", one)}, 20)
        met = {"a": a.result(), "b": b.result()}
    ports, clocks = rendezvous.judged(met)
    assert ports.level == "OK" and "each of 2 reaches every other (2 ways" in ports.message
    assert clocks.level == "OK", clocks


def test_one_that_cannot_be_reached_is_named() -> None:
    met = {
        "a": rendezvous.meet(free_ports(1)[0], {"b": ("127.0.0.1", free_ports(1)[0])}, 0.5),
        "b": {"a": Met(0.001, 0.0)},
    }
    ports, _ = rendezvous.judged(met)
    assert ports.level == "FAIL" and ports.message == "a cannot reach b (connection refused)"


def test_a_port_that_was_taken_meanwhile() -> None:
    with socket.create_server(("", 0)) as held, pytest.raises(OSError, match="in use"):
        rendezvous.meet(held.getsockname()[1], {}, 1)


@pytest.mark.parametrize(("ahead_s", "level", "word"), [
    (0.2, "OK", "ms apart"),  # lives with it
    (90.0, "WARN", "b is 90.0 s ahead of a"),
    (-3600.0, "WARN", "b is 3600.0 s behind a"),  # an hour of daylight saving
])  # fmt: skip
def test_a_clock_that_is_off(ahead_s: float, level: str, word: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def lie() -> None:
            peer, _ = server.accept()
            with peer:
                while peer.recv(1):
                    peer.sendall(struct.pack("!d", time.time() + ahead_s))

        Thread(target=lie, daemon=True).start()
        found = rendezvous._reach(server.getsockname(), time.monotonic() + 5)
    assert abs(found.ahead_s - ahead_s) < 0.5
    _, clocks = rendezvous.judged({"a": {"b": found}})
    assert clocks.level == level and word in clocks.message, clocks


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("127.0.0.1:1", "127.0.0.1:1: connection refused; ray start --head on one machine, and its address would do"),
        ("no-such-head.invalid:6379", "no-such-head.invalid:6379: name or service not known"),
        ("head", "head is no address; HOST:PORT"),
        ("local", "local is no address; HOST:PORT"),  # to Ray it means: start one here
        ("127.0.0.1:99999", "is no address; HOST:PORT"),
    ],
)
def test_a_wrong_address_is_named_before_ray_is_asked(address: str, word: str) -> None:
    with pytest.raises(Problems) as found:
        Bridge(address)
    assert word in found.value.lines[0]


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ((where, found),) = cluster.examined(None, Path("runs"), 5, lambda _: None)
    assert where == "cluster" and found.fix == "pip install ray would do"


@pytest.mark.slow
def test_what_listens_but_is_no_head_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself tries for two minutes."""
    monkeypatch.setattr(bridge, "JOIN_S", 12.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(Problems, match=r"nothing answers where Ray believes|did not take us in|is no node of it"):
            Bridge(address)
    assert time.monotonic() - began < 20
