"""The processes of a node: how Ray is started there, and which processes are the node's: those with its mark, and all
their descendants. No others are ever ended.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import defaultdict
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

from launcher.clusters.nodes.home import Node, auth_env, here
from launcher.core.machine import free_ports

MARK = "RLRUN_NODE"
UP = "ray_current_cluster"
"""A file that `ray start` writes to its folder once the node is registered, and not before."""
DROPPED = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_NAMESPACE", "OMP_NUM_THREADS")
"""Variables that are not passed to Ray, as a shell may have them from using another cluster."""
TUNED = {
    # the head probes every node each second and drops it after 3 failures; by Ray's defaults that takes a minute
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    # a head that died has forgotten everything: there is nothing to reconnect to
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
"""Settings of Ray, unless the shell sets them."""
ROUNDS, ROUND_S = 4, 5.0  # of killing: a killed process may have started another; one in a driver may not end at all


def start_argv(node: Node) -> list[str]:
    """The command that starts Ray. Its fixed ports are replaced by free ones: one machine can run several nodes."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    words += ["--include-log-monitor=false"]  # the driver passes on the output of processes
    words += [f"--node-ip-address={node.ip}", f"--temp-dir={node.ray_temp}", "--log-color=false"]
    ports = free_ports(4)
    if node.head:
        words += ["--head", f"--port={node.address.rpartition(':')[2]}"]
        words += ["--include-dashboard=false", f"--dashboard-host={node.ip}", f"--dashboard-port={ports[2]}"]
        if find_spec("grpc"):  # without it there is no such server, and Ray refuses the port
            words += [f"--ray-client-server-port={ports[3]}"]
    else:
        words += [f"--address={node.address}"]
    return [*words, f"--dashboard-agent-listen-port={ports[0]}", f"--metrics-export-port={ports[1]}", *node.words]


def start_env(node: Node, token: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in DROPPED}
    own = {MARK: node.mark, "RAY_TMPDIR": str(node.ray_temp), "PYTHONUNBUFFERED": "1"}
    return {**TUNED, **inherited, **auth_env(token), **own}


def port_error(port: int) -> OSError | None:
    """Why nothing can listen at `port`; None where it can, also just after a connection was closed."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            return error
    return None


def find(node: Node, keeper_pid: int | None = None) -> list[psutil.Process]:
    """The node's processes, without zombies. Some Ray processes overwrite their environment: they are found by their
    parent, or as children of the keeper, which adopts orphans."""
    children, processes = defaultdict[int, list[psutil.Process]](list), list[psutil.Process]()
    for process in psutil.process_iter(["ppid", "environ", "status"]):  # others' environments cannot be read
        children[process.info["ppid"]].append(process)
        if (process.info["environ"] or {}).get(MARK) == node.mark:
            processes.append(process)
    if keeper_pid is not None:
        processes += children[keeper_pid]
    for process in processes:  # it grows meanwhile
        processes += [child for child in children[process.pid] if child not in processes]
    return [process for process in dict.fromkeys(processes) if process.info["status"] != psutil.STATUS_ZOMBIE]


def end(node: Node, first: int | None, grace_s: float, keeper_pid: int | None = None) -> None:
    """End the node's processes. `first` gets SIGTERM, to end the others itself within `grace_s` seconds.

    psutil identifies a process by pid and start time, so a reused pid is not ended.
    """
    if first is not None and send(first, signal.SIGTERM):
        psutil.wait_procs(find(node, keeper_pid), grace_s)
    for _ in range(ROUNDS):
        if not (remaining := find(node, keeper_pid)):
            return
        for process in remaining:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(remaining, ROUND_S)


def send(pid: int, number: int) -> bool:
    """Send a signal; returns whether the process existed."""
    try:
        psutil.Process(pid).send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def is_node() -> bool:
    """Whether this machine is a node of any Ray cluster, or has a keeper that will make it one. Where it is none, Ray
    would search for a cluster for a minute."""
    raylet = any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))
    return raylet or here().node() is not None
