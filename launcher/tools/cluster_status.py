"""The status of a Ray cluster, as its head reports it, and of this machine's part in it, as its keeper records it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from launcher.clusters.nodes import processes
from launcher.clusters.nodes.home import here, reach
from launcher.clusters.ray.listing import RayNode, list_nodes
from launcher.core.check_result import CheckResult, from_problems
from launcher.core.problems import Problems


@dataclass(frozen=True)
class ClusterStatus:
    address: str
    own: CheckResult | None
    """This machine's part; None where it has none in this cluster."""
    nodes: tuple[RayNode, ...]
    """Nodes that are alive, and those that have gone and not come back, without CPUs and GPUs."""
    trouble: tuple[CheckResult, ...] = ()
    """Why the head does not list its nodes."""


def cluster_status(address: str | None) -> ClusterStatus:
    """Raises `Problems` where there is no cluster to ask."""
    reached = reach(address)
    own_status = _own_status(reached.address)
    try:
        nodes = list_nodes(reached.address, reached.env)
    except Problems as problems:
        return ClusterStatus(reached.address, own_status, (), tuple(from_problems(problems.problems)))
    alive = [node for node in nodes if node.alive]
    addresses = {node.address for node in alive}
    lost_nodes = {node.address: replace(node, cpus=0, gpus=0) for node in nodes if node.address not in addresses}
    return ClusterStatus(reached.address, own_status, (*alive, *lost_nodes.values()))


def _own_status(address: str) -> CheckResult | None:
    home = here()
    node, state = home.node(), home.state()
    if node is None or node.address != address:
        return None
    role = "head" if node.head else "node"
    if not home.has_keeper():
        remaining = len(processes.find(node))
        problem = f"its keeper has gone, and {remaining} processes are left" if remaining else "its keeper has gone"
        return CheckResult("FAIL", role, problem, "use rlrun cluster down, then up or join again")
    if state is None or state.phase != "up":
        message = f"{state.phase}: {state.why or 'Ray begins'}" if state else "starting"
        return CheckResult("WARN", role, message, f"see {home.ray_log}")
    restarts = f", started {state.starts} times" if state.starts > 1 else ""
    return CheckResult("OK", role, f"kept by process {state.pid}{restarts}")
