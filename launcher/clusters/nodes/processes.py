"""The processes of a node: those with its mark, and all their descendants. No others are ever ended, nor is a run that
was submitted as a job, with its descendants: it continues once Ray is up again.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from contextlib import suppress

import psutil

from launcher.clusters.nodes.home import Node, here
from launcher.clusters.nodes.ray_start import MARK

DETACHED = "RLRUN_DETACHED"
"""In the environment of a submitted run, and of all that it starts on its own machine."""
ROUNDS, ROUND_S = 4, 5.0  # of killing: a killed process may have started another; one in a driver may not end at all


def find(node: Node, keeper_pid: int | None = None) -> list[psutil.Process]:
    """Some Ray processes overwrite their environment; they are found by their parent, or as children of the keeper,
    which adopts orphans. Zombies are left out."""
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
    """End all of them. `first` gets SIGTERM to end the others, and `grace_s` for that.

    psutil identifies a process by pid and start time, so a reused pid is not ended.
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
    """Whether this machine is a node of any Ray cluster, or has a keeper that will make it one. Where it is not, Ray
    itself searches for a minute."""
    raylet = any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))
    return raylet or here().node() is not None
