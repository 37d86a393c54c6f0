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
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from launcher.clusters.ray import offers
from launcher.clusters.ray.job import FAR_S, Asked
from launcher.clusters.ray.joining import join
from launcher.clusters.ray.rank import Rank
from launcher.core import machine
from launcher.core.user_code import CallFailure, shorten, try_call
from launcher.spec.cluster import Stack

LOOK_S = 1.0  # between two looks at what is still missing
START_S = 120.0  # for a node to start an actor and look at itself
STOP_S = 5.0  # for killed processes to be gone


class Refused(Exception):
    """Why nothing was started, and would not be another time."""


class Lost(Exception):
    """What was there and is no more."""


def preload() -> None:
    """All that is needed is loaded with this file."""


def main() -> int:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints is for the log
    tell = partial(_tell, out)
    asked = Asked(**json.loads(sys.stdin.readline())["asked"])
    told: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    job = _Job(asked, told, tell)
    try:
        job.run()
    except Refused as refused:
        tell(refused=[str(refused)])
    except Lost as lost:
        tell(lost=str(lost))
    except RayError as error:  # the cluster itself is gone
        tell(lost=f"the Ray cluster does not answer any more: {type(error).__name__}")
    job.end()
    if not asked.address:
        ray.shutdown()
    os._exit(0)  # what Ray's threads wait for may never come


def _listen(told: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        told.put(json.loads(line))
    told.put(None)


def _tell(out: Any, **node: Any) -> None:
    try:
        out.write(json.dumps(node) + "\n")
        out.flush()
    except BrokenPipeError:  # nobody listens, which `_listen` finds out
        pass


class _Job:
    def __init__(self, asked: Asked, told: queue.SimpleQueue[dict[str, Any] | None], tell: Any) -> None:
        self.asked, self.told, self.tell = asked, told, tell
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
        hearing = {actor.hear.remote(): rank for rank, actor in self.actors.items()}
        while hearing:
            ready, _ = ray.wait(list(hearing), num_returns=1, timeout=0.2)
            for task in ready:
                rank = hearing.pop(task)
                if self._heard(rank, task):
                    hearing[self.actors[rank].hear.remote()] = rank
            if not self._obey():
                return

    # ---- before

    def _join(self) -> bool:
        """Whether it came about. One that does not answer is waited for: a head that was killed may come back."""
        give_up, said = time.monotonic() + self.asked.wait_s, ""
        while isinstance(joined := join(self.asked), CallFailure):
            why = f"{self.asked.address or 'a Ray of this machine alone'} cannot be joined: {joined.reason}"
            if not self.asked.address or time.monotonic() > give_up:
                raise Refused(f"cluster.address: {why}; rlrun doctor --nodes tells more")
            said = self._wait(f"the cluster {why}", said)
            time.sleep(LOOK_S)
            if not self._obey():
                return False
        return True

    def _place(self) -> bool:
        """Wait for the resources; whether they came."""
        count = len(self.asked.processes) // self.asked.nnodes
        bundle = {"CPU": self.asked.cpus * count} | ({"GPU": float(self.asked.gpus * count)} if self.asked.gpus else {})
        strategy = "STRICT_PACK" if self.asked.nnodes == 1 else "STRICT_SPREAD"
        group = placement_group([bundle] * self.asked.nnodes, strategy=strategy)
        self.group = group
        give_up, said = time.monotonic() + self.asked.wait_s, ""
        while not group.wait(LOOK_S):
            missing = offers.missing(bundle, self.asked.nnodes)
            if time.monotonic() > give_up:
                why = missing or "nothing was given"
                raise Refused(
                    f"cluster: after {self.asked.wait_s:g} s {why}; less hardware, or a longer cluster.wait_s, would do"
                )
            said = self._wait(missing, said)
            if not self._obey():
                return False
        return True

    def _wait(self, missing: str, said: str) -> str:
        """Say what is missing where it is not what was `said` last."""
        if missing and missing != said:
            self.tell(waiting=missing)
        return missing

    def _start(self) -> None:
        """All actors first, then where they meet, then their processes."""
        assert self.group
        remote, bundles = ray.remote(Rank), offers.order(self.group)
        for process in self.asked.processes:
            rank = process["rank"]
            where = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundles[process["node"]])
            options = {"num_cpus": self.asked.cpus, "num_gpus": self.asked.gpus, "max_concurrency": 4}
            self.actors[rank] = remote.options(scheduling_strategy=where, **options).remote()
        places = self.places = {rank: self._answer(rank, "look") for rank in self.actors}
        self.left = set(self.actors)
        first = places[0]
        alone = len({place["address"] for place in places.values()}) == 1
        shared: dict[str, str] = {}
        if len(places) > 1:
            shared = {
                "MASTER_ADDR": machine.LOOPBACK if alone else first["address"],
                "MASTER_PORT": str(first["port"]),
            }
        for process in self.asked.processes:
            rank = process["rank"]
            own = {"LOCAL_RANK": "0"} if self.asked.gpus else {}  # Ray shows each its own GPU only
            if len(places) > 1:
                own |= _interface("lo" if alone else places[rank]["interface"])
            env = {**self.asked.env, **process["env"], **shared, **own}
            words = (rank, process["argv"], env, self.asked.logs, self.asked.cwd, self.asked.gpus)
            self._answer(rank, "start", *words, self.asked.usage_s, self.asked.spare)

    def _answer(self, rank: int, method: str, *words: Any) -> Any:
        task = getattr(self.actors[rank], method).remote(*words)
        try:
            return ray.get(task, timeout=START_S)
        except RayError as error:
            why = f"the process of rank {rank} is not started: {shorten(' '.join(str(error).split()))}"
            if isinstance(error, RayTaskError) or "No module named" in str(error):  # it would be so another time
                raise Refused(f"cluster: {why}; rlrun doctor --nodes tells more") from error
            raise Lost(why) from error

    # ---- meanwhile

    def _heard(self, rank: int, task: Any) -> bool:
        """Pass on what a process said; False where it has ended."""
        try:
            said, kept, code, used = ray.get(task)
        except RayError:
            self.tell(rank=rank, lost=offers.gone(rank, self.places[rank]))
            self.left.discard(rank)
            return False
        if said:
            self.tell(rank=rank, said=said, kept=kept)
        if used:
            self.tell(usage=[asdict(usage) for usage in used])
        if code is not None:
            self.tell(rank=rank, code=code)
            self.left.discard(rank)
        return code is None

    def _obey(self) -> bool:
        """Do what was asked since; False where nobody listens any more."""
        while not self.told.empty():
            asked = self.told.get()
            if asked is None:
                return False
            if "signal" in asked:
                for rank in self.left:
                    self.actors[rank].signal.remote(asked["signal"])
            elif "stacks" in asked:
                self.tell(stacks=[asdict(stack) for stack in self._stacks(asked["stacks"])])
        return True

    def _stacks(self, wait_s: float) -> list[Stack]:
        """Of all that answer."""
        tasks = [self.actors[rank].stacks.remote(wait_s) for rank in sorted(self.left)]
        answered, _ = ray.wait(tasks, num_returns=len(tasks), timeout=wait_s + FAR_S / 2) if tasks else ([], [])
        told = [try_call(partial(ray.get, task)) for task in answered]
        return [stack for stacks in told if not isinstance(stacks, CallFailure) for stack in stacks]

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


def _interface(name: str) -> dict[str, str]:
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}


if __name__ == "__main__":
    main()
