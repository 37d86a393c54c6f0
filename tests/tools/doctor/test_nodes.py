"""Nodes compared: what differs, what is shared; and clusters that do not answer."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.clusters.ray import listing
from launcher.clusters.ray.listing import RayNode, list_nodes
from launcher.core.problems import Problems
from launcher.tools.doctor import facts, remote_probe
from launcher.tools.doctor.facts import Facts

VERSIONS = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "ray": "2.60.0",
    "NCCL": "2.27.3",
    "driver": "550.54",
    "GPUs": "2 H200",
}
A = Facts(VERSIONS, "c0de", 2)


@pytest.mark.parametrize(
    ("b", "level", "line"),
    [
        (A, "OK", "versions: equal on 3 nodes: 6 versions, rlrun's code, driver and GPUs"),
        (replace(A, versions=VERSIONS | {"python": "3.12.1"}), "FAIL",
         "python: 3.11.7 on a, c; 3.12.1 on b; use one version on all nodes"),
        (replace(A, versions={name: of for name, of in VERSIONS.items() if name != "ray"}), "FAIL",
         "ray: 2.60.0 on a, c; not installed on b; use one version on all nodes"),
        (replace(A, code="beef"), "FAIL", "rlrun: other code on b than on a, c, the machine that asks; use one"),
        (replace(A, versions=VERSIONS | {"driver": "535.1"}), "WARN",
         "driver: 550.54 on a, c; 535.1 on b; use nodes of one kind"),
    ],
)  # fmt: skip
def test_what_differs_is_named_by_node(b: Facts, level: str, line: str) -> None:
    (found,) = facts.compare({"a": A, "b": b, "c": A}, A.code)
    assert found.level == level and found.line.startswith(line), found.line


def test_the_code_hash_sees_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr("launcher.__file__", str(tmp_path / "__init__.py"))
    before = facts.hash_code()
    (tmp_path / "a.py").write_text("x = 2\n")
    assert facts.hash_code() != before


@pytest.mark.parametrize(
    ("sees", "level", "word"),
    [
        ({"a": True, "b": True}, "OK", "/s is one folder on 2 nodes"),
        ({"a": True, "b": False}, "WARN", "/s is not one folder: b does not see what this machine puts there"),
    ],
)
def test_the_folder_of_runs_is_shared_or_not(sees: dict[str, bool], level: str, word: str) -> None:
    found = remote_probe.shared("/s", sees)
    assert found.level == level and found.message.endswith(word), found


def test_ray_counts_the_gpus_of_the_driver() -> None:
    assert remote_probe.counts(RayNode("x", True, "10.0.0.1", "h", 1, 2), A) == []
    (found,) = remote_probe.counts(RayNode("x", True, "10.0.0.1", "h", 1, 0), A)
    assert (found.level, found.message) == ("WARN", "Ray counts 0, the driver 2")
    assert found.fix == "use ray start --num-gpus=2 there"


def test_nodes_of_one_address_have_their_ids_in_their_names() -> None:
    one, two = RayNode("abcdefgh", True, "10.0.0.1", "h", 1, 0), RayNode("12345678", True, "10.0.0.1", "h", 1, 0)
    other = RayNode("x", True, "10.0.0.2", "h2", 1, 0)
    names = list(remote_probe.named([one, two, other]))
    assert names == ["10.0.0.1 (h, abcdef)", "10.0.0.1 (h, 123456)", "10.0.0.2 (h2)"]


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("127.0.0.1:1", "127.0.0.1:1: connection refused; use rlrun cluster up"),
        ("no-such-head.invalid:6379", "no-such-head.invalid:6379: name or service not known"),
        ("head", "head is not an address; expected HOST:PORT"),
        ("local", "local is not an address"),  # to Ray it means: start one here
        ("127.0.0.1:99999", "is not an address"),
    ],
)
def test_a_wrong_address_is_named_before_ray_is_asked(address: str, word: str) -> None:
    with pytest.raises(Problems) as found:
        list_nodes(address)
    assert word in found.value.lines[0]


@pytest.mark.slow
def test_what_listens_but_is_no_head_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself tries for two minutes."""
    monkeypatch.setattr(listing, "ANSWER_S", 2.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(Problems, match="no Ray head answered within"),
    ):
        list_nodes(f"127.0.0.1:{silent.getsockname()[1]}")
