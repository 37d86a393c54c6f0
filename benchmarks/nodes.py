"""Several nodes on one machine: network namespaces, each with an address, a host name and a Ray of its own.

Needs root and `ip`. Nothing of the machine's own network is touched.

    with nodes(2) as cluster:
        cluster.run(0, ["rlrun", "train", "cluster=ray", "cluster.address=auto", "hardware.nnodes=2", ...])
        cluster.kill_head()
        cluster.whole()
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.clusters.nodes import processes
from launcher.clusters.nodes.home import Home, Node, auth_env

RLRUN = [sys.executable, "-m", "launcher"]
NETWORK, INTERFACE = "10.77.0", "eth0"
WHOLE_S = 60.0
ALIVE = """
import json, sys
from ray._raylet import GcsClient
try:
    found = GcsClient(address=sys.argv[1]).get_all_node_info(timeout=2)
except Exception as error:
    print(json.dumps({"error": str(error)[:200]}))
else:
    alive = {node.node_id.hex(): node.node_manager_address for node in found.values() if node.state == 0}
    print(json.dumps({"alive": alive}))
"""


class Nodes:
    """Node 0 is the head. `folder` is theirs for as long as they are."""

    def __init__(self, count: int, folder: Path, words: Sequence[str]) -> None:
        self.count, self.folder, self.words = count, folder, list(words)
        self._name = f"rl{os.getpid()}"

    @property
    def address(self) -> str:
        """HOST:PORT of the cluster."""
        return self.node(0).address

    def ip(self, number: int) -> str:
        return f"{NETWORK}.{number + 1}"

    def home(self, number: int) -> Home:
        return Home(self.folder / f"node-{number}")

    def node(self, number: int) -> Node:
        found = self.home(number).node()
        assert found, f"node {number} is not up"
        return found

    def environment(self, number: int) -> dict[str, str]:
        """For what runs on the node: `cluster.address=auto` finds the cluster, and Ray's own tools are let in."""
        dropped = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")}
        return {**dropped, **auth_env(self.home(number).token), "RLRUN_CLUSTER": str(self.home(number).path)}

    def inside(self, number: int, argv: Sequence[str]) -> list[str]:
        """The words that run `argv` on a node."""
        named = f'hostname {self.host(number)} && exec "$@"'
        return ["ip", "netns", "exec", self.space(number), "unshare", "--uts", "sh", "-c", named, "sh", *argv]

    def begin(self, number: int, argv: Sequence[str], **more: Any) -> subprocess.Popen[str]:
        options = {"env": self.environment(number), "text": True, "start_new_session": True}
        return subprocess.Popen(self.inside(number, argv), **{**options, **more})

    def run(self, number: int, argv: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
        """To its end."""
        options = {"env": self.environment(number), "text": True, "capture_output": True}
        return subprocess.run(self.inside(number, argv), check=False, **{**options, **more})

    def rlrun(self, number: int, *words: str) -> str:
        """What it prints. Raises `AssertionError` where it fails."""
        ran = self.run(number, [*RLRUN, *words])
        assert ran.returncode == 0, f"{words} on node {number}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def kill_head(self) -> None:
        """The process that knows all nodes; what it knew is gone."""
        [head] = [process for process in processes.find(self.node(0)) if process.name() == "gcs_server"]
        head.kill()

    def alive(self) -> dict[str, str]:
        """Id and address of the nodes that the head counts; none while there is no head."""
        ran = self.run(0, [sys.executable, "-W", "ignore", "-c", ALIVE, self.address])
        output: dict[str, dict[str, str]] = json.loads(ran.stdout.splitlines()[-1]) if ran.stdout else {}
        return output.get("alive", {})

    def whole(self, seconds: float = WHOLE_S, gone: str = "") -> float:
        """Wait until every node is counted, once each: seconds that it took.

        A node that was killed is counted until the head notices; `gone` is its id.
        """
        began, wanted = time.monotonic(), sorted(self.ip(number) for number in range(self.count))
        while sorted((alive := self.alive()).values()) != wanted or gone in alive:
            assert time.monotonic() - began < seconds, (
                f"after {seconds:g} s these are alive: {alive}\n{self.keeper_lines()}"
            )
            time.sleep(0.2)
        return time.monotonic() - began

    def keeper_lines(self) -> str:
        """The last lines of each node's keeper."""
        logs = [self.home(number).keeper_log.read_text().splitlines()[-8:] for number in range(self.count)]
        return "\n".join(f"node {number}: {line}" for number, lines in enumerate(logs) for line in lines)

    def space(self, number: int) -> str:
        """Name of the node's network."""
        return f"{self._name}-{number}"

    def host(self, number: int) -> str:
        return f"node-{number}"

    def wire(self) -> None:
        """One namespace is the switch, to which every node has a cable."""
        switch = f"{self._name}-sw"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        hosts = "".join(f"{self.ip(number)} {self.host(number)}\n" for number in range(self.count))
        for number in range(self.count):
            space = f"{self._name}-{number}"
            _ip("netns", "add", space)
            settings = Path("/etc/netns") / space  # `ip netns exec` lays these over /etc
            settings.mkdir(parents=True)
            (settings / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
            peer = ["peer", "name", INTERFACE, "netns", space]
            _ip("link", "add", f"to{number}", "netns", switch, "type", "veth", *peer)
            _ip("-n", switch, "link", "set", f"to{number}", "master", "br0", "up")
            _ip("-n", space, "addr", "add", f"{self.ip(number)}/24", "dev", INTERFACE)
            for link in ("lo", INTERFACE):
                _ip("-n", space, "link", "set", link, "up")

    def start(self, at_once: int) -> None:
        self.rlrun(0, "cluster", "up", "--address", self.ip(0), "--", *self.words)
        words = ["cluster", "join", self.address, "--token-file", str(self.home(0).token), "--", *self.words]
        with ThreadPoolExecutor(at_once) as several:
            list(several.map(lambda number: self.rlrun(number, *words), range(1, self.count)))

    def clear(self) -> None:
        """Everything that was made, whatever state it is in."""
        for number in reversed(range(self.count)):
            if self.home(number).path.exists():
                self.run(number, [*RLRUN, "cluster", "down"])
        for name in [f"{self._name}-{number}" for number in range(self.count)] + [f"{self._name}-sw"]:
            left = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
            for pid in left.split():
                processes.send(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def nodes(count: int, *words: str, at_once: int = 1) -> Iterator[Nodes]:
    """`count` nodes that form a cluster; `words` are for `ray start` on each, by default two CPUs and little memory.

    One after another where the cores are few: Ray gives a node up that is not registered after 30 s.
    """
    folder = Path(tempfile.mkdtemp(prefix="rlrun-nodes-"))
    made = Nodes(count, folder, words or ("--num-cpus=2", "--object-store-memory=83886080"))
    try:
        made.wire()
        made.start(at_once)
        yield made
    finally:
        made.clear()
        shutil.rmtree(folder, ignore_errors=True)
