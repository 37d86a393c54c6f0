"""Runs a sweep's points, each as an `rlrun train` of its own, one by one or side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.core.files import NewLines
from launcher.core.problems import Problem, Problems
from launcher.core.state import RunState
from launcher.launch.follow import POLL_S
from launcher.launch.sweeps.points import Status, Sweep, SweepEntry
from launcher.preflight.capacity import Allocation, ResourcePool
from launcher.runs import store
from launcher.runs.folder import Folder, Lock, holder
from launcher.runs.stop_requests import StopRequest, handle_stop_requests

LIFELINE = "RLRUN_POINT"  # set where standard input of `rlrun train` is the pipe described in `_Point`
CROSS = "✗ "  # begins a line with a problem
LOOK_S = 0.5  # between two looks at the events of runs


@dataclass
class View:
    """A point as it stands now."""

    entry: SweepEntry
    folder: Folder
    state: RunState = field(default_factory=RunState)


OnViews = Callable[[Sequence[View], list[tuple[str, str]]], None]
"""Gets all points, and the lines that they printed since, each with its point's name."""


def watch_lifeline() -> None:
    """If this process is a point of a sweep, have it save and end when the sweep's process is gone."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    if os.environ.pop(LIFELINE, ""):  # its children have another standard input
        threading.Thread(target=watch, daemon=True).start()


def drive(sweep: Sweep, show: OnViews, pool: ResourcePool | None = None) -> int:
    """Run every point that is not done. Returns 0 when all are, 128 + the signal that stopped it, 2 when all that
    failed have an invalid configuration, else 1. Raises `Problems` where it runs already, or its folder is gone.
    """
    if not Path(sweep.folder).is_dir():
        raise Problems(
            Problem(sweep.name, f"was started in {sweep.folder}, which is gone", "start a new sweep", "not-found")
        )
    with Lock(Folder(sweep.path)) as lock:
        driver = _Driver(sweep, show, pool or ResourcePool(sweep.parallel), lock.descriptor)
        with handle_stop_requests(driver, Folder(sweep.path)) as asked:
            driver.work(asked)
    if asked:
        return 128 + asked.first
    codes = {entry.exit_code for entry in sweep.points if entry.status != "finished"}
    return 0 if not codes else 2 if codes == {2} else 1


class _Driver:
    def __init__(self, sweep: Sweep, show: OnViews, pool: ResourcePool, lock: int) -> None:
        self.sweep, self.show, self.pool, self.lock = sweep, show, pool, lock
        self.views = views(sweep)
        self.running: dict[int, _Point] = {}
        self.looked = 0.0

    def work(self, asked: StopRequest) -> None:
        waiting = self._begin()
        while self.running or (waiting and not asked):
            for number in list(waiting):
                if not asked and (place := self.pool.acquire(self.sweep.points[number].needs)):
                    waiting.remove(number)
                    self._start(number, place, asked)
            lines = [line for number in list(self.running) for line in self._hear(number, asked)]
            if time.monotonic() - self.looked >= LOOK_S or not self.running:
                self.looked = time.monotonic()
                for number, point in self.running.items():
                    self.views[number].state = point.events.look()
            self.show(self.views, lines)
            asked.look()
            time.sleep(POLL_S)

    def _begin(self) -> list[int]:
        """Which points are to run; their statuses of an earlier drive are dropped."""
        for view in self.views:
            done = view.state.status == "finished"
            status: Status = "finished" if done else "waiting"
            view.entry = replace(view.entry, status=status, exit_code=0 if done else None, why="")
        self.sweep.points = [view.entry for view in self.views]
        self.sweep.write()
        return [number for number, view in enumerate(self.views) if view.entry.status == "waiting"]

    def _start(self, number: int, place: Allocation, asked: StopRequest) -> None:
        entry = self.sweep.points[number]
        self._set(number, "running")
        self.running[number] = _Point(self.sweep, entry, place, self.lock)
        if asked:  # since the process was started
            self.running[number].signal(asked.first)

    def _hear(self, number: int, asked: StopRequest) -> list[tuple[str, str]]:
        """The new output of a point; where it has ended, that is recorded."""
        point = self.running[number]
        code = point.process.poll()
        lines = point.lines(last=code is not None)
        if code is not None:
            status, why = point.ending(code, asked)
            point.close()
            self.pool.release(point.place)
            del self.running[number]
            self.views[number].state = store.see(self.views[number].folder).state
            self._set(number, status, code, why)
        return [(self.sweep.points[number].name, line) for line in lines]

    def _set(self, number: int, status: Status, code: int | None = None, why: str = "") -> None:
        self.sweep.set(number, status=status, exit_code=code, why=why)
        self.views[number].entry = self.sweep.points[number]

    def stop(self, number: int) -> None:
        for point in list(self.running.values()):
            point.signal(number)

    def kill(self) -> None:
        """A second signal has a run end its processes at once."""
        self.stop(signal.SIGTERM)


class _Point:
    """One point's process, in its own session, so that Ctrl-C reaches only the driver, which asks the point to save.

    Its standard input is a pipe that only the driver holds: when that is killed, the point saves and ends. It shares
    the sweep's lock, so the sweep cannot be resumed before that.
    """

    def __init__(self, sweep: Sweep, entry: SweepEntry, place: Allocation, lock: int) -> None:
        folder = sweep.run_of(entry)
        again = folder.spec.is_file() and folder.has_results()
        config = ["--config-dir", sweep.config_dir] if sweep.config_dir else []
        arguments = ["--resume", str(folder.path)] if again else [*config, *entry.words]
        gpus = {} if place.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(place.gpus)}
        self.place, self.log, self.events = place, sweep.log_of(entry), store.RunReader(folder.events)
        descriptor = os.open(self.log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._new_lines = NewLines(self.log, os.fstat(descriptor).st_size)
        self._problem = ""
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher", "train", *arguments], cwd=sweep.folder,
            env={**os.environ, **gpus, LIFELINE: "1", "PYTHONUNBUFFERED": "1"}, stdin=subprocess.PIPE,
            stdout=descriptor, stderr=descriptor, start_new_session=True, pass_fds=(lock,),
        )  # fmt: skip
        os.close(descriptor)

    def lines(self, last: bool) -> list[str]:
        """Those printed since the last call; `last`: also one that is not ended."""
        lines = list(self._new_lines.read(last=last))
        self._problem = next((line for line in reversed(lines) if line.startswith(CROSS)), self._problem)
        return lines

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def ending(self, code: int, asked: StopRequest) -> tuple[Status, str]:
        """The status of a point whose process ended with `code`, and why."""
        if code == 0:
            return "finished", ""
        if asked or code > 128:
            return "stopped", ""
        if code > 0 and self._problem:
            return "failed", self._problem.removeprefix(CROSS)
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return "failed", f"{ended}; its log is {self.log}"

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()


def views(sweep: Sweep) -> list[View]:
    """Every point with the state of its run, as a sweep that was killed could not record it."""
    driven = holder(Folder(sweep.path)) is not None
    points = []
    for entry in sweep.points:
        folder = sweep.run_of(entry)
        state = store.see(folder).state if folder.spec.is_file() else RunState()
        if state.status == "finished":
            entry = replace(entry, status="finished", why="")
        elif entry.status == "running" and state.status in ("failed", "stopped"):
            entry = replace(entry, status=state.status, why=state.why)
        elif entry.status == "running" and not driven:
            entry = replace(entry, status="waiting")
        points.append(View(entry, folder, state))
    return points
