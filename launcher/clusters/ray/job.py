"""The launcher's side of a run's processes on a Ray cluster.

`python -m launcher.clusters.ray.driver` is a process of its own, the only one of a run that loads Ray. So the launcher
starts at once, never hangs where Ray does, and survives the loss of the cluster. They exchange lines of JSON:

    > {"request": {...}}                                what to start: `DriverRequest`
    > {"signal": 15}                                    to every process
    < {"usage": [{...}]}                                `Usage`s, now and then
    < {"waiting": "..."}                                for resources, and which are missing
    < {"refused": ["..."]}                              why nothing was started
    < {"rank": 1, "output": "..."}                      whole lines of its log
    < {"rank": 1, "code": 0}                            its process ended
    < {"rank": 1, "lost": "node 10.0.0.2 is gone"}      with the node or the actor that it ran on
    < {"lost": "the Ray cluster does not answer"}       and all that ran there
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.clusters.local import EVENT_LOG, LIFELINE, start_log_redactor
from launcher.clusters.ray.listing import head_address
from launcher.core.events import Crashed, Event, Usage, Waiting
from launcher.spec.cluster import Failure, Job, first_failure
from launcher.spec.engine import Plan

GRACE_S = 5.0  # for the others to exit once one has failed
LEAVE_S = 10.0  # for the driver to end the processes that it started
CARRIED = (
    "CUDA_", "GLOO_", "HF_", "MODELSCOPE_", "NCCL_", "OMP_", "MKL_", "PYTHON", "PYTORCH_", "RLRUN_", "TOKENIZERS_",
    "TORCH_", "TRANSFORMERS_", "VLLM_", "WANDB_", "http", "HTTP", "no_proxy", "NO_PROXY",
)  # fmt: skip
"""Prefixes of the names of this shell's variables that are passed on to the nodes."""
RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray's seconds for a head to answer again: one that died has forgotten everything, so none are waited longer."""
NODE_OWNED = ("CUDA_VISIBLE_DEVICES", LIFELINE, EVENT_LOG)
"""Variables that each node sets itself, and that are not passed on."""


@dataclass(frozen=True)
class DriverRequest:
    """What the driver starts, and where."""

    processes: list[dict[str, Any]]
    """rank, node, argv and env of each process."""
    nnodes: int
    gpus: int
    """GPUs of each process."""
    cpus: float
    """CPU cores of each process."""
    usage_s: float
    logs: str
    address: str
    wait_s: float
    env: dict[str, str]
    cwd: str


class RayJob(Job):
    """The driver process and its reports. Where the cluster cannot be joined, the job fails."""

    def __init__(
        self, plan: Plan, logs: Path, lock: int, address: str, *, wait_s: float, cpus: float, usage_s: float
    ) -> None:
        """Raises `Problems` where there is no cluster at `address`. `cpus` are the cores of each process."""
        env = {name: value for name, value in os.environ.items() if name.startswith(CARRIED) and name not in NODE_OWNED}
        request = DriverRequest(
            [{**vars(process), "argv": list(process.argv), "env": dict(process.env)} for process in plan.processes],
            plan.nnodes, plan.gpus, cpus, usage_s, str(logs.absolute()), head_address(address), wait_s, env,
            os.getcwd(),
        )  # fmt: skip
        self._count = len(request.processes)
        self._ended = set[int]()
        self._failures: list[Failure] = []
        self._lost = ""
        self._refused = self._killed = False
        self._events: list[Event] = []
        self._usage: list[Usage] = []
        self._lines: list[str] = []
        self._partial_line = b""
        own = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        environment = {RECONNECT: "10", **os.environ, **own}
        source, output = os.pipe()
        start_log_redactor([(source, output)], [logs / "driver.log"], environment)  # Ray may print secrets
        self._driver = subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher.clusters.ray.driver"], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=output, pass_fds=(lock,), start_new_session=True,
        )  # fmt: skip
        os.close(output)
        assert self._driver.stdout
        os.set_blocking(self._driver.stdout.fileno(), False)
        self._send({"request": asdict(request)})

    def lines(self) -> list[str]:
        self._receive()
        lines, self._lines = self._lines, []
        return lines

    def exit_code(self) -> int | None:
        driver_ended = self._driver.poll() is not None
        self._receive()
        failed = first_failure(self._failures)
        if not driver_ended:
            if failed and not self._killed and time.monotonic() - failed.at > GRACE_S:
                self.stop(signal.SIGKILL)  # the others wait for the one that failed
                self._killed = True
            return None
        if self._refused:
            return 2
        if len(self._ended) < self._count and not self._lost:
            self._lost = f"the Ray driver process ended with {self._driver.returncode}"
        return failed.code if failed else -signal.SIGKILL if self._lost else 0

    def failed_rank(self) -> int | None:
        failed = first_failure(self._failures)
        return failed.rank if failed else None

    def lost_resources(self) -> str:
        return self._lost

    def usage(self) -> list[Usage]:
        usage, self._usage = self._usage, []
        return usage

    def poll_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def stop(self, number: int) -> None:
        self._send({"signal": number})

    def kill(self) -> None:
        """Have the driver kill all processes and end; it is killed itself after LEAVE_S seconds."""
        if self._driver.stdin:
            with suppress(OSError):
                self._driver.stdin.close()
        try:
            self._driver.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)

    def _send(self, message: dict[str, Any]) -> None:
        if self._driver.stdin and not self._driver.stdin.closed:
            with suppress(OSError):  # it has ended, which exit_code reports
                self._driver.stdin.write(json.dumps(message).encode() + b"\n")
                self._driver.stdin.flush()

    def _receive(self) -> None:
        assert self._driver.stdout
        received = self._driver.stdout.read() or b""
        *complete, self._partial_line = (self._partial_line + received).split(b"\n")
        for line in complete:
            self._handle(json.loads(line))

    def _handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"rank": rank, "output": text}:
                if rank == 0:
                    self._lines += text.split("\n")[:-1]  # not splitlines: an event may hold other line separators
            case {"rank": rank, "code": code}:
                self._end_rank(rank, code)
            case {"rank": rank, "lost": why}:
                self._lost = self._lost or why
                self._end_rank(rank, -signal.SIGKILL)
            case {"usage": measured}:
                self._usage += [Usage(**each) for each in measured]
            case {"lost": why}:
                self._lost = self._lost or why
            case {"waiting": text}:
                self._events.append(Waiting(text=text))
            case {"refused": lines}:
                self._refused = True
                self._events.append(Crashed(lines=tuple(lines), cause="configuration"))

    def _end_rank(self, rank: int, code: int) -> None:
        self._ended.add(rank)
        if code:
            self._failures.append(Failure(rank, code, time.monotonic()))
