"""A Ray cluster as the driver sees it: joining it, what its nodes offer against what was asked, which are gone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import ray
from ray._private.state import available_resources_per_node  # nothing public tells it for each node
from ray.util.placement_group import PlacementGroup, placement_group_table

from launcher.clusters.ray.job import StartRequest
from launcher.core import machine
from launcher.core.user_code import CallFailure, try_call

KNOCK_S = 2.0
STORE = 100 * 2**20  # bytes of Ray's object store where it is ours: nothing goes through it


def join(request: StartRequest) -> Any | CallFailure:
    """One try."""
    quiet = partial(ray.init, log_to_driver=False, logging_level="ERROR")
    if not request.address:
        cpus = max(machine.cpu_count(), round(request.cpus * len(request.processes) + 0.5))
        single = {"include_dashboard": False, "object_store_memory": STORE, "_temp_dir": request.temp}
        return try_call(partial(quiet, "local", num_cpus=cpus, **single))
    if not _answers(request.address):
        return CallFailure("nothing answers there")
    joined = try_call(partial(quiet, address=request.address))
    if isinstance(joined, CallFailure):
        try_call(ray.shutdown)
    return joined


def _answers(address: str) -> bool:
    """Whether somebody listens there: where nobody does, Ray takes minutes to say so."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return True
    try:
        machine.check_listening(address, KNOCK_S)
    except OSError:
        return False
    return True


def missing_resources(bundle: Mapping[str, float], count: int) -> str:
    """Why `count` nodes that have `bundle` free are not to be had; empty where they are."""
    free = available_resources_per_node()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    able = [node for node in nodes if _holds(node["Resources"], bundle)]
    idle = [node for node in able if _holds(free.get(node["NodeID"], {}), bundle)]
    if len(idle) >= count:
        return ""
    asked = f"{count} {'node' if count == 1 else 'nodes'} with {_words(bundle)} asked for"
    state = f"{len(idle)} free" if len(able) >= count else f"{len(able)} there"
    offered = "; ".join(
        f"{node['NodeManagerAddress']} offers {_words(node['Resources'], bundle)},"
        f" {_words(free.get(node['NodeID'], {}), bundle)} free"
        for node in nodes
    )
    return f"{asked}, {state}: {offered or 'no node answers'}"


def _holds(resources: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= count for name, count in bundle.items())


def _words(resources: Mapping[str, float], like: Mapping[str, float] | None = None) -> str:
    names = like or resources
    return " and ".join(
        f"{resources.get(name, 0.0):g} {name}{'' if resources.get(name) == 1 else 's'}" for name in names
    )


def bundle_order(group: PlacementGroup) -> list[int]:
    """The bundles as ranks fill them: this node's first, as the run's folder is surely here and rank 0 writes it."""
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    here = ray.get_runtime_context().get_node_id()
    return sorted(nodes, key=lambda bundle: (nodes[bundle] != here, bundle))


def describe_loss(rank: int, place: Mapping[str, Any]) -> str:
    """What became of an actor that does not answer any more; `place` is what it said of itself."""
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    if place["node"] in alive:
        return f"the Ray worker of rank {rank} on {place['address']} was killed"
    return f"node {place['address']} is gone"
