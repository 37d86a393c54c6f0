"""How Ray is started on a node: its options, ports and environment."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from launcher.clusters.nodes.home import Node
from launcher.core.machine import free_ports

MARK = "RLRUN_NODE"
PYTHON = "RLRUN_PYTHON"
"""Variable with the Python of a node's rlrun, for jobs that Ray starts there."""
UP = "ray_current_cluster"
"""A file that `ray start` writes to its folder once the node is registered, and not before."""
DROPPED = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_NAMESPACE", "OMP_NUM_THREADS")
"""Variables of a shell in which another cluster was used."""
TUNED = {
    # the head asks every node each second and gives it up after 3 that stay silent; Ray's own take a minute
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    # a head that died has forgotten everything: there is nothing to reconnect to
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
"""Unless the shell sets them."""


def start_argv(node: Node) -> list[str]:
    """Ray's fixed ports are replaced by free ones, so that one machine can run several nodes."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    words += ["--include-log-monitor=false"]  # the driver passes on the output of processes
    words += [f"--node-ip-address={node.ip}", f"--temp-dir={node.temp}", "--log-color=false"]
    ports = free_ports(4)
    if node.head:
        words += ["--head", f"--port={node.address.rpartition(':')[2]}"]
        words += [f"--include-dashboard={str(serves_jobs()).lower()}"]
        words += [f"--dashboard-host={node.ip}", f"--dashboard-port={ports[2]}"]
        if find_spec("grpc"):  # without it there is no such server, and Ray refuses the port
            words += [f"--ray-client-server-port={ports[3]}"]
    else:
        words += [f"--address={node.address}"]
    return [*words, f"--dashboard-agent-listen-port={ports[0]}", f"--metrics-export-port={ports[1]}", *node.words]


def serves_jobs() -> bool:
    """Whether a head here takes jobs: a part of ray[default] only, and behind the token."""
    return all(
        find_spec(name)
        for name in ("aiohttp_cors", "grpc", "opencensus", "opentelemetry", "opentelemetry.sdk", "prometheus_client")
    )


def start_env(node: Node, token: Path, shell: Mapping[str, str] = os.environ) -> dict[str, str]:
    kept = {name: value for name, value in shell.items() if name not in DROPPED}
    ours = {MARK: node.mark, PYTHON: sys.executable, "RAY_TMPDIR": node.temp, "PYTHONUNBUFFERED": "1"}
    return {**TUNED, **kept, **auth_env(token), **ours}


def auth_env(token: Path) -> dict[str, str]:
    """Variables by which the cluster lets a process in."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}


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
