"""Lists of hosts, and what other machines answer; `ssh` is a small shell script here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.clusters.nodes.ssh import Host, Shell, read_hosts
from launcher.core.problems import Problems


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a\nb\n", [Host("a"), Host("b")]),
        ("# all\n\nme@10.0.0.2  # the second\n", [Host("me@10.0.0.2")]),  # remarks and empty lines
        ("a --num-gpus=4 --resources='{\"x\": 1}'", [Host("a", ("--num-gpus=4", '--resources={"x": 1}'))]),
    ],
)
def test_hosts(tmp_path: Path, text: str, hosts: list[Host]) -> None:
    (tmp_path / "hosts").write_text(text)
    assert read_hosts(tmp_path / "hosts") == hosts


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a\n-oProxyCommand=x\n", ":2: '-oProxyCommand=x' is not a host; "),  # ssh would run it
        ("a slots=8", ":1: 'slots=8' is not an option of ray start; "),
        ("a\na", ":2: a is there already; "),
        ("a 'b", ":1: no closing quotation; "),
        ("# none\n", " names no host; "),
    ],
)
def test_lines_that_are_none_are_named(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(Problems) as caught:
        read_hosts(file)
    assert f"{file}{wrong}" in caught.value.lines[0], caught.value.lines


def shell(tmp_path: Path, body: str) -> Shell:
    script = tmp_path / "ssh"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return Shell((str(script), "-p", "22"), (sys.executable, "-m", "launcher"))


def test_the_token_goes_by_standard_input(tmp_path: Path) -> None:
    told = shell(tmp_path, f'echo "$@" >> {tmp_path}/argv; cat >> {tmp_path}/stdin')
    hosts = [Host("a"), Host("b", ("--num-gpus=2",))]
    assert dict(told.join(hosts, "10.0.0.1:6379", "the-secret")) == dict.fromkeys(hosts, "")
    argv = (tmp_path / "argv").read_text()
    assert "the-secret" not in argv and (tmp_path / "stdin").read_text() == "the-secret\n" * 2
    assert "-p 22 -o BatchMode=yes" in argv and "cluster join 10.0.0.1:6379 --token-file - -- --num-gpus=2" in argv


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo 'ssh: connect to host b: No route' >&2; exit 255", "ssh: connect to host b: No route"),
        (
            "echo noise >&2; echo '✗ ray: is not installed here; use x' >&2; exit 2",
            "ray: is not installed here; use x",
        ),
        ("exit 7", "ended with 7"),
    ],
)
def test_what_went_wrong_there_is_said_here(tmp_path: Path, body: str, why: str) -> None:
    (output,) = dict(shell(tmp_path, body).join([Host("b")], "10.0.0.1:6379", "t")).values()
    assert output.startswith(why)


def test_a_program_that_is_missing(tmp_path: Path) -> None:
    (output,) = dict(Shell(("no-such-ssh",), ("rlrun",)).down([Host("b")])).values()
    assert output == "no-such-ssh: no such file or directory"
