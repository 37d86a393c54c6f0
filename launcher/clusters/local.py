"""Processes on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field

from launcher.problems import said
from launcher.settings import settings
from launcher.spec.cluster import Cluster
from launcher.spec.engine import Plan
from launcher.spec.hardware import Hardware

LIFELINE = "RLRUN_LIFELINE"  # tells a process that its standard input is the pipe described below
LOOPBACK = "127.0.0.1"
GRACE_S = 5.0  # for the others to end by themselves once one has failed


@settings
class Local(Cluster):
    """This machine only."""

    master_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of the loopback at which several processes meet; by default one that is free when the run starts."""

    def problems(self, hardware: Hardware) -> list[str]:
        if hardware.nnodes == 1:
            return []
        return [f"hardware.nnodes: cluster local is one machine, got {hardware.nnodes}; 1 would do"]

    def start(self, plan: Plan, logs: Path, lock: int) -> LocalJob:
        return LocalJob(plan, logs, lock, self.master_port)

    def lacks(self, hardware: Hardware) -> list[str]:
        if self.master_port is None or hardware.processes == 1:
            return []
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's own store does
            try:
                probe.bind((LOOPBACK, self.master_port))
            except OSError as error:
                why = f"port {self.master_port} cannot be taken, {said(error)}"
                return [f"cluster.master_port: {why}; {_free_port()} or null would do"]
        return []


class LocalJob:
    """Each process has its own session, so that Ctrl-C reaches only us and we ask them to save.

    Its standard input is a pipe that only we hold: when we are killed it reads the end and ends itself.
    """

    def __init__(self, plan: Plan, logs: Path, lock: int, port: int | None = None) -> None:
        shared = {**os.environ, **_rendezvous(len(plan.processes), port), LIFELINE: "1", "PYTHONUNBUFFERED": "1"}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failed: int | None = None
        self._failed_at = 0.0
        for process in plan.processes:
            (logs / f"rank-{process.rank}.log").touch(mode=0o600)
        self._log = (logs / "rank-0.log").open("a+b")
        self._log.seek(0, os.SEEK_END)
        self._half = b""
        for process in plan.processes:
            with (logs / f"rank-{process.rank}.log").open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        process.argv, env={**shared, **process.env}, stdin=subprocess.PIPE, stdout=log, stderr=log,
                        pass_fds=(lock,), start_new_session=True,
                    )
                )  # fmt: skip

    def lines(self) -> list[str]:
        *whole, self._half = (self._half + self._log.read()).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def exit_code(self) -> int | None:
        codes = [process.poll() for process in self._processes]
        for rank, code in enumerate(codes):
            if code and self._failed is None:
                self._failed, self._failed_at = rank, time.monotonic()
        if all(code is not None for code in codes):
            return 0 if self._failed is None else codes[self._failed]
        if self._failed is not None and time.monotonic() - self._failed_at > GRACE_S:
            self.kill()  # the others wait for the one that failed
        return None

    def failed_rank(self) -> int | None:
        return self._failed

    def stop(self, number: int) -> None:
        self._signal(number)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)


def _rendezvous(processes: int, port: int | None) -> dict[str, str]:
    """Where the processes of one machine find each other."""
    if processes == 1:
        return {}
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if os.path.exists("/sys/class/net/lo") else {}
    return {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port or _free_port()), **loopback}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
