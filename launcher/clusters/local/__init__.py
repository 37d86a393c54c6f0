"""Processes on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from launcher.clusters.local.gpu_use import gpu_of
from launcher.clusters.local.stacks import STACK, stacks
from launcher.clusters.local.usage import Meter
from launcher.core.events import Event, Usage
from launcher.core.machine import LOOPBACK, free_ports
from launcher.core.machine import loopback as loopback_interface
from launcher.core.problems import Problem, error_message
from launcher.core.settings import settings
from launcher.spec.cluster import Cluster, Failure, Stack, first_failure
from launcher.spec.engine import Plan
from launcher.spec.hardware import Hardware

LIFELINE = "RLRUN_LIFELINE"  # tells a process that its standard input is the pipe described below
TOLD = "RLRUN_TOLD"  # names the descriptor of a process's own log, for what it writes there itself
GRACE_S = 5.0  # for the others to end by themselves once one has failed
DRAIN_S = 2.0  # for the rest of the output to reach the logs


@settings
class Local(Cluster):
    """This machine only."""

    master_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of the loopback at which several processes meet; by default one that is free when the run starts."""

    def problems(self, hardware: Hardware) -> list[str]:
        if hardware.nnodes == 1:
            return []
        return [f"hardware.nnodes: cluster local is one machine, got {hardware.nnodes}; use 1, or cluster=ray"]

    def start(self, plan: Plan, logs: Path, lock: int) -> LocalJob:
        shared = {**os.environ, **_rendezvous(len(plan.processes), self.master_port)}
        return LocalJob(plan, logs, lock, shared, usage_s=self.usage_pause_s(plan))

    def missing_requirements(self, hardware: Hardware) -> list[Problem]:
        if self.master_port is None or hardware.processes == 1:
            return []
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's own store does
            try:
                probe.bind((LOOPBACK, self.master_port))
            except OSError as error:
                fix = f"use {free_ports(1, LOOPBACK)[0]} or null"
                return [
                    Problem("cluster.master_port", f"port {self.master_port}: {error_message(error)}", fix, "in-use")
                ]
        return []


class LocalJob:
    """Each process has its own session, so that Ctrl-C reaches only us and we ask them to save.

    Its standard input is a pipe that only we hold: when we are killed it reads the end and ends itself. What it says
    goes through a log redactor, which keeps secrets out of its log. Events the process itself writes to the log (TOLD):
    without secrets, and there at once, whatever becomes of the redactor. `lines` are those of the first process.
    """

    def __init__(
        self,
        plan: Plan,
        logs: Path,
        lock: int,
        environment: Mapping[str, str],
        cwd: str | None = None,
        usage_s: float = 0.0,
    ) -> None:
        shared = {**environment, LIFELINE: "1", "PYTHONUNBUFFERED": "1"}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failures: dict[int, Failure] = {}
        self._ended_at = 0.0
        self._stacks = {process.rank: logs / f"rank-{process.rank}.stack" for process in plan.processes}
        for process in plan.processes:
            (logs / f"rank-{process.rank}.log").touch(mode=0o600)
            self._stacks[process.rank].touch(mode=0o600)
        self._log = (logs / f"rank-{plan.processes[0].rank}.log").open("a+b")
        self._log.seek(0, os.SEEK_END)
        self._half = b""
        pipes = [os.pipe() for _ in plan.processes]
        self._redactor = start_log_redactor(
            pipes, [logs / f"rank-{process.rank}.log" for process in plan.processes], shared
        )
        for process, (_, mouth) in zip(plan.processes, pipes, strict=True):
            with (
                (logs / f"rank-{process.rank}.log").open("ab") as log,
                self._stacks[process.rank].open("ab") as stack,
            ):
                told = {TOLD: str(log.fileno()), STACK: str(stack.fileno())}
                env, fds = {**shared, **process.env, **told}, (lock, log.fileno(), stack.fileno())
                self._processes.append(
                    subprocess.Popen(
                        process.argv, env=env, stdin=subprocess.PIPE, stdout=mouth, stderr=mouth, pass_fds=fds, cwd=cwd,
                        start_new_session=True,
                    )
                )  # fmt: skip
            os.close(mouth)
        pids = {process.rank: made.pid for process, made in zip(plan.processes, self._processes, strict=True)}
        gpus = {process.rank: gpu_of({**shared, **process.env}) if plan.gpus else "" for process in plan.processes}
        self._usage = Meter(pids, gpus, logs, usage_s)

    def lines(self) -> list[str]:
        *whole, self._half = (self._half + self._log.read()).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def exit_code(self) -> int | None:
        codes = [process.poll() for process in self._processes]
        for rank, code in zip(self._stacks, codes, strict=True):
            if code and rank not in self._failures:
                self._failures[rank] = Failure(rank, code, time.monotonic())
        failed = self._failed()
        if all(code is not None for code in codes):
            self._usage.close()
            return (failed.code if failed else 0) if self._drained() else None
        if failed and time.monotonic() - failed.at > GRACE_S:
            self.kill()  # the others wait for the one that failed
        return None

    def _failed(self) -> Failure | None:
        return first_failure(list(self._failures.values()))

    def _drained(self) -> bool:
        """Whether the logs hold all that was said. What a process left running may go on to speak for ever."""
        self._ended_at = self._ended_at or time.monotonic()
        return self._redactor.poll() is not None or time.monotonic() - self._ended_at > DRAIN_S

    def failed_rank(self) -> int | None:
        failed = self._failed()
        return failed.rank if failed else None

    def poll_events(self) -> list[Event]:
        return []

    def lost_resources(self) -> str:
        return ""  # this machine is there as long as we are

    def stacks(self, wait_s: float) -> list[Stack]:
        return stacks(dict(zip(self._stacks, self._processes, strict=True)), self._stacks, wait_s)

    def usage(self) -> list[Usage]:
        return self._usage.take()

    def stop(self, number: int) -> None:
        self._signal(number)

    def kill(self) -> None:
        self._usage.close()
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)


def start_log_redactor(
    pipes: list[tuple[int, int]], logs: list[Path], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """The process that reads all `pipes` into their `logs`; their reading ends are its own from here on."""
    argv = [sys.executable, "-P", "-m", "launcher.core.log_redactor"]
    for (source, _), log in zip(pipes, logs, strict=True):
        argv += [str(source), str(log)]
    with logs[0].open("ab") as own:
        made = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=own, stderr=own, start_new_session=True,
            pass_fds=[source for source, _ in pipes],
        )  # fmt: skip
    for source, _ in pipes:
        os.close(source)
    return made


def _rendezvous(processes: int, port: int | None) -> dict[str, str]:
    """Where the processes of one machine find each other."""
    if processes == 1:
        return {}
    loopback = {"GLOO_SOCKET_IFNAME": name} if (name := loopback_interface()) else {}
    return {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port or free_ports(1, LOOPBACK)[0]), **loopback}
