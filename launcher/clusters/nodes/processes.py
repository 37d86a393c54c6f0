"""The processes of a node: those with its mark, and all that they have started. No others are ever ended.

Nor is a run that was submitted as a job, with all that it has started: it goes on once Ray is there again.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from contextlib import suppress

import psutil

from launcher.clusters.nodes.home import Node, here
from launcher.clusters.nodes.ray_start import MARK

DETACHED = "RLRUN_DETACHED"
"""Stands in the environment of a run that was submitted, and of all that it starts on its own machine."""
ROUNDS, ROUND_S = 4, 5.0  # of killing: one that is killed may have started another; one in a driver may not end at all


def find(node: Node, keeper_pid: int | None = None) -> list[psutil.Process]:
    """Some Ray processes write over their environment; they are found by what started them, or as children of the
    keeper, which takes up those whose own parent has died. One that has ended and is not buried is none."""
    children, found = defaultdict[int, list[psutil.Process]](list), list[psutil.Process]()
    for process in psutil.process_iter(["ppid", "environ", "status"]):  # others' environments cannot be read
        children[process.info["ppid"]].append(process)
        if (process.info["environ"] or {}).get(MARK) == node.mark:
            found.append(process)
    if keeper_pid is not None:
        found += children[keeper_pid]
    for process in found:  # it grows meanwhile
        found += [child for child in children[process.pid] if child not in found]
    return [
        process
        for process in dict.fromkeys(found)
        if process.info["status"] != psutil.STATUS_ZOMBIE and DETACHED not in (process.info["environ"] or {})
    ]


def end(node: Node, first: int | None, grace_s: float, keeper_pid: int | None = None) -> None:
    """End all of them. `first` is asked to end the others, and given `grace_s` for that.

    A process is known by id and time of its start (psutil), so no other that got its id is met.
    """
    if first is not None and send(first, signal.SIGTERM):
        psutil.wait_procs(find(node, keeper_pid), grace_s)
    for _ in range(ROUNDS):
        if not (left := find(node, keeper_pid)):
            return
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, ROUND_S)


def send(pid: int, number: int) -> bool:
    """Whether a process was there to be sent the signal."""
    try:
        psutil.Process(pid).send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def is_node() -> bool:
    """Whether this machine is a node of any Ray cluster, or comes back as one by its keeper. Where it is none, Ray
    looks for one for a minute before it says so."""
    raylet = any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))
    return raylet or here().node() is not None
