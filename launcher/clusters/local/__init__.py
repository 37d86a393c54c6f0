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

from launcher.clusters.local.usage import Meter, gpu_of
from launcher.core.events import Usage
from launcher.core.files import NewLines
from launcher.core.machine import LOOPBACK, free_ports, loopback
from launcher.core.problems import Problem, error_message
from launcher.core.settings import settings
from launcher.spec.cluster import Cluster, Failure, Job, Stack, first_failure
from launcher.spec.engine import Plan
from launcher.spec.hardware import TOGETHER, Hardware

LIFELINE = "RLRUN_LIFELINE"  # set where standard input is the pipe described below
EVENT_LOG = "RLRUN_EVENT_LOG"  # descriptor of the process's own log, to which it writes events
STACK_FILE = "RLRUN_STACK"
"""Descriptor of a file to which the process writes its stacks on SIGUSR1, by `faulthandler.register`: that works
whatever it is busy with, also in C code that never returns."""
UNRESPONSIVE = "TtZX"  # process states of Linux in which nothing is written
SETTLED_S = 0.03  # after which a stack that has not grown is complete
GRACE_S = 5.0  # for the others to exit once one has failed
DRAIN_S = 2.0  # for the rest of the output to reach the logs


@settings
class Local(Cluster):
    """This machine only."""

    master_port: Annotated[Annotated[int, Field(ge=1, le=65535)] | None, TOGETHER] = None
    """Port of the loopback at which several processes meet; by default one that is free when the run starts."""

    def problems(self, hardware: Hardware) -> list[Problem]:
        if hardware.nnodes == 1:
            return []
        got = f"cluster local is one machine, got {hardware.nnodes}"
        return [Problem("hardware.nnodes", got, "use 1, or cluster=ray", "conflicting-settings", ("cluster",), 1)]

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
                got = f"port {self.master_port}: {error_message(error)}"
                fix = f"use {free_ports(1, LOOPBACK)[0]} or null"
                return [Problem("cluster.master_port", got, fix, "in-use")]
        return []


