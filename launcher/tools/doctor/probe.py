"""One machine looks at itself: for `rlrun doctor`, and for `--nodes` as a process of a plan on each node.

`python -m launcher.tools.doctor.probe TASK` prints two lines of JSON: what it saw of itself, then its part of an
all-reduce.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.core.problems import OnMessage
from launcher.preflight.checks import packages
from launcher.tools.doctor import allreduce, facts, loading, network, places, system

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


def check_this_machine(root: Path, say: OnMessage) -> Iterator[CheckResult]:
    """Every line about this machine, as soon as it is known. `root` is the folder that holds runs."""
    say("looking at this machine")
    yield from check_all_but_torch(root)
    say("loading torch")
    loaded = loading.load_libraries()
    yield from loading.check(loaded, machine.query_gpus())
    if isinstance(loaded, CheckResult):
        return
    say("adding numbers by several processes")
    on_gpus = len(loaded.gpus) > 1 and loaded.nccl is not None
    count = len(loaded.gpus) if on_gpus else 2
    ranks = allreduce.Ranks(
        first=0, count=count, world=count, backend="nccl" if on_gpus else "gloo", address=machine.LOOPBACK,
        port=machine.free_ports(1)[0], interface=machine.loopback(),
    )  # fmt: skip
    yield allreduce.check_ranks(allreduce.run(ranks), {}, "NCCL between GPUs" if on_gpus else "gloo on this CPU")


def check_all_but_torch(root: Path, *, for_ray: bool = False) -> Iterator[CheckResult]:
    yield from packages.check_packages()
    yield from system.check(for_ray=for_ray)
    yield from places.check(root)
    yield from network.check()
    yield from system.check_secrets()


def main(task: ProbeTask) -> None:
    if not os.environ.get(system.VISIBLE, "all"):  # Ray hides the GPUs from what reserves none
        del os.environ[system.VISIBLE]
    results = list(check_all_but_torch(Path(task.root), for_ray=True))
    loaded = loading.load_libraries()
    results += loading.check(loaded, machine.query_gpus())
    found = facts.collect(None if isinstance(loaded, CheckResult) else loaded)
    report = NodeReport(tuple(results), found, tuple(file for file in task.files if Path(file).exists()))
    _print(REPORTED, TypeAdapter(NodeReport).dump_python(report, mode="json"))
    single = "MASTER_ADDR" not in os.environ
    ranks = allreduce.Ranks(
        first=task.first, count=task.count, world=task.world, backend=task.backend,
        address=os.environ.get("MASTER_ADDR", machine.LOOPBACK),
        port=int(os.environ.get("MASTER_PORT") or machine.free_ports(1)[0]),
        interface=machine.loopback() if single else os.environ.get("GLOO_SOCKET_IFNAME", ""),
    )  # fmt: skip
    reduced = allreduce.run(ranks, task.wait_s)
    _print(REDUCED, TypeAdapter(list[allreduce.RankResult]).dump_python(reduced, mode="json"))


def _print(kind: str, found: object) -> None:
    print(json.dumps({"probe": kind, "found": found}), flush=True)


if __name__ == "__main__":
    main(ProbeTask(**json.loads(sys.argv[1])))
