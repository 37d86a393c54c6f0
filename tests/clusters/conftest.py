"""A machine that is the head of a Ray cluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.clusters.ray.listing import list_nodes
from launcher.core.machine import LOOPBACK, free_ports
from launcher.core.problems import Problems
from tests.conftest import wait_until

KEEP = 'while true; do "$@"; sleep 1; done'  # as docs/clusters.md has it


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """Sockets lie in it, whose paths may not be long."""
    folder = Path(tempfile.mkdtemp(prefix="rlj", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def head(base: Path, commands: Any) -> Iterator[Any]:
    """The command line on a machine that is the head of a cluster, whose Ray is started again when it dies."""
    ports = free_ports(3)  # others try the usual ones at the same time
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RAY_TMPDIR": str(base), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0f" * 32}.items():
            patch.setenv(name, value)
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={ports[0]}",
                 f"--node-ip-address={LOOPBACK}", "--include-dashboard=false", "--disable-usage-stats",
                 f"--dashboard-agent-listen-port={ports[1]}", f"--metrics-export-port={ports[2]}",
                 "--num-cpus=2", "--object-store-memory=83886080"]  # fmt: skip
        with (base / "ray.log").open("w") as log:
            keeper = subprocess.Popen(["sh", "-c", KEEP, "sh", *start], stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: is_up(f"{LOOPBACK}:{ports[0]}"), 120)
        made = commands(base)
        yield made
        for lock in base.glob("runs/*/*/.lock"):
            made("stop", "--now", str(lock.parent))
        os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait()
        for process in of_ray(base):
            process.kill()


def is_up(address: str) -> bool:
    try:
        return any(node.alive for node in list_nodes(address))
    except Problems:
        return False


def of_ray(base: Path) -> list[psutil.Process]:
    """The processes of the Ray whose folder is `base`."""
    lines = ((each, " ".join(each.info["cmdline"] or [])) for each in psutil.process_iter(["cmdline"]))
    return [process for process, line in lines if f"{base}/ray" in line]
