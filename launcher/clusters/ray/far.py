"""`python -m launcher.clusters.ray.far ADDRESS WORDS...`: `rlrun WORDS` on a cluster's head, as if it were typed there.

What it says comes here as it is said; this process ends with its exit code.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from launcher.clusters.nodes.processes import has_raylet
from launcher.clusters.ray import outside, told
from launcher.clusters.ray.told import Said, typed
from launcher.core.user_code import CallFailure, try_call

HEAD = "node:__internal_head__"  # a resource that Ray gives to that node alone
LOOKS = ("watch", "logs")  # which end well whenever they are ended


def main(address: str, words: Sequence[str]) -> int:
    columns, joined = os.environ.get("COLUMNS", ""), _joined(address)
    coming = (_from_node if joined is True else outside.said)(address, words, columns)
    heard = try_call(partial(_pass_on, coming))
    if isinstance(heard, CallFailure) and heard.kind == "BrokenPipeError":  # `| head` has read what it wanted
        return 0
    if isinstance(heard, CallFailure):
        print(f"✗ {address}: {heard.reason}", file=sys.stderr)
        return 1
    if heard and isinstance(joined, CallFailure):
        print(f"Ray does not let this machine join as a node: {joined.reason}", file=sys.stderr)
    return heard


def _joined(address: str) -> CallFailure | bool:
    """Whether this machine is a node."""
    if not has_raylet():
        return False
    joined = try_call(partial(ray.init, address=address, log_to_driver=False, logging_level="ERROR"))
    return joined if isinstance(joined, CallFailure) else True


def _from_node(address: str, words: Sequence[str], columns: str) -> Generator[Said]:
    """What it says there; it ends with whoever listens."""
    heads = [node["NodeID"] for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"]]
    if not heads:
        yield 1, f"✗ {address}: the cluster's head is gone\n"
        return
    at = NodeAffinitySchedulingStrategy(heads[0], soft=False)
    ray.cloudpickle.register_pickle_by_value(told)  # the head's may be of another version
    task = ray.remote(num_cpus=0, max_retries=0, num_returns="streaming")(typed)
    coming = task.options(scheduling_strategy=at).remote(list(words), columns)
    try:
        for each in coming:
            yield ray.get(each)
    finally:  # it may have ended
        ray.cancel(coming)


def _pass_on(coming: Generator[Said]) -> int:
    with closing(coming):
        for heard in coming:
            if not isinstance(heard, str):
                sys.stderr.write(heard[1])
                return heard[0]
            sys.stdout.write(heard)
            sys.stdout.flush()
    return 1


def _leave(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that what runs there ends, too
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    try:
        code = main(sys.argv[1], sys.argv[2:])
    except KeyboardInterrupt:
        code = 0 if sys.argv[2] in LOOKS else 130
    sys.stderr.flush()
    os._exit(code)  # ray.shutdown may wait for a node that does not answer
