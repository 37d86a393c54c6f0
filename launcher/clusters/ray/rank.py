"""The Ray actor of one training process, on the node where that runs."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from launcher.clusters.local import LocalJob
from launcher.core import machine
from launcher.core.events import Usage
from launcher.spec.engine import Plan, Process

POLL_S = 1.0  # longest wait for output
PAUSE_S = 0.05  # between two answers, so that lines are sent together
EARLIER_S = 60.0  # for a process of the attempt before, which may still be saving, to end
OF_RAY = ("RAY_", "OMP_NUM_THREADS")
"""Variables that Ray sets for its actors; training processes do not get them."""


class Rank:
    """Starts a process, and returns its output. Methods are called from several threads."""

    def __init__(self) -> None:
        self.job: LocalJob | None = None
        self.polled_at = 0.0

    def describe(self, logs: str) -> dict[str, Any]:
        """This actor's node, its address and network interface, a port that is free there, and whether the folder
        `logs` is."""
        address = ray.util.get_node_ip_address()
        return {
            "node": ray.get_runtime_context().get_node_id(), "address": address,
            "interface": machine.interface_of_addresses().get(address, ""), "port": machine.free_ports(1, address)[0],
            "shared": os.path.isdir(logs),
        }  # fmt: skip

    def start(
        self, rank: int, argv: Sequence[str], env: Mapping[str, str], logs: str, cwd: str, gpus: int, usage_s: float
    ) -> None:  # fmt: skip
        """Start the process. Raises `OSError` where it cannot be started."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_RAY)}
        python = sys.executable if not os.path.exists(argv[0]) else argv[0]
        process = Process(rank, (python, *argv[1:]), env)
        lock = _wait_for_earlier(Path(logs), rank)
        working_dir = cwd if os.path.isdir(cwd) else None
        self.job = LocalJob(Plan((process,), gpus=gpus), Path(logs), lock, environment, working_dir, usage_s)
        os.close(lock)

    def poll(self) -> tuple[str, int | None, list[Usage]]:
        """Whole lines printed since the last call, the exit code, and resource usage."""
        assert self.job
        time.sleep(max(self.polled_at + PAUSE_S - time.monotonic(), 0))
        deadline = time.monotonic() + POLL_S
        while True:
            code = self.job.exit_code()
            lines = self.job.lines()
            if lines or code is not None or time.monotonic() > deadline:
                self.polled_at = time.monotonic()
                return "".join(line + "\n" for line in lines), code, self.job.usage()
            time.sleep(PAUSE_S)

    def signal(self, number: int) -> None:
        if self.job:
            self.job.stop(number)

    def end(self) -> None:
        """Kill the process, and wait until it is gone."""
        if self.job:
            self.job.kill()
            while self.job.exit_code() is None:
                time.sleep(PAUSE_S)


def _wait_for_earlier(logs: Path, rank: int) -> int:
    """Descriptor of a lock that the process holds as long as it lives, once an earlier attempt's has released it.

    Raises `TimeoutError` where that takes longer than EARLIER_S seconds.
    """
    lock_file = os.open(logs.parent / f".rank-{rank}", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + EARLIER_S
    while True:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(lock_file)
                raise TimeoutError(f"rank {rank} of an earlier attempt still runs after {EARLIER_S:g} s") from error
            time.sleep(0.1)
        else:
            return lock_file
