"""A cluster as its head tells it, beside what this machine's keeper says of its own part."""

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
    """The alive ones, and those that have gone and not come back."""
    trouble: tuple[CheckResult, ...] = ()
    """Why the head tells nothing."""


def cluster_status(address: str | None) -> ClusterStatus:
    """Raises `Problems` where there is no cluster to ask."""
    found = reach(address)
    own = _own(found.address)
    try:
        nodes = list_nodes(found.address, found.env)
    except Problems as problems:
        return ClusterStatus(found.address, own, (), tuple(from_problems(problems.problems)))
    alive = [node for node in nodes if node.alive]
    there = {node.address for node in alive}
    gone = {node.address: replace(node, cpus=0, gpus=0) for node in nodes if node.address not in there}
    return ClusterStatus(found.address, own, (*alive, *gone.values()))


def _own(address: str) -> CheckResult | None:
    home = here()
    node, state = home.node(), home.state()
    if node is None or node.address != address:
        return None
    what = "head" if node.head else "node"
    if not home.has_keeper():
        left = len(processes.find(node))
        lost = f"its keeper has gone, and {left} processes are left" if left else "its keeper has gone"
        return CheckResult("FAIL", what, lost, "use rlrun cluster down, then up or join again")
    if state is None or state.phase != "up":
        message = f"{state.phase}: {state.why or 'Ray begins'}" if state else "starting"
        return CheckResult("WARN", what, message, f"see {home.ray_log}")
    again = f", started {state.starts} times" if state.starts > 1 else ""
    return CheckResult("OK", what, f"kept by process {state.pid}{again}")
