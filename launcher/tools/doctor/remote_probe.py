"""Every node of a Ray cluster: one `probe` on each, as a plan that the cluster runs; then what differs between them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter

from launcher.clusters.nodes.home import reach
from launcher.clusters.ray import Ray
from launcher.clusters.ray.job import RayJob
from launcher.clusters.ray.listing import RayNode, list_nodes
from launcher.core.check_result import CheckResult, from_problems
from launcher.core.events import Crashed
from launcher.core.problems import OnMessage, Problems
from launcher.spec.engine import Plan, Process
from launcher.tools.doctor import allreduce, facts, places, probe
from launcher.tools.doctor.loading import last_words

Line = tuple[str, CheckResult]
"""A node's name, or `BETWEEN`, and one verdict."""

WAIT_S, START_S, POLL_S = 60.0, 20.0, 0.1
CLUSTER, BETWEEN = "cluster", "between nodes"
LOOK_THERE = "look at its raylet (ray status, its logs), or use a longer --timeout"


@dataclass
class NodeAnswer:
    """What a node's probe has printed."""

    report: probe.NodeReport | None = None
    reduced: Sequence[allreduce.RankResult] = ()
    missing: str = ""
    """Why there is no report."""


def examined(address: str | None, root: Path, wait_s: float, tell: OnMessage) -> Iterator[Line]:
    """Every line. A node that does not answer in `wait_s` is named and left out."""
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
    tell(f"{len(alive)} nodes look at themselves, then add numbers")
    with TemporaryDirectory(prefix="rlrun-doctor-") as folder, _made_files(root.absolute()) as files:
        tasks = tasks_of(alive, str(root.absolute()), tuple(files.values()), wait_s)
        yield from _probe(named(alive), tasks, files, reached.address, Path(folder))


def _probe(
    nodes: Mapping[str, RayNode], tasks: Sequence[probe.ProbeTask], files: Mapping[str, str], address: str, logs: Path
) -> Iterator[Line]:
    """Every node's own lines, then those between nodes."""
    wait_s = tasks[0].wait_s
    job = _start(tasks, [node.id for node in nodes.values()], address, logs)
    try:
        give_up = time.monotonic() + START_S + 2.5 * wait_s  # the all-reduce ends by itself within that
        while job.exit_code() is None and time.monotonic() < give_up:
            time.sleep(POLL_S)
        refused = [line for event in job.poll_events() if isinstance(event, Crashed) for line in event.lines]
        ended = dict(job.ended())
        if refused := refused or ([] if ended else [job.lost_resources()]):
            yield from ((CLUSTER, CheckResult("FAIL", "Ray", line, LOOK_THERE)) for line in refused)
            return
    finally:
        job.kill()
    answers = {name: _read_answer(logs / f"rank-{rank}.log", ended.get(rank)) for rank, name in enumerate(nodes)}
    for name, answer in answers.items():
        yield from ((name, verdict) for verdict in _verdicts(nodes[name], answer))
    yield from ((BETWEEN, verdict) for verdict in _between(tasks, answers, files))


def _verdicts(node: RayNode, answer: NodeAnswer) -> list[CheckResult]:
    if answer.report:
        return [*answer.report.results, *counts(node, answer.report.facts)]
    if "No module named" in answer.missing:
        fix = "install this version of rlrun for the Python that runs Ray there"
        return [CheckResult("FAIL", "rlrun", answer.missing, fix)]
    return [CheckResult("FAIL", "node", answer.missing, LOOK_THERE)]


