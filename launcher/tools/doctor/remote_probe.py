"""Checks every node of a Ray cluster: a plan runs one `probe` on each, and their reports are compared."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter

from launcher.clusters.nodes.home import reach
from launcher.clusters.ray import Ray
from launcher.clusters.ray.listing import RayNode, list_nodes
from launcher.core.check_result import CheckResult, from_problems
from launcher.core.events import Crashed
from launcher.core.problems import OnMessage, Problem, Problems
from launcher.spec.engine import Plan, Process
from launcher.tools.doctor import facts, places, probe
from launcher.tools.doctor.loading import last_words

Line = tuple[str, CheckResult]
"""A node's name, `CLUSTER` or `BETWEEN`, and one result."""

WAIT_S, START_S, POLL_S = 60.0, 20.0, 0.1
CLUSTER, BETWEEN = "cluster", "between nodes"
LOOK_THERE = "look at its raylet (ray status, its logs), or use a longer --timeout"


def examined(address: str | None, root: Path, wait_s: float, tell: OnMessage) -> Iterator[Line]:
    """All results. A node that does not answer in `wait_s` seconds gets a FAIL and is not compared."""
    tell("listing the cluster's nodes")
    try:
        reached = reach(address)
        alive = [node for node in list_nodes(reached.address, reached.env) if node.alive]
    except Problems as problems:
        yield from ((CLUSTER, verdict) for verdict in from_problems(problems.problems))
        return
    count = f"{len(alive)} node{'' if len(alive) == 1 else 's'} at {reached.address}"
    yield CLUSTER, CheckResult("OK" if alive else "FAIL", "nodes", count)
    if not alive:
        return
    tell(f"{len(alive)} nodes look at themselves")
    with TemporaryDirectory(prefix="rlrun-doctor-") as folder, _token_in(root.absolute()) as token:
        task = probe.ProbeTask(str(root.absolute()), token)
        yield from _probe_nodes(named(alive), task, reached.address, wait_s, Path(folder))


def _probe_nodes(
    nodes: Mapping[str, RayNode], task: probe.ProbeTask, address: str, wait_s: float, logs: Path
) -> Iterator[Line]:
    """The results of every node, then those of comparing them."""
    try:
        ended = _run_on_nodes([node.id for node in nodes.values()], task, address, wait_s, logs)
    except Problems as problems:
        yield from ((CLUSTER, verdict) for verdict in from_problems(problems.problems))
        return
    reports = dict[str, probe.NodeReport]()
    for rank, (name, node) in enumerate(nodes.items()):
        report = _read_report(logs / f"rank-{rank}.log", ended.get(rank))
        if isinstance(report, CheckResult):
            yield name, report
            continue
        reports[name] = report
        yield from ((name, verdict) for verdict in (*report.results, *counts(node, report.facts)))
    if len(reports) > 1:
        differ = facts.compare({name: report.facts for name, report in reports.items()}, facts.hash_code())
        yield from ((BETWEEN, verdict) for verdict in differ)
        if task.token:
            folder = str(Path(task.token).parent)
            yield BETWEEN, shared(folder, {name: report.sees_token for name, report in reports.items()})


def _run_on_nodes(
    ids: Sequence[str], task: probe.ProbeTask, address: str, wait_s: float, logs: Path
) -> dict[int, tuple[int, str]]:
    """Run the probe on each node. Returns exit code and why the process was lost, by the node's index in `ids`. Raises
    `Problems` where Ray started none."""
    words = (sys.executable, "-P", "-m", probe.__name__, json.dumps(asdict(task)))
    plan = Plan(tuple(Process(rank, words, node=rank) for rank in range(len(ids))), nnodes=len(ids))
    with (logs / ".lock").open("w") as lock:
        job = Ray(address=address, wait_s=wait_s / 2).start_on(ids, plan, logs, lock.fileno())
    try:
        deadline = time.monotonic() + START_S + 2 * wait_s
        while job.exit_code() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        refused = [line for event in job.poll_events() if isinstance(event, Crashed) for line in event.lines]
        ended = dict(job.ended())
        if refused := refused or ([] if ended else [job.lost_resources()]):
            raise Problems(Problem("Ray", line, LOOK_THERE) for line in refused)
        return ended
    finally:
        job.kill()


def _read_report(log: Path, ended: tuple[int, str] | None) -> probe.NodeReport | CheckResult:
    """The report that a node's process printed, or a FAIL. `ended`: its exit code and why it was lost; None where it
    did not end."""
    text = log.read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        if line.startswith('{"probe"'):
            with suppress(ValueError):  # of another version
                return TypeAdapter(probe.NodeReport).validate_python(json.loads(line)["probe"])
    code, why = ended or (0, "did not answer in time")
    missing = why or last_words(text, code)
    if "No module named" in missing:
        fix = "install this version of rlrun for the Python that runs Ray there"
        return CheckResult("FAIL", "rlrun", missing, fix)
    return CheckResult("FAIL", "node", missing, LOOK_THERE)


def named(nodes: Sequence[RayNode]) -> dict[str, RayNode]:
    """Each node by its address and host, and also by its id where several share these."""
    plain = {node.id: f"{node.address} ({node.hostname})" for node in nodes}
    counted = Counter(plain.values())
    return {
        plain[node.id] if counted[plain[node.id]] == 1 else f"{node.address} ({node.hostname}, {node.id[:6]})": node
        for node in nodes
    }


@contextmanager
def _token_in(root: Path) -> Iterator[str]:
    """Path of a new file in the folder that will hold runs, which is removed in the end; empty where none can be
    written, as the check of that folder reports."""
    try:
        token = places.put_token(root)
    except OSError:
        yield ""
        return
    try:
        yield str(token)
    finally:
        token.unlink(missing_ok=True)


def shared(folder: str, sees: Mapping[str, bool]) -> CheckResult:
    """Whether all nodes see the file that this machine put into `folder`: `sees`, by the nodes' names."""
    blind = sorted(name for name in sees if not sees[name])
    if not blind:
        return CheckResult("OK", "run root", f"{folder} is one folder on {len(sees)} nodes")
    message = f"{folder} is not one folder: {', '.join(blind)} does not see what this machine puts there"
    return CheckResult("WARN", "run root", message, "use a folder that all nodes share (--root, trainer.run_root)")


def counts(node: RayNode, found: facts.Facts) -> list[CheckResult]:
    """A warning where the node was started in Ray with another number of GPUs than its driver reports."""
    message = f"Ray counts {node.gpus:g}, the driver {found.gpus}"
    warning = CheckResult("WARN", "GPUs of Ray", message, f"use ray start --num-gpus={found.gpus} there")
    return [] if node.gpus == found.gpus else [warning]
