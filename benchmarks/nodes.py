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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

RLRUN = [sys.executable, "-m", "launcher"]
NETWORK, INTERFACE, PORT = "10.77.0", "eth0", 6379
KEEP = 'while true; do "$@"; sleep 1; done'
TUNED = {"RAY_gcs_rpc_server_reconnect_timeout_s": "10", "RAY_health_check_period_ms": "1000"}
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
        self.address = f"{self.ip(0)}:{PORT}"

    def ip(self, number: int) -> str:
        return f"{NETWORK}.{number + 1}"

    def log(self, number: int) -> Path:
        return self.folder / f"node-{number}.log"

    def environment(self, number: int) -> dict[str, str]:
        """For what runs on the node: `cluster.address=auto` finds the cluster, and Ray's own tools are let in."""
        dropped = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        temp = self.folder / str(number)
        temp.mkdir(exist_ok=True)
        return {**dropped, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0f" * 32, "RAY_TMPDIR": str(temp), **TUNED}

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

    def kill_head(self) -> None:
        """The process that knows all nodes; what it knew is gone."""
        [head] = [process for process in self.processes(0) if process.name() == "gcs_server"]
        head.kill()

    def processes(self, number: int) -> list[psutil.Process]:
        """Those of the node's network."""
        space = self.space(number)
        listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False).stdout
        found = []
        for pid in map(int, listed.split()):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    def alive(self) -> dict[str, str]:
        """Id and address of the nodes that the head counts; none while there is no head."""
        ran = self.run(0, [sys.executable, "-W", "ignore", "-c", ALIVE, self.address])
        output: dict[str, dict[str, str]] = json.loads(ran.stdout.splitlines()[-1]) if ran.stdout else {}
        return output.get("alive", {})

    def whole(self, seconds: float = WHOLE_S, among: int | None = None) -> float:
        """Wait until every node, or the first `among`, is counted, once each: seconds that it took."""
        began, wanted = time.monotonic(), sorted(self.ip(number) for number in range(among or self.count))
        while sorted((alive := self.alive()).values()) != wanted:
            assert time.monotonic() - began < seconds, (
                f"after {seconds:g} s these are alive: {alive}\n{self.last_lines()}"
            )
            time.sleep(0.2)
        return time.monotonic() - began

    def last_lines(self) -> str:
        """The last lines of each node's Ray."""
        logs = [self.log(number).read_text().splitlines()[-8:] for number in range(self.count)]
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

    def start(self) -> None:
        """Ray on each node, started again when it dies, as docs/clusters.md has it."""
        for number in range(self.count):
            role = (
                [f"--address={self.address}"] if number else ["--head", f"--port={PORT}", "--include-dashboard=false"]
            )
            start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *role]
            with self.log(number).open("w") as log:
                words = ["sh", "-c", KEEP, "sh", *start, f"--node-ip-address={self.ip(number)}", *self.words]
                self.begin(number, words, stdout=log, stderr=log)
            self.whole(self.count * WHOLE_S, among=number + 1)

    def clear(self) -> None:
        """Everything that was made, whatever state it is in."""
        for number in reversed(range(self.count)):
            while left := self.processes(number):
                for process in left:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                psutil.wait_procs(left, 10)
        for name in [*(self.space(number) for number in range(self.count)), f"{self._name}-sw"]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def nodes(count: int, *words: str) -> Iterator[Nodes]:
    """`count` nodes that form a cluster; `words` are for `ray start` on each, by default two CPUs and little memory."""
    folder = Path(tempfile.mkdtemp(prefix="rlrun-nodes-"))
    made = Nodes(count, folder, words or ("--num-cpus=2", "--object-store-memory=83886080"))
    try:
        made.wire()
        made.start()
        yield made
    finally:
        made.clear()
        shutil.rmtree(folder, ignore_errors=True)
