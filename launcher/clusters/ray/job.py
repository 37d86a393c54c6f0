"""A run's processes on a Ray cluster, from our side of the pipe.

`python -m launcher.clusters.ray.driver` is a process of its own: the only one of a run that loads Ray. So this side
starts at once, never hangs where Ray does, and outlives whatever becomes of the cluster. Both speak lines of JSON:

    > {"asked": {...}}                                  what to start: `Asked`
    > {"signal": 15}                                    to every process
    > {"stacks": 1.0}                                   of every process, within so many seconds
    < {"stacks": [{...}]}                               `Stack`s
    < {"usage": [{...}]}                                `Usage`s, now and then
    < {"waiting": "..."}                                for resources, and which are missing
    < {"refused": ["..."]}                              why nothing was started
    < {"rank": 1, "said": "...", "kept": true}          whole lines of a log; kept: this machine's file holds them too
    < {"rank": 1, "code": 0}                            its process ended
    < {"rank": 1, "lost": "node 10.0.0.2 is gone"}      with the node or the actor that it ran on
    < {"lost": "the Ray cluster does not answer"}       and all that ran there
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
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.clusters.local import sieve
from launcher.clusters.nodes.processes import DETACHED
from launcher.clusters.nodes.ray_start import TUNED
from launcher.clusters.nodes.reach import reach
from launcher.clusters.spare import MODULE, Spare, begin
from launcher.core import machine
from launcher.core.events import Crashed, Event, Usage, Waiting
from launcher.spec.cluster import Failure, Stack, first_failure
from launcher.spec.engine import Plan

GRACE_S = 5.0  # for the others to end by themselves once one has failed
POLL_S, FAR_S = 0.02, 2.0  # while something is waited for; what a way to the nodes and back may take
LEAVE_S = 10.0  # for the driver to end what it started
NAME = "rlrun-ray"  # of the folder of a cluster of our own
LONGEST = 24  # characters of what that lies in: the path of a socket may have 107
CARRIED = (
    "CUDA_", "GLOO_", "HF_", "MODELSCOPE_", "NCCL_", "OMP_", "MKL_", "PYTHON", "PYTORCH_", "RLRUN_", "TOKENIZERS_",
    "TORCH_", "TRANSFORMERS_", "VLLM_", "WANDB_", "http", "HTTP", "no_proxy", "NO_PROXY",
)  # fmt: skip
"""Variables of this shell that go along to the nodes, by how their names begin."""
PLACED = ("CUDA_VISIBLE_DEVICES", "RLRUN_LIFELINE", "RLRUN_TOLD", DETACHED)
"""Those among them that each node has of its own."""


@dataclass(frozen=True)
class Asked:
    """What the driver is to start."""

    processes: list[dict[str, Any]]
    """rank, node, argv, env of each."""
    nnodes: int
    gpus: int
    """Of each process."""
    cpus: float
    """Of each process."""
    usage_s: float
    spare: bool
    logs: str
    address: str | None
    wait_s: float
    env: dict[str, str]
    cwd: str
    temp: str
    """Folder of a cluster of our own."""
    let_in: dict[str, str]
    """Environment by which a running cluster lets the driver in."""

    @classmethod
    def of(
        cls, plan: Plan, logs: Path, address: str | None, *, wait_s: float, cpus: float, usage_s: float, spare: bool
    ) -> Asked:
        env = {name: value for name, value in os.environ.items() if name.startswith(CARRIED) and name not in PLACED}
        reached = reach(address) if address else None
        return cls(
            processes=[
                {"rank": one.rank, "node": one.node, "argv": list(one.argv), "env": dict(one.env)}
                for one in plan.processes
            ],
            nnodes=plan.nnodes, gpus=plan.gpus, cpus=cpus, usage_s=usage_s, spare=spare, logs=str(logs),
            address=reached.address if reached else None, wait_s=wait_s, env=env, cwd=os.getcwd(),
            temp="" if reached else _temp(), let_in=dict(reached.env) if reached else {},
        )  # fmt: skip


def _temp() -> str:
    """A folder with a short name, as Ray's sockets lie in it."""
    base = Path(tempfile.gettempdir())
    return str(machine.process_folder(NAME, base if len(str(base)) <= LONGEST else Path("/tmp")))


