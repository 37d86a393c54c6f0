"""The processes of a node: those with its mark, and all that they have started. No others are ever ended.

Nor is a nursery: what it has loaded serves after the next start of Ray, and it ends by itself. Nor a run that was
handed over as a job, with all that it has started: it goes on once Ray is there again.
"""

from __future__ import annotations

import os
import signal
import time

import psutil

from launcher.clusters.nodes.home import Node
from launcher.clusters.nodes.ray_start import MARK
from launcher.clusters.spare import NURSERY

DETACHED = "RLRUN_DETACHED"
"""Stands in the environment of a run that was handed over, and of all that it starts on its own machine."""
NO_NODE = "this machine is no node of it"
POLL_S = 0.1
ROUNDS, ROUND_S = 4, 5.0  # of killing: one that is killed may have started another; one in a driver may not end at all


def of(node: Node, keeper: psutil.Process | None = None) -> list[psutil.Process]:
    """Some Ray processes write over their environment; they are found by what started them, or as children of the
    `keeper`, which takes up those whose own parent has died."""
    found = {child.pid: child for child in (_children(keeper) if keeper else ())}
    for process in psutil.process_iter(["uids"]):
        uids = process.info["uids"]
        if uids and uids.real == os.getuid() and _environment(process).get(MARK) == node.mark:
            found |= {child.pid: child for child in (process, *_children(process))}
    return [one for one in found.values() if NURSERY not in _words(one) and DETACHED not in _environment(one)]


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:  # it has ended, or is not ours to read
        return {}


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended
        return []


def end(node: Node, first: int | None, grace_s: float, keeper: psutil.Process | None = None) -> None:
    """End all of them. `first` is asked to end the others, and given `grace_s` for that.

    A process is known by id and time of its start (psutil), so no other that got its id is met.
    """
    if first is not None:
        ask(first, signal.SIGTERM)
        _wait(node, grace_s)
    for _ in range(ROUNDS):
        if not (left := [process for process in of(node, keeper) if lives(process)]):
            return
        for process in left:
            _send(process, signal.SIGKILL)
        psutil.wait_procs(left, timeout=ROUND_S)


def ask(pid: int, number: int) -> bool:
    """Whether it was there to be asked."""
    try:
        return _send(psutil.Process(pid), number)
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process, number: int) -> bool:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def _wait(node: Node, seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up and any(lives(process) for process in of(node)):
        time.sleep(POLL_S)


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def has_raylet() -> bool:
    """Whether this machine is a node of any Ray cluster. Where it is none, Ray looks for one for a minute before it
    says so."""
    return any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))
