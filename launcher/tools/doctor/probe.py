"""What runs on each node for `rlrun doctor --nodes`: `python -m launcher.tools.doctor.probe TASK`, as a process of a
plan on the cluster. It prints two lines of JSON: what it saw of itself, then its part of an all-reduce.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.tools.doctor import allreduce, facts, here, loading
from launcher.tools.doctor.gpus import VISIBLE

REPORTED, REDUCED = "report", "reduced"


@dataclass(frozen=True)
class ProbeTask:
    """What one node is to do."""

    root: str
    """The folder that will hold runs."""
    files: tuple[str, ...]
    """Files that the machine which asks has made; whether they are seen here."""
    first: int
    """Rank of this node's first process of the all-reduce."""
    count: int
    world: int
    backend: str
    wait_s: float
    """For the processes of the other nodes."""


@dataclass(frozen=True)
class NodeReport:
    """What a node sees of itself."""

    results: tuple[CheckResult, ...]
    facts: facts.Facts
    seen: tuple[str, ...]
    """Which of `ProbeTask.files` are there."""


def main(task: ProbeTask) -> None:
    if not os.environ.get(VISIBLE, "all"):  # Ray hides the GPUs from what reserves none
        del os.environ[VISIBLE]
    _print(REPORTED, TypeAdapter(NodeReport).dump_python(_look(task), mode="json"))
    ranks = allreduce.Ranks(
        first=task.first, count=task.count, world=task.world, backend=task.backend,
        address=os.environ.get("MASTER_ADDR", machine.LOOPBACK),
        port=int(os.environ.get("MASTER_PORT") or machine.free_ports(1)[0]),
        interface=os.environ.get("GLOO_SOCKET_IFNAME", "") if "MASTER_ADDR" in os.environ else machine.loopback(),
    )  # fmt: skip
    results = allreduce.run(ranks, task.wait_s)
    _print(REDUCED, TypeAdapter(list[allreduce.RankResult]).dump_python(results, mode="json"))


def _look(task: ProbeTask) -> NodeReport:
    started = loading.Loading()
    try:
        results = list(here.local_checks(Path(task.root), for_ray=True))
        loaded = started.ended()
    finally:
        started.end()
    results += [loaded] if isinstance(loaded, CheckResult) else loading.check(loaded, machine.query_gpus())
    found = facts.collected(None if isinstance(loaded, CheckResult) else loaded)
    return NodeReport(tuple(results), found, tuple(file for file in task.files if Path(file).exists()))


def _print(kind: str, found: object) -> None:
    print(json.dumps({"probe": kind, "found": found}), flush=True)


if __name__ == "__main__":
    main(ProbeTask(**json.loads(sys.argv[1])))