class RayJob:
    """The driver and what it tells. Raises nothing: a cluster that cannot be reached is a job that failed."""

    def __init__(self, asked: Asked, logs: Path, lock: int) -> None:
        self._logs, self._temp = logs, asked.temp
        self._count, self._ended = len(asked.processes), set[int]()
        self._failures: list[Failure] = []
        self._stacks: list[Stack] | None = None
        self._lost = ""
        self._refused = self._killed = False
        self._news: list[Event] = []
        self._usage: list[Usage] = []
        self._lines: list[str] = []
        self._half = b""
        for process in asked.processes:
            (logs / f"rank-{process['rank']}.log").touch(mode=0o600)
        environment = _environment(asked)
        source, mouth = os.pipe()
        sieve([(source, mouth)], [logs / "driver.log"], environment)  # Ray may say anything
        words = (sys.executable, *MODULE, "launcher.clusters.ray.driver")
        spare = asked.spare and asked.address is not None  # nobody else is let into a cluster of our own
        self._driver = begin(words, environment, subprocess.PIPE, mouth, (lock,), spare=spare)
        self._spare = Spare(words, environment) if spare else None
        os.close(mouth)
        assert self._driver.stdout
        os.set_blocking(self._driver.stdout.fileno(), False)
        self._tell({"asked": asdict(asked)})

    def lines(self) -> list[str]:
        self._hear()
        lines, self._lines = self._lines, []
        return lines

    def exit_code(self) -> int | None:
        over = self._driver.poll() is not None
        if self._spare:
            self._spare.look()
        self._hear()
        failed = self._failed()
        if failed and not over and not self._killed and time.monotonic() - failed.at > GRACE_S:
            self._tell({"signal": signal.SIGKILL})  # the others wait for the one that failed
            self._killed = True
        if not over:
            return None
        self._forget()
        if self._refused:
            return 2
        if len(self._ended) < self._count and not self._lost:
            self._lost = f"the process that speaks with Ray ended with {self._driver.returncode}"
        return failed.code if failed else -signal.SIGKILL if self._lost else 0

    def _failed(self) -> Failure | None:
        return first_failure(self._failures)

    def failed_rank(self) -> int | None:
        failed = self._failed()
        return failed.rank if failed else None

    def lost(self) -> str:
        return self._lost

    def stacks(self, wait_s: float) -> list[Stack]:
        self._stacks, give_up = None, time.monotonic() + wait_s + FAR_S
        self._tell({"stacks": wait_s})
        while self._stacks is None and time.monotonic() < give_up and self._driver.poll() is None:
            time.sleep(POLL_S)
            self._hear()
        return self._stacks or []

    def usage(self) -> list[Usage]:
        usage, self._usage = self._usage, []
        return usage

    def news(self) -> list[Event]:
        news, self._news = self._news, []
        return news

    def stop(self, number: int) -> None:
        self._tell({"signal": number})

    def kill(self) -> None:
        """The driver kills what runs and ends; it is not waited for longer than LEAVE_S."""
        if self._driver.stdin:
            with suppress(OSError):
                self._driver.stdin.close()
        try:
            self._driver.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
        self._forget()

    def _forget(self) -> None:
        if self._spare:
            self._spare.close()
        if self._temp:
            shutil.rmtree(self._temp, ignore_errors=True)

    def _tell(self, node: dict[str, Any]) -> None:
        if self._driver.stdin and not self._driver.stdin.closed:
            with suppress(OSError):  # it has ended, which exit_code finds out
                self._driver.stdin.write(json.dumps(node).encode() + b"\n")
                self._driver.stdin.flush()

    def _hear(self) -> None:
        assert self._driver.stdout
        came = self._driver.stdout.read() or b""
        *whole, self._half = (self._half + came).split(b"\n")
        for line in whole:
            self._heard(json.loads(line))

    def _heard(self, told: dict[str, Any]) -> None:
        match told:
            case {"rank": rank, "said": text, "kept": kept}:
                if rank == 0:
                    self._lines += text.split("\n")[:-1]  # what an event holds may look like the end of a line
                if not kept:
                    with (self._logs / f"rank-{rank}.log").open("a", encoding="utf-8") as log:
                        log.write(text)
            case {"rank": rank, "code": code}:
                self._over(rank, code)
            case {"rank": rank, "lost": why}:
                self._lost = self._lost or why
                self._over(rank, -signal.SIGKILL)
            case {"stacks": stacks}:
                self._stacks = [Stack(**stack) for stack in stacks]
            case {"usage": found}:
                self._usage += [Usage(**each) for each in found]
            case {"lost": why}:
                self._lost = self._lost or why
            case {"waiting": text}:
                self._news.append(Waiting(text=text))
            case {"refused": lines}:
                self._refused = True
                self._news.append(Crashed(lines=tuple(lines), cause="configuration"))

    def _over(self, rank: int, code: int) -> None:
        self._ended.add(rank)
        if code:
            self._failures.append(Failure(rank, code, time.monotonic()))


def _environment(asked: Asked) -> dict[str, str]:
    """Of the driver. A cluster of our own is behind a token that is made for it; nobody else's is joined by chance."""
    env = {
        **TUNED,
        **os.environ,
        **asked.let_in,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    if not asked.address:
        env = {name: value for name, value in env.items() if name != "RAY_ADDRESS"}
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex(), "RAY_TMPDIR": asked.temp}
    return env
