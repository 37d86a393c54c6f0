"""A cluster as its head tells it, beside what this machine's keeper says of its own part."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from launcher.clusters.nodes import processes
from launcher.clusters.nodes.home import here
from launcher.clusters.nodes.reach import reach
from launcher.core.check_result import CheckResult, from_problems
from launcher.core.problems import Problems
from launcher.tools.doctor.bridge import Bridge, Node


@dataclass(frozen=True)
class Standing:
    address: str
    own: CheckResult | None
    """This machine's part; None where it has none in this cluster."""
    nodes: tuple[Node, ...]
    """The alive ones, and those that have gone and not come back."""
    trouble: tuple[CheckResult, ...] = ()
    """Why the head tells nothing."""


def standing(address: str | None) -> Standing:
    """Raises `Problems` where there is no cluster to ask."""
    found = reach(address)
    own = _own(found.address)
    try:
        bridge = Bridge(found.address, found.env)
    except Problems as problems:
        return Standing(found.address, own, (), tuple(from_problems(problems.problems)))
    with closing(bridge):
        alive = [node for node in bridge.nodes if node.alive]
        there = {node.address for node in alive}
        gone = {node.address: replace(node, cpus=0, gpus=0) for node in bridge.nodes if node.address not in there}
        return Standing(found.address, own, (*alive, *gone.values()))


def _own(address: str) -> CheckResult | None:
    home = here()
    node, state = home.node(), home.state()
    if node is None or node.address != address:
        return None
    what = "head" if node.head else "node"
    if not home.kept():
        left = len(processes.of(node))
        lost = f"its keeper has gone, and {left} processes are left" if left else "its keeper has gone"
        return CheckResult("FAIL", what, lost, "rlrun cluster down, then up or join again, would do")
    if state is None or state.phase != "up":
        message = f"{state.phase}: {state.why or 'Ray begins'}" if state else "starting"
        return CheckResult("WARN", what, message, f"{home.ray_log} tells more")
    again = f", started {state.starts} times" if state.starts > 1 else ""
    return CheckResult("OK", what, f"kept by process {state.pid}{again}")
