"""`python -m launcher.clusters.ray.driver`: starts a plan on a Ray cluster and passes on the output of its processes.

`job` is the launcher's side of the pipe, and documents the messages. The driver ends, with all that it started, when
its standard input does.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import ray
from ray._private.state import available_resources_per_node  # there is no public function for single nodes
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from launcher.clusters.ray.job import DriverRequest
from launcher.clusters.ray.rank import Rank
from launcher.core import machine
from launcher.core.user_code import CallFailure, shorten, try_call

CONNECT_S = 2.0
LOOK_S = 1.0  # between two looks at what is still missing
START_S = 120.0  # for a node to start an actor and describe itself
STOP_S = 5.0  # for killed processes to be gone

Send = Callable[..., None]
Requests = queue.SimpleQueue[dict[str, Any] | None]
"""Messages from the launcher; None once it has closed the pipe."""


class NotStarted(Exception):
    """Nothing was started, for the reason in the message; a second try would not help."""


class LauncherGone(Exception):
    """The launcher has closed the pipe or was killed."""


class ClusterLost(Exception):
    """A node or the cluster is gone."""


def main() -> int:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints goes to the log
    send = partial(_send, out)
    request = DriverRequest(**json.loads(sys.stdin.readline())["request"])
    requests: Requests = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    job = _RayRun(request, requests, send)
    try:
        job.run()
    except LauncherGone:
        pass
    except NotStarted as refused:
        send(refused=[str(refused)])
    except ClusterLost as lost:
        send(lost=str(lost))
    except RayError as error:
        send(lost=f"the Ray cluster does not answer any more: {type(error).__name__}")
    job.end()
    os._exit(0)  # Ray's threads may hang


def _read_requests(requests: Requests) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    requests.put(None)


def _send(out: Any, **message: Any) -> None:
    try:
        out.write(json.dumps(message) + "\n")
        out.flush()
    except BrokenPipeError:  # the launcher is gone, which `_read_requests` finds out
        pass


class _RayRun:
    def __init__(self, request: DriverRequest, requests: Requests, send: Send) -> None:
        self.request, self.requests, self.send = request, requests, send
        self.group: PlacementGroup | None = None
        self.actors: dict[int, Any] = {}
        self.places: dict[int, dict[str, Any]] = {}
        """What `Rank.describe` returned for each rank."""
        self.left: set[int] = set()
        """Ranks that have not ended."""
        self.waiting_for = ""

    def run(self) -> None:
        self._join()
        self._reserve()
        self._start()
        polls = {self.actors[rank].poll.remote(): rank for rank in self.left}
        while polls:
            ready, _ = ray.wait(list(polls), num_returns=1, timeout=0.2)
            for task in ready:
                rank = polls.pop(task)
                if self._forward(rank, task):
                    polls[self.actors[rank].poll.remote()] = rank
            self._handle_requests()

    # ---- before the processes run

    def _join(self) -> None:
        """Join the cluster. Until it answers, it is waited for: a head that was killed may be started again."""
        deadline = time.monotonic() + self.request.wait_s
        while isinstance(joined := _join_cluster(self.request.address), CallFailure):
            why = f"{self.request.address} cannot be joined: {joined.reason}"
            if time.monotonic() > deadline:
                raise NotStarted(f"cluster.address: {why}; ray status tells more")
            self._report_waiting(f"the cluster {why}")
            time.sleep(LOOK_S)
            self._handle_requests()

    def _reserve(self) -> None:
        """Reserve the resources and wait for them. Raises `NotStarted`."""
        nodes, count = self.request.nnodes, len(self.request.processes) // self.request.nnodes
        bundle = {"CPU": self.request.cpus * count}
        if self.request.gpus:
            bundle["GPU"] = float(self.request.gpus * count)
        self.group = placement_group([bundle] * nodes, strategy="STRICT_PACK" if nodes == 1 else "STRICT_SPREAD")
        deadline = time.monotonic() + self.request.wait_s
        while not self.group.wait(LOOK_S):
            missing = _missing_resources(bundle, nodes)
            if time.monotonic() > deadline:
                why = f"after {self.request.wait_s:g} s {missing or 'nothing was given'}"
                raise NotStarted(f"cluster: {why}; use less hardware, or a longer cluster.wait_s")
            self._report_waiting(missing)
            self._handle_requests()

    def _report_waiting(self, missing: str) -> None:
        if missing and missing != self.waiting_for:
            self.send(waiting=missing)
        self.waiting_for = missing

    def _start(self) -> None:
        """Start all actors, then choose the rendezvous address, then start their processes."""
        assert self.group
        request, remote, bundles = self.request, ray.remote(Rank), _bundle_order(self.group)
        for process in request.processes:
            place = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundles[process["node"]])
            actor = remote.options(
                num_cpus=request.cpus, num_gpus=request.gpus, max_concurrency=4, scheduling_strategy=place
            )
            self.actors[process["rank"]] = actor.remote()
        self.places = self._collect_answers(
            {rank: actor.describe.remote(request.logs) for rank, actor in self.actors.items()}
        )
        for place in self.places.values():
            if not place["shared"]:
                fix = "use a trainer.run_root on a disk that all nodes share"
                raise NotStarted(f"cluster: {place['address']} does not see {request.logs}; {fix}")
        single = len({description["address"] for description in self.places.values()}) == 1
        shared: dict[str, str] = {}
        if len(self.places) > 1:
            first = self.places[min(self.places)]
            address = machine.LOOPBACK if single else first["address"]
            shared = {"MASTER_ADDR": address, "MASTER_PORT": str(first["port"])}
        tasks, self.left = {}, set(self.places)
        for process in request.processes:
            rank = process["rank"]
            rank_env = {"LOCAL_RANK": "0"} if request.gpus else {}  # Ray shows each its own GPU only
            if shared and (interface := "lo" if single else self.places[rank]["interface"]):
                rank_env |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
            env = {**request.env, **process["env"], **shared, **rank_env}
            tasks[rank] = self.actors[rank].start.remote(
                rank, process["argv"], env, request.logs, request.cwd, request.gpus, request.usage_s
            )
        self._collect_answers(tasks)

    def _collect_answers(self, tasks: dict[int, Any]) -> dict[int, Any]:
        """The result of each rank's task. Raises `NotStarted` or `ClusterLost`."""
        deadline = time.monotonic() + START_S
        return {rank: _get_answer(rank, task, max(deadline - time.monotonic(), 0.1)) for rank, task in tasks.items()}

    # ---- while they run

    def _forward(self, rank: int, task: Any) -> bool:
        """Pass on a process's output; False where it has ended."""
        try:
            output, code, usages = ray.get(task)
        except RayError:
            self.send(rank=rank, lost=_describe_loss(rank, self.places[rank]))
            self.left.discard(rank)
            return False
        if output:
            self.send(rank=rank, output=output)
        if usages:
            self.send(usage=[asdict(usage) for usage in usages])
        if code is not None:
            self.send(rank=rank, code=code)
            self.left.discard(rank)
        return code is None

    def _handle_requests(self) -> None:
        """Handle the requests that arrived since the last call. Raises `LauncherGone`."""
        while not self.requests.empty():
            request = self.requests.get()
            if request is None:
                raise LauncherGone
            for rank in self.left:
                self.actors[rank].signal.remote(request["signal"])

    # ---- at the end

    def end(self) -> None:
        """Kill what still runs, and release the resources."""
        tasks = [self.actors[rank].end.remote() for rank in self.left]
        if tasks:
            try_call(partial(ray.wait, tasks, num_returns=len(tasks), timeout=STOP_S))
        for actor in self.actors.values():
            try_call(partial(ray.kill, actor))
        if self.group is not None:
            try_call(partial(remove_placement_group, self.group))