class LocalJob(Job):
    """Each process has its own session, so that Ctrl-C reaches only the launcher, which asks the processes to save.

    Standard input of a process is a pipe that only the launcher holds: if the launcher is killed, the process reads the
    end of it and exits. Its output goes through a log redactor, which keeps secrets out of the log. Events it writes to
    the log itself (EVENT_LOG): they hold no secrets, and arrive whatever becomes of the redactor. `lines` are those of
    the first process.
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
        utf_8 = {"PYTHONIOENCODING": "utf-8:backslashreplace"}  # of the logs, whatever this shell's terminal shows
        shared = {**environment, **utf_8, LIFELINE: "1", "PYTHONUNBUFFERED": "1"}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._failures: dict[int, Failure] = {}
        self._ended_at = 0.0
        self._stack_files = {process.rank: logs / f"rank-{process.rank}.stack" for process in plan.processes}
        log_files = [logs / f"rank-{process.rank}.log" for process in plan.processes]
        for file in (*log_files, *self._stack_files.values()):
            file.touch(mode=0o600)
        self._new_lines = NewLines(log_files[0], log_files[0].stat().st_size)
        pipes = [os.pipe() for _ in plan.processes]
        self._redactor = start_log_redactor(pipes, log_files, shared)
        for process, log_file, (_, output) in zip(plan.processes, log_files, pipes, strict=True):
            with log_file.open("ab") as log, self._stack_files[process.rank].open("ab") as stack:
                descriptors = {EVENT_LOG: str(log.fileno()), STACK_FILE: str(stack.fileno())}
                env, fds = {**shared, **process.env, **descriptors}, (lock, log.fileno(), stack.fileno())
                self._processes[process.rank] = subprocess.Popen(
                    process.argv, env=env, stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=fds, cwd=cwd,
                    start_new_session=True,
                )  # fmt: skip
            os.close(output)
        pids = {rank: process.pid for rank, process in self._processes.items()}
        gpus = {process.rank: gpu_of({**shared, **process.env}) if plan.gpus else "" for process in plan.processes}
        self._meter = Meter(pids, gpus, logs, usage_s)

    def lines(self) -> list[str]:
        return list(self._new_lines.read())

    def exit_code(self) -> int | None:
        codes = {rank: process.poll() for rank, process in self._processes.items()}
        for rank, code in codes.items():
            if code and rank not in self._failures:
                self._failures[rank] = Failure(rank, code, time.monotonic())
        failed = self._first_failure()
        if None not in codes.values():
            self._meter.close()
            return (failed.code if failed else 0) if self._is_drained() else None
        if failed and time.monotonic() - failed.at > GRACE_S:
            self.kill()  # the others wait for the one that failed
        return None

    def _first_failure(self) -> Failure | None:
        return first_failure(list(self._failures.values()))

    def _is_drained(self) -> bool:
        """Whether the logs hold all output, or DRAIN_S has passed: a grandchild that is left may write forever."""
        self._ended_at = self._ended_at or time.monotonic()
        return self._redactor.poll() is not None or time.monotonic() - self._ended_at > DRAIN_S

    def failed_rank(self) -> int | None:
        failed = self._first_failure()
        return failed.rank if failed else None

    def stacks(self, wait_s: float) -> list[Stack]:
        """The stacks of all processes, empty for those that do not answer within `wait_s` seconds."""
        deadline, files = time.monotonic() + wait_s, self._stack_files
        ranks = [rank for rank, process in self._processes.items() if _request_stack(process, files[rank])]
        previous_sizes: dict[int, int] = {}
        while ranks and time.monotonic() < deadline:
            time.sleep(SETTLED_S)
            alive = [rank for rank in ranks if self._processes[rank].poll() is None]  # one may end meanwhile
            sizes = {rank: files[rank].stat().st_size for rank in alive}
            if sizes == previous_sizes and all(sizes.values()):
                break
            previous_sizes = sizes
        host = socket.gethostname()
        texts = {rank: files[rank].read_text(encoding="utf-8", errors="replace") for rank in ranks}
        return [
            Stack(rank, host, process.pid, _state(process), texts.get(rank, ""))
            for rank, process in self._processes.items()
        ]

    def usage(self) -> list[Usage]:
        return self._meter.take()

    def stop(self, number: int) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(number)

    def kill(self) -> None:
        self._meter.close()
        self.stop(signal.SIGKILL)


def _request_stack(process: subprocess.Popen[bytes], file: Path) -> bool:
    """Ask a process for its stack, unless it does not catch the signal, which would end it; whether it was asked."""
    if _state(process) in (*UNRESPONSIVE, "") or not _catches(process.pid, signal.SIGUSR1):
        return False
    os.truncate(file, 0)
    process.send_signal(signal.SIGUSR1)
    return True


def _state(process: subprocess.Popen[bytes]) -> str:
    """State letter of a process, as in `Stack`. `poll` comes first: the pid of an ended process may be another's."""
    return "X" if process.poll() is not None else _proc_text(process.pid, "stat").rpartition(")")[2].strip()[:1]


def _catches(pid: int, number: int) -> bool:
    lines = _proc_text(pid, "status").splitlines()
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _proc_text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def start_log_redactor(
    pipes: list[tuple[int, int]], logs: list[Path], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start the process that copies all `pipes` (read end, write end) into their `logs`; it owns the read ends."""
    argv = [sys.executable, "-P", "-m", "launcher.core.log_redactor"]
    for (source, _), log in zip(pipes, logs, strict=True):
        argv += [str(source), str(log)]
    with logs[0].open("ab") as first_log:
        redactor = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=first_log, stderr=first_log, start_new_session=True,
            pass_fds=[source for source, _ in pipes],
        )  # fmt: skip
    for source, _ in pipes:
        os.close(source)
    return redactor


def _rendezvous(processes: int, port: int | None) -> dict[str, str]:
    """Environment by which the processes of one machine connect."""
    if processes == 1:
        return {}
    interface = {"GLOO_SOCKET_IFNAME": name} if (name := loopback()) else {}
    return {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port or free_ports(1, LOOPBACK)[0]), **interface}
