"""A running Ray cluster, joined by a process of its own (`python -m launcher.clusters.ray.ask ADDRESS`), which
loads Ray. It reads rounds of requests as lines of JSON and writes what each node answers, so whoever started
it waits by a pipe, and may end it: a connection to Ray can take minutes to fail.

    > {"seconds": 60, "asked": {"<node id>": {"module": "launcher.tools.doctor.node", "text": "..."}}}
    < {"node": "<node id>", "code": 0, "out": "...", "err": "..."}      or {"node": "<node id>", "lost": "why"}

On a node `python -m module` is run with the Python and the environment of Ray's own workers there; the text is its
input. What travels is that one function, by value, and text: a node answers with its own code, or says that it has
none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TextIO

import ray
from ray._private.state import available_resources_per_node  # nothing public tells it for each node
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from launcher.clusters.nodes.home import here
from launcher.clusters.nodes.processes import NO_NODE, has_raylet
from launcher.core.user_code import CallFailure, try_call

MOST = 1 << 20  # characters of an answer

Ran = tuple[int, str, str]


def main(address: str) -> None:
    """Until there is nothing more to read."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints is no answer of ours
    if not (has_raylet() or here().node()):  # a keeper brings its node back
        return _say(out, refused=NO_NODE)
    joined = try_call(partial(ray.init, address=address, log_to_driver=False, logging_level="ERROR"))
    if isinstance(joined, CallFailure):
        return _say(out, refused=joined.reason, kind=joined.kind)
    free = available_resources_per_node()
    _say(out, nodes=[_node(node, free.get(node["NodeID"], {})) for node in ray.nodes()])
    ask = ray.remote(num_cpus=0, max_retries=0)(_by_value())
    for line in sys.stdin:
        asked = json.loads(line)
        _round(ask, asked["asked"], asked["seconds"], out)
    os._exit(0)  # ray.shutdown may wait for a node that does not answer


def _node(node: Mapping[str, Any], free: Mapping[str, float]) -> dict[str, Any]:
    has = node.get("Resources", {})
    return {
        "id": node["NodeID"],
        "alive": node["Alive"],
        "address": node["NodeManagerAddress"],
        "hostname": node["NodeManagerHostname"],
        "cpus": has.get("CPU", 0.0),
        "gpus": has.get("GPU", 0.0),
        "free_cpus": free.get("CPU", 0.0),
        "free_gpus": free.get("GPU", 0.0),
    }


def _by_value() -> Callable[[str, str, float], Ran]:
    """A function that no node has to have: Ray ships the code of one that is made in another."""

    def ask(module: str, text: str, seconds: float) -> Ran:
        # Ray hides the GPUs from a task that asks for none; a look at the node is to see them
        env = {name: value for name, value in os.environ.items() if value or name != "CUDA_VISIBLE_DEVICES"}
        words = [sys.executable, "-m", module]
        try:
            ran = subprocess.run(
                words, input=text, capture_output=True, text=True, timeout=seconds, env=env, check=False
            )
        except subprocess.TimeoutExpired:
            return -9, "", f"it took more than {seconds:g} s"
        return ran.returncode, ran.stdout, ran.stderr

    return ask


def _round(ask: Any, asked: Mapping[str, Mapping[str, str]], seconds: float, out: TextIO) -> None:
    """Say what each node answers as it comes; a node that does not in `seconds` is said to be lost."""
    give_up = time.monotonic() + seconds
    waiting = {
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            request["module"], request["text"], seconds
        ): node
        for node, request in asked.items()
    }
    while waiting and (left := give_up - time.monotonic()) > 0:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
        for task in ready:
            node, ran = waiting.pop(task), try_call(partial(ray.get, task))
            if isinstance(ran, CallFailure):
                _say(out, node=node, lost=ran.reason)
            else:
                code, said, wrong = ran
                _say(out, node=node, code=code, out=said[-MOST:], err=wrong[-MOST:])
    for task, node in waiting.items():
        try_call(partial(ray.cancel, task, force=True))
        _say(out, node=node, lost=f"did not answer in {seconds:g} s")


def _say(to: TextIO, **what: Any) -> None:
    to.write(json.dumps(what) + "\n")
    to.flush()


if __name__ == "__main__":
    main(sys.argv[1])
