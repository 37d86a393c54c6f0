"""`python -m launcher.clusters.ray.far ADDRESS WORDS...`: `rlrun WORDS` on a cluster's head, as if it were typed there.

What it says comes here as it is said; this process ends with its exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from launcher.clusters.ray import outside
from launcher.clusters.ray.told import Said, typed
from launcher.foreign import Fault, attempt

HEAD = "node:__internal_head__"  # a resource that Ray gives to that node alone
LOOKS = ("watch", "logs")  # which end well whenever they are ended


def main(address: str, words: Sequence[str]) -> int:
    columns = os.environ.get("COLUMNS", "")
    coming = (_from_node if _joined(address) else outside.said)(address, words, columns)
    heard = attempt(partial(_pass_on, coming, words[0] in LOOKS))
    if isinstance(heard, Fault) and heard.kind == "BrokenPipeError":  # `| head` has read what it wanted
        return 0
    if isinstance(heard, Fault):
        print(f"✗ {address}: {heard.reason}", file=sys.stderr)
        return 1
    return heard


def _joined(address: str) -> bool:
    """Whether this machine is a node. Where no raylet is, Ray looks for one for a minute."""
    if not any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        return False
    join = partial(ray.init, address=address, log_to_driver=False, logging_level="ERROR")
    return not isinstance(attempt(join), Fault)


def _from_node(address: str, words: Sequence[str], columns: str) -> Generator[Said]:
    """What it says there; it ends with whoever listens."""
    heads = [node["NodeID"] for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"]]
    if not heads:
        yield 1, f"✗ {address}: the cluster's head is gone\n"
        return
    at = NodeAffinitySchedulingStrategy(heads[0], soft=False)
    task = ray.remote(num_cpus=0, max_retries=0, num_returns="streaming")(typed)
    coming = task.options(scheduling_strategy=at).remote(list(words), columns)
    try:
        for each in coming:
            yield ray.get(each)
    finally:  # it may have ended
        ray.cancel(coming)


def _pass_on(coming: Generator[Said], looks: bool) -> int:
    try:
        with closing(coming):
            for heard in coming:
                if not isinstance(heard, str):
                    sys.stderr.write(heard[1])
                    return heard[0]
                sys.stdout.write(heard)
                sys.stdout.flush()
    except KeyboardInterrupt:
        return 0 if looks else 130
    return 1


if __name__ == "__main__":
    try:
        code = main(sys.argv[1], sys.argv[2:])
    except KeyboardInterrupt:
        code = 130
    sys.stderr.flush()
    os._exit(code)  # ray.shutdown may wait for a node that does not answer
