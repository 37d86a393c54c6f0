"""`rlrun doctor --nodes` against a real Ray of two nodes on this machine, of which the second differs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.core.machine import free_ports

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.long]  # test_nodes.py compares what nodes say
ROOT = Path(__file__).parents[3]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
TOKEN = "a" * 40
TRIES = 3  # on a busy machine a node gives up after 30 s


@dataclass
class Cluster:
    """A head and one more node; both are this test's own processes."""

    address: str
    folder: Path
    second: subprocess.Popen[bytes]

    def doctor(self, *words: str, token: str = TOKEN) -> tuple[int, list[dict[str, Any]], float]:
        """Exit code, results, and seconds."""
        began = time.monotonic()
        asked = [sys.executable, "-m", "launcher", "doctor", "--nodes", self.address, "--json", *words]
        env = environment(self.folder) | {"RAY_AUTH_TOKEN": token}
        ran = subprocess.run(asked, env=env, cwd=self.folder, capture_output=True, text=True, timeout=240)
        assert ran.stdout, ran.stderr
        return ran.returncode, json.loads(ran.stdout)["results"], time.monotonic() - began


def environment(folder: Path) -> dict[str, str]:
    excluded = ("RAY_ADDRESS", "OMP_NUM_THREADS")
    return {name: value for name, value in os.environ.items() if name not in excluded} | {
        "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder), "RLRUN_DATA": str(folder / "data"), "RLRUN_MODELS": str(folder / "models"),
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip


def start(folder: Path, name: str, words: list[str], env: dict[str, str], before: str = "") -> subprocess.Popen[bytes]:
    """A node, once its raylet is registered. Raises `AssertionError` where that does not come about."""
    for number in range(TRIES):
        log = folder / f"{name}-{number}.log"
        agent = f"--dashboard-agent-listen-port={free_ports(1)[0]}"
        asked = [*RAY, "start", "--block", *words, agent, "--num-cpus=2", "--object-store-memory=83886080"]
        shell = ["unshare", "--mount", "sh", "-c", f'{before} && exec "$@"', "sh", *asked]
        with log.open("w") as out:
            process = subprocess.Popen(
                shell if before else asked, env=env, stdout=out, stderr=out, start_new_session=True
            )
        give_up = time.monotonic() + 90
        while process.poll() is None and time.monotonic() < give_up:
            if "This command will now block" in log.read_text():
                return process
            time.sleep(0.2)
        end(process)
    raise AssertionError(log.read_text()[-2000:])


def end(process: subprocess.Popen[bytes]) -> None:
    """With everything that it has started, and nothing else."""
    try:
        started = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        started = []
    for one in started:
        try:
            one.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.wait()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="rl", dir="/tmp"))  # Ray's sockets need a short path
    for name in ("data", "models", "ray"):
        (folder / name).mkdir()
    port, env = free_ports(1)[0], environment(folder)
    head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}/h"]
    if find_spec("grpc"):  # with ray[client] its server takes port 10001, which another cluster here may have
        head.append(f"--ray-client-server-port={free_ports(1)[0]}")
    processes = []
    try:
        processes.append(start(folder, "head", head, env))
        address = f"{_address(folder)}:{port}"
        other = folder / "METADATA"  # what a node that was forgotten has
        other.write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.0\n")
        installed = distribution("transformers").locate_file(f"transformers-{version('transformers')}.dist-info")
        apart = os.geteuid() == 0 and shutil.which("unshare") is not None
        mount = f"mount -t tmpfs -o size=64m tmpfs {folder}/data && mount --bind {other} {installed}/METADATA"
        second = start(folder, "second", [f"--address={address}"], env, mount if apart else "")
        processes.append(second)
        yield Cluster(address, folder, second)
    finally:
        for process in reversed(processes):
            end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _address(folder: Path) -> str:
    """The head's own, as it prints it."""
    log = re.sub(r"\x1b\[\d+m", "", max(folder.glob("head-*.log")).read_text())
    (found,) = re.findall(r"Local node IP: (\S+)", log)
    return str(found)


def of(results: list[dict[str, Any]], where: str, what: str) -> dict[str, Any]:
    (found,) = [one for one in results if one["node"] == where and one["subject"] == what]
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a node another disk and another package")
def test_two_nodes_beside_each_other(cluster: Cluster) -> None:
    code, results, _ = cluster.doctor("--root", str(cluster.folder / "runs"), "--timeout", "120")
    nodes = {one["node"] for one in results} - {"cluster", "between nodes"}
    assert len(nodes) == 2 and all(of(results, node, "torch")["level"] == "OK" for node in nodes)
    # what is wrong: one version, and by that what this node promises; nothing else
    differs = of(results, "between nodes", "transformers")
    assert differs["level"] == "FAIL" and "4.0 on " in differs["message"]
    failed = {(one["node"] == "between nodes", one["subject"]) for one in results if one["level"] == "FAIL"}
    room = {(False, what) for what in ("data store",)}  # the small disk that stands for another machine's
    assert failed - room == {(True, "transformers"), (False, "transformers")}, failed
    assert code == 1
    # what is right between them
    assert "is one folder on 2 nodes" in of(results, "between nodes", "run root")["message"]
    left = list(cluster.folder.rglob(".rlrun-doctor-*"))
    assert not left, "files that the nodes put for each other"


def test_another_token_is_named_in_seconds(cluster: Cluster) -> None:
    code, (found,), seconds = cluster.doctor(token="b" * 40)
    assert code == 1 and found["level"] == "FAIL" and "RAY_AUTH_TOKEN" in found["fix"], found
    assert "b" * 40 not in json.dumps(found)
    assert seconds < 20  # Ray itself: 20 s, and says only that it failed


def test_a_node_that_stopped_is_named_and_the_rest_go_on(cluster: Cluster) -> None:
    (raylet,) = [one for one in psutil.Process(cluster.second.pid).children(recursive=True) if one.name() == "raylet"]
    raylet.send_signal(signal.SIGSTOP)
    try:
        code, results, seconds = cluster.doctor("--timeout", "40")
    finally:
        raylet.send_signal(signal.SIGCONT)
    silent = [one for one in results if "does not answer" in one["message"]]
    assert code == 1 and len(silent) == 1 and silent[0]["subject"] == "node", results
    healthy = {one["node"] for one in results} - {"cluster", "between nodes", silent[0]["node"]}
    assert len(healthy) == 1 and of(results, healthy.pop(), "torch")["level"] == "OK"
    assert seconds < 40 + 80
