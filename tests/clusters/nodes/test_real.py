"""The real Ray and two users of one machine. Needs root, which may be other users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.clusters.nodes.home import Home

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("ip"), reason="needs root"),
]
ROOT = Path(__file__).parents[3]
SMALL = ["--", "--num-cpus=1", "--object-store-memory=83886080"]


@dataclass
class User:
    """Somebody with a home of their own, which nobody else may enter."""

    uid: int
    home: Path

    @property
    def become(self) -> list[str]:
        """By way of a shell: root's rights last until the first program."""
        ids = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        return ["setpriv", *ids, "sh", "-c", 'exec "$@"', "sh"]

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}

    def argv(self, *words: str) -> list[str]:
        return [*self.become, sys.executable, "-m", "launcher", *words]

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        argv = self.argv("cluster", *words)
        ran = subprocess.run(
            argv, env=self.env, cwd=self.home, capture_output=True, text=True, timeout=300, check=False
        )
        assert not check or ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}"
        return ran

    @property
    def cluster(self) -> Home:
        (found,) = (self.home / ".cache/rlrun/cluster").iterdir()
        return Home(found)

    def status(self) -> Any:
        return json.loads(self.run("status", "--json").stdout)


@pytest.fixture
def users() -> Iterator[list[User]]:
    folder = Path(tempfile.mkdtemp(prefix="rlu", dir="/tmp"))
    folder.chmod(0o755)
    made = []
    for number in range(2):
        user = User(51_000 + number, folder / f"user-{number}")
        user.home.mkdir(mode=0o700)
        os.chown(user.home, user.uid, user.uid)
        made.append(user)
    try:
        if made[0].run("--help", check=False).returncode:
            pytest.skip("another user may not run this Python")
        yield made
    finally:
        for user in made:
            user.run("down", check=False)
        shutil.rmtree(folder)


def test_two_users_of_one_machine_do_not_meet(users: list[User]) -> None:
    one, two = users
    one.run("up", *SMALL)
    two.run("up", *SMALL)
    nodes = [user.cluster.node() for user in users]
    assert nodes[0] and nodes[1] and nodes[0].address != nodes[1].address
    assert {len(user.status()["nodes"]) for user in users} == {1}, "each sees its own node only"
    # the other's cluster lets nobody in without its token, which cannot be read
    read = subprocess.run([*two.become, "cat", str(one.cluster.token)], capture_output=True, text=True, check=False)
    assert "Permission denied" in read.stderr
    found = two.run("status", nodes[0].address, check=False)
    assert found.returncode == 1 and "RAY_AUTH_TOKEN" in found.stdout
    # what one ends is its own
    one.run("down")
    assert not Path(nodes[0].temp).exists() and two.status()["nodes"][0]["alive"] is True