def _start(tasks: Sequence[probe.ProbeTask], ids: Sequence[str], address: str, logs: Path) -> RayJob:
    processes = (
        Process(rank, (sys.executable, "-P", "-m", probe.__name__, json.dumps(asdict(task))), node=rank)
        for rank, task in enumerate(tasks)
    )
    lock = os.open(logs / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    plan = Plan(tuple(processes), nnodes=len(tasks))
    job = Ray(address=address, wait_s=tasks[0].wait_s / 2).start_on(ids, plan, logs, lock)
    os.close(lock)
    return job


def _read_answer(log: Path, ended: tuple[int, str] | None) -> NodeAnswer:
    """`ended`: the exit code of the node's process and why it was lost; None where it did not end."""
    text, answer = log.read_text(encoding="utf-8", errors="replace"), NodeAnswer()
    code, why = ended or (0, "did not answer in time")
    answer.missing = why or last_words(text, code)
    for line in text.splitlines():
        if line.startswith('{"probe"'):
            with suppress(ValueError):  # which says that the node has another version
                message = json.loads(line)
                if message["probe"] == probe.REPORTED:
                    answer.report = TypeAdapter(probe.NodeReport).validate_python(message["found"])
                else:
                    answer.reduced = TypeAdapter(list[allreduce.RankResult]).validate_python(message["found"])
    return answer


def _between(
    tasks: Sequence[probe.ProbeTask], answers: Mapping[str, NodeAnswer], files: Mapping[str, str]
) -> Iterator[CheckResult]:
    reports = {name: answer.report for name, answer in answers.items() if answer.report}
    if len(reports) > 1:
        yield from facts.compare({name: one.facts for name, one in reports.items()}, facts.hash_code())
        seen = {name: set(one.seen) for name, one in reports.items()}
        yield from (shared(what, file, seen) for what, file in files.items())
    over = f"{'NCCL' if tasks[0].backend == 'nccl' else 'gloo'} over {len(tasks)} node{'s' * (len(tasks) > 1)}"
    if len(reports) < len(answers):
        silent = ", ".join(sorted(answers.keys() - reports.keys()))
        message = f"{silent} did not answer, so nothing was added by {over}"
        yield CheckResult("FAIL", allreduce.SUBJECT, message, "see that node's own line")
        return
    results, whose = list[allreduce.RankResult](), dict[int, str]()
    for (name, answer), task in zip(answers.items(), tasks, strict=True):
        mine = range(task.first, task.first + task.count)
        whose |= dict.fromkeys(mine, name)
        results += answer.reduced or [allreduce.RankResult(rank, code=1, why="did not report") for rank in mine]
    yield allreduce.check_ranks(results, whose, over)


def named(nodes: Sequence[RayNode]) -> dict[str, RayNode]:
    """Each by its address and host, and by its id where several share these."""
    plain = {node.id: f"{node.address} ({node.hostname})" for node in nodes}
    counted = Counter(plain.values())
    return {
        plain[node.id] if counted[plain[node.id]] == 1 else f"{node.address} ({node.hostname}, {node.id[:6]})": node
        for node in nodes
    }


def tasks_of(nodes: Sequence[RayNode], root: str, files: tuple[str, ...], wait_s: float) -> list[probe.ProbeTask]:
    """The all-reduce has a process for each GPU where every node has some; else one for each node, or two on one."""
    on_gpus = all(node.gpus >= 1 for node in nodes) and sum(node.gpus for node in nodes) > 1
    counts = [int(node.gpus) if on_gpus else 2 if len(nodes) == 1 else 1 for node in nodes]
    return [
        probe.ProbeTask(
            root=root, files=files, first=sum(counts[:number]), count=count, world=sum(counts),
            backend="nccl" if on_gpus else "gloo", wait_s=wait_s,
        )
        for number, count in enumerate(counts)
    ]  # fmt: skip


@contextmanager
def _made_files(root: Path) -> Iterator[dict[str, str]]:
    """A file in each folder that runs write to, by what the folder is for; removed in the end."""
    made = dict[str, str]()
    try:
        for place in places.places(root)[0]:
            if place.what != "temporary":
                with suppress(OSError):  # which the verdict of that place says
                    made[place.what] = str(places.put_token(place.path))
        yield made
    finally:
        for file in made.values():
            Path(file).unlink(missing_ok=True)


def shared(what: str, file: str, seen: Mapping[str, set[str]]) -> CheckResult:
    """`file`: made by this machine; `seen`: the files that each node finds."""
    folder = Path(file).parent
    blind = [name for name in sorted(seen) if file not in seen[name]]
    if not blind:
        return CheckResult("OK", what, f"{folder} is one folder on {len(seen)} nodes")
    message = f"{folder} is not one folder: {', '.join(blind)} does not see what this machine puts there"
    if what == "run root":
        return CheckResult("WARN", what, message, "use a folder that all nodes share (--root, trainer.run_root)")
    return CheckResult("OK", what, f"{message}; each fetches its own")


def counts(node: RayNode, one: facts.Facts) -> list[CheckResult]:
    """Ray gives out as many GPUs as it was told of when the node was started."""
    message = f"Ray counts {node.gpus:g}, the driver {one.gpus}"
    warning = CheckResult("WARN", "GPUs of Ray", message, f"use ray start --num-gpus={one.gpus} there")
    return [] if node.gpus == one.gpus else [warning]