def _get_answer(rank: int, task: Any, seconds: float) -> Any:
    not_started = f"the process of rank {rank} is not started"
    try:
        return ray.get(task, timeout=seconds)
    except GetTimeoutError as error:
        raise ClusterLost(f"{not_started}: Ray does not answer there") from error
    except RayError as error:
        why = f"{not_started}: {shorten(' '.join(str(error).split()))}"
        if isinstance(error, RayTaskError) or "No module named" in str(error):  # a second try would fail the same way
            raise NotStarted(f"cluster: {why}; use one version of rlrun, and of Python, on all nodes") from error
        raise ClusterLost(why) from error


def _join_cluster(address: str) -> Any | CallFailure:
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            machine.check_listening(address, CONNECT_S)  # Ray takes minutes to find out
        except OSError:
            return CallFailure("nothing answers there")
    joined = try_call(partial(ray.init, address=address, log_to_driver=False, logging_level="ERROR"))
    if isinstance(joined, CallFailure):
        try_call(ray.shutdown)
    return joined


def _missing_resources(bundle: Mapping[str, float], count: int) -> str:
    """Why there are not `count` nodes that have `bundle` free; empty where there are."""
    free = available_resources_per_node()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    large_enough = [node for node in nodes if _offers(node["Resources"], bundle)]
    idle = [node for node in large_enough if _offers(free.get(node["NodeID"], {}), bundle)]
    if len(idle) >= count:
        return ""
    request = f"{count} {'node' if count == 1 else 'nodes'} with {_format_amounts(bundle, bundle)} asked for"
    state = f"{len(idle)} free" if len(large_enough) >= count else f"{len(large_enough)} there"
    offered = "; ".join(
        f"{node['NodeManagerAddress']} offers {_format_amounts(node['Resources'], bundle)},"
        f" {_format_amounts(free.get(node['NodeID'], {}), bundle)} free"
        for node in nodes
    )
    return f"{request}, {state}: {offered or 'no node answers'}"


def _offers(resources: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= count for name, count in bundle.items())


def _format_amounts(resources: Mapping[str, float], bundle: Mapping[str, float]) -> str:
    """`4 CPUs and 1 GPU`: the amounts of the resources that `bundle` names."""
    counts = {name: resources.get(name, 0.0) for name in bundle}
    return " and ".join(f"{count:g} {name}{'' if count == 1 else 's'}" for name, count in counts.items())


def _bundle_order(group: PlacementGroup) -> list[int]:
    """Indices of the bundles in the order of the plan's nodes: this node's first, as the run's folder is on it and rank
    0 writes there."""
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    local_node = ray.get_runtime_context().get_node_id()
    return sorted(nodes, key=lambda bundle: (nodes[bundle] != local_node, bundle))


def _describe_loss(rank: int, place: Mapping[str, Any]) -> str:
    """Why an actor does not answer any more; `place` is its `Rank.describe`."""
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    if place["node"] in alive:
        return f"the Ray worker of rank {rank} on {place['address']} was killed"
    return f"node {place['address']} is gone"


if __name__ == "__main__":
    main()
