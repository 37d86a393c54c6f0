"""`python -m launcher.clusters.ray.driver`: starts a plan on a Ray cluster and passes on what its processes say.

The launcher's side of the pipe is `job`, which has the lines that both speak. It ends, and all that it started with it,
when its standard input does.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from dataclasses import asdict
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from launcher.clusters.ray import resources
from launcher.clusters.ray.job import ROUND_TRIP_S, StartRequest
from launcher.clusters.ray.rank import Rank
from launcher.core import machine
from launcher.core.user_code import CallFailure, shorten, try_call
from launcher.spec.cluster import Stack

LOOK_S = 1.0  # between two looks at what is still missing
START_S = 120.0  # for a node to start an actor and look at itself
STOP_S = 5.0  # for killed processes to be gone


class NotStarted(Exception):
    """Why nothing was started, and would not be another time."""


class ClusterLost(Exception):
    """What was there and is no more."""


def main() -> int:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints is for the log
    send = partial(_send, out)
    request = StartRequest(**json.loads(sys.stdin.readline())["request"])
    requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    job = _RayRun(request, requests, send)
    try:
        job.run()
    except NotStarted as refused:
        send(refused=[str(refused)])
    except ClusterLost as lost:
        send(lost=str(lost))
    except RayError as error:  # the cluster itself is gone
        send(lost=f"the Ray cluster does not answer any more: {type(error).__name__}")
    job.end()
    if not request.address:
        ray.shutdown()
    os._exit(0)  # what Ray's threads wait for may never come


def _listen(requests: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    requests.put(None)


def _send(out: Any, **node: Any) -> None:
    try:
        out.write(json.dumps(node) + "\n")
        out.flush()
    except BrokenPipeError:  # nobody listens, which `_listen` finds out
        pass


class _RayRun:
    def __init__(self, request: StartRequest, requests: queue.SimpleQueue[dict[str, Any] | None], send: Any) -> None:
        self.request, self.requests, self.send = request, requests, send
        self.group: PlacementGroup | None = None
        self.actors: dict[int, Any] = {}
        self.places: dict[int, dict[str, Any]] = {}
        """Where each is."""
        self.left: set[int] = set()
        """Ranks that have not ended."""

    def run(self) -> None:
        if not (self._join() and self._place()):
            return
        self._start()
        polls = {self.actors[rank].poll.remote(): rank for rank in self.left}
        while polls:
            ready, _ = ray.wait(list(polls), num_returns=1, timeout=0.2)
            for task in ready:
                rank = polls.pop(task)
                if self._forward(rank, task):
                    polls[self.actors[rank].poll.remote()] = rank
            if not self._handle_requests():
                return

    # ---- before

    def _join(self) -> bool:
        """Whether it came about. One that does not answer is waited for: a head that was killed may come back."""
        give_up, output = time.monotonic() + self.request.wait_s, ""
        while isinstance(joined := resources.join(self.request), CallFailure):
            why = f"{self.request.address or 'a Ray of this machine alone'} cannot be joined: {joined.reason}"
            if not self.request.address or time.monotonic() > give_up:
                raise NotStarted(f"cluster.address: {why}; rlrun doctor --nodes tells more")
            output = self._wait(f"the cluster {why}", output)
            time.sleep(LOOK_S)
            if not self._handle_requests():
                return False
        return True

    def _place(self) -> bool:
        """Wait for the resources; whether they came. Nothing is reserved where the nodes are named."""
        if self.request.node_ids:
            return True
        count = len(self.request.processes) // self.request.nnodes
        bundle = {"CPU": self.request.cpus * count}
        if self.request.gpus:
            bundle["GPU"] = float(self.request.gpus * count)
        strategy = "STRICT_PACK" if self.request.nnodes == 1 else "STRICT_SPREAD"
        group = placement_group([bundle] * self.request.nnodes, strategy=strategy)
        self.group = group
        give_up, output = time.monotonic() + self.request.wait_s, ""
        while not group.wait(LOOK_S):
            missing = resources.missing_resources(bundle, self.request.nnodes)
            if time.monotonic() > give_up:
                why = missing or "nothing was given"
                raise NotStarted(
                    f"cluster: after {self.request.wait_s:g} s {why}; use less hardware, or a longer cluster.wait_s"
                )
            output = self._wait(missing, output)
            if not self._handle_requests():
                return False
        return True

    def _wait(self, missing: str, output: str) -> str:
        """Say what is missing where it is not what was `said` last."""
        if missing and missing != output:
            self.send(waiting=missing)
        return missing

    def _start(self) -> None:
        """All actors first, then where they meet, then their processes."""
        remote, options = ray.remote(Rank), self._actor_options()
        for process in self.request.processes:
            more = {"num_gpus": self.request.gpus, "max_concurrency": 4, **options[process["node"]]}
            self.actors[process["rank"]] = remote.options(**more).remote()
        self.places = self._answers({rank: actor.describe.remote() for rank, actor in self.actors.items()})
        single = len({place["address"] for place in self.places.values()}) == 1
        shared: dict[str, str] = {}
        if len(self.places) > 1:
            first = self.places[min(self.places)]
            shared = {
                "MASTER_ADDR": machine.LOOPBACK if single else first["address"],
                "MASTER_PORT": str(first["port"]),
            }
        begun, self.left = {}, set(self.places)
        for process in self.request.processes:
            if (rank := process["rank"]) not in self.places:
                continue
            own = {"LOCAL_RANK": "0"} if self.request.gpus else {}  # Ray shows each its own GPU only
            if shared:
                own |= _interface("lo" if single else self.places[rank]["interface"])
            env = {**self.request.env, **process["env"], **shared, **own}
            where = self.request.logs, self.request.cwd
            begun[rank] = self.actors[rank].start.remote(
                rank, process["argv"], env, *where, self.request.gpus, self.request.usage_s
            )
        self.left = set(self._answers(begun))  # all, where they are together

    def _actor_options(self) -> list[dict[str, Any]]:
        """For each of the plan's nodes."""
        if self.request.node_ids:
            pinned = [NodeAffinitySchedulingStrategy(node, soft=False) for node in self.request.node_ids]
            return [{"num_cpus": 0, "scheduling_strategy": each} for each in pinned]
        assert self.group
        reserved = [
            PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundle)
            for bundle in resources.bundle_order(self.group)
        ]
        return [{"num_cpus": self.request.cpus, "scheduling_strategy": each} for each in reserved]

    def _answers(self, tasks: dict[int, Any]) -> dict[int, Any]:
        """What each rank's actor answers. Raises `NotStarted` or `ClusterLost`; where the nodes are named, one that
        fails is reported as lost, and left out."""
        found, seconds = dict[int, Any](), self.request.wait_s if self.request.node_ids else START_S
        give_up = time.monotonic() + seconds
        for rank, task in tasks.items():
            try:
                found[rank] = _answer(rank, task, max(give_up - time.monotonic(), 0.1))
            except (NotStarted, ClusterLost) as error:
                if not self.request.node_ids:
                    raise
                self.send(rank=rank, lost=str(error))
                try_call(partial(ray.kill, self.actors.pop(rank)))
        return found

    # ---- meanwhile

    def _forward(self, rank: int, task: Any) -> bool:
        """Pass on what a process said; False where it has ended."""
        try:
            output, kept, code, used = ray.get(task)
        except RayError:
            self.send(rank=rank, lost=resources.describe_loss(rank, self.places[rank]))
            self.left.discard(rank)
            return False
        if output:
            self.send(rank=rank, output=output, kept=kept)
        if used:
            self.send(usage=[asdict(usage) for usage in used])
        if code is not None:
            self.send(rank=rank, code=code)
            self.left.discard(rank)
        return code is None

    def _handle_requests(self) -> bool:
        """Handle the requests that came since the last call; False where the launcher is gone."""
        while not self.requests.empty():
            request = self.requests.get()
            if request is None:
                return False
            if "signal" in request:
                for rank in self.left:
                    self.actors[rank].signal.remote(request["signal"])
            elif "stacks" in request:
                self.send(stacks=[asdict(stack) for stack in self._stacks(request["stacks"])])
        return True

    def _stacks(self, wait_s: float) -> list[Stack]:
        """Of all that answer."""
        tasks = [self.actors[rank].stacks.remote(wait_s) for rank in sorted(self.left)]
        answered, _ = ray.wait(tasks, num_returns=len(tasks), timeout=wait_s + ROUND_TRIP_S / 2) if tasks else ([], [])
        requests = [try_call(partial(ray.get, task)) for task in answered]
        return [stack for stacks in requests if not isinstance(stacks, CallFailure) for stack in stacks]

    # ---- after

    def end(self) -> None:
        """Kill what still runs, and give the resources back."""
        tasks = [self.actors[rank].end.remote() for rank in self.left]
        if tasks:
            try_call(partial(ray.wait, tasks, num_returns=len(tasks), timeout=STOP_S))
        for actor in self.actors.values():
            try_call(partial(ray.kill, actor))
        self._release()

    def _release(self) -> None:
        if self.group is not None:
            try_call(partial(remove_placement_group, self.group))
            self.group = None


def _answer(rank: int, task: Any, seconds: float) -> Any:
    try:
        return ray.get(task, timeout=seconds)
    except GetTimeoutError as error:
        raise ClusterLost(f"the process of rank {rank} is not started: Ray does not answer there") from error
    except RayError as error:
        why = f"the process of rank {rank} is not started: {shorten(' '.join(str(error).split()))}"
        if isinstance(error, RayTaskError) or "No module named" in str(error):  # it would be so another time
            raise NotStarted(f"cluster: {why}; rlrun doctor --nodes tells more") from error
        raise ClusterLost(why) from error


def _interface(name: str) -> dict[str, str]:
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}


if __name__ == "__main__":
    main()
