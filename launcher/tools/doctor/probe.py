"""Checks the machine that it runs on: for `rlrun doctor`, and with `--nodes` as a process of a plan on each node.

`python -m launcher.tools.doctor.probe TASK` prints a line of JSON: `{"probe": NodeReport}`.
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
from launcher.tools.doctor import facts, loading, network, places, system


@dataclass(frozen=True)
class ProbeTask:
    """The input of a probe on one node."""

    root: str
    """The folder that will hold runs."""
    token: str
    """A file that the machine which asks has put into that folder; empty where it could not."""


@dataclass(frozen=True)
class NodeReport:
    """The output of a probe on one node."""

    results: tuple[CheckResult, ...]
    facts: facts.Facts
    sees_token: bool
    """Whether `ProbeTask.token` is there."""


def check_this_machine(root: Path, say: OnMessage) -> Iterator[CheckResult]:
    """Every result about this machine, as soon as it is known. `root` is the folder that holds runs."""
    say("looking at this machine")
    yield from check_all_but_torch(root)
    say("loading torch")
    yield from loading.check(loading.load_libraries(), machine.query_gpus())


def check_all_but_torch(root: Path, *, for_ray: bool = False) -> Iterator[CheckResult]:
    yield from packages.check_packages()
    yield from system.check(for_ray=for_ray)
    yield from places.check(root)
    yield from network.check()
    yield from system.check_secrets()


def main(task: ProbeTask) -> None:
    if not os.environ.get(system.VISIBLE, "all"):  # Ray hides the GPUs from processes that reserve none
        del os.environ[system.VISIBLE]
    results = list(check_all_but_torch(Path(task.root), for_ray=True))
    loaded = loading.load_libraries()
    results += loading.check(loaded, machine.query_gpus())
    node_facts = facts.collect(None if isinstance(loaded, CheckResult) else loaded)
    report = NodeReport(tuple(results), node_facts, Path(task.token).is_file())
    print(json.dumps({"probe": TypeAdapter(NodeReport).dump_python(report, mode="json")}), flush=True)


if __name__ == "__main__":
    main(ProbeTask(**json.loads(sys.argv[1])))
