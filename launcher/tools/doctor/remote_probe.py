"""Every node of a Ray cluster: one `probe` on each, as a plan that the cluster runs; then what differs between them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter

from launcher.clusters.nodes.home import Reach, reach
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
SAME = "install this version of rlrun for the Python that runs Ray there"


def examined(address: str | None, root: Path, wait_s: float, tell: OnMessage) -> Iterator[Line]:
    """Every line, as soon as it is known. A node that does not answer in `wait_s` is named and left out."""
    tell("listing the cluster's nodes")
    try:
        reached = reach(address)
        nodes = list_nodes(reached.address, reached.env)
    except Problems as problems:
        yield from ((CLUSTER, verdict) for verdict in from_problems(problems.problems))
        return
    alive = [node for node in nodes if node.alive]
    yield CLUSTER, _listed(alive, reached.address)
    if gone := sorted({node.address for node in nodes} - {node.address for node in alive}):
        message = f"{', '.join(gone)} died while the cluster was up"
        yield CLUSTER, CheckResult("WARN", "nodes", message, "if it is to come back, use rlrun cluster join there")
    if alive:
        yield from _Probes(named(alive), tell).lines(reached, root.absolute(), wait_s)


def named(nodes: Sequence[RayNode]) -> dict[str, RayNode]:
    """Each by its address and host, and by its id where several share these."""
    plain = {node.id: f"{node.address} ({node.hostname})" for node in nodes}
    counted = Counter(plain.values())
    return {
        plain[node.id] if counted[plain[node.id]] == 1 else f"{node.address} ({node.hostname}, {node.id[:6]})": node
        for node in nodes
    }


def _listed(alive: Sequence[RayNode], address: str) -> CheckResult:
    cpus, gpus = sum(node.cpus for node in alive), sum(node.gpus for node in alive)
    count = f"{len(alive)} node{'' if len(alive) == 1 else 's'}"
    message = f"{count} at {address}, {cpus:g} CPUs and {gpus:g} GPUs in Ray"
    return CheckResult("OK" if alive else "FAIL", "nodes", message)


class _Probes:
    """The probes of one cluster, by node."""

    def __init__(self, nodes: dict[str, RayNode], tell: OnMessage) -> None:
        self.nodes, self.names, self.tell = nodes, list(nodes), tell
        self.reports: dict[str, probe.NodeReport] = {}
        self.reduced: dict[str, list[allreduce.RankResult]] = {}
        self.failed: set[str] = set()
        self.read: dict[str, int] = dict.fromkeys(nodes, 0)
        """Bytes of each log."""

    def lines(self, reached: Reach, root: Path, wait_s: float) -> Iterator[Line]:
        with TemporaryDirectory(prefix="rlrun-doctor-") as folder, _made_files(root) as files:
            logs = Path(folder)
            tasks = tasks_of(list(self.nodes.values()), str(root), tuple(files.values()), wait_s)
            processes = (
                Process(rank, (sys.executable, "-P", "-m", probe.__name__, json.dumps(asdict(task))), node=rank)
                for rank, task in enumerate(tasks)
            )
            plan, ids = Plan(tuple(processes), nnodes=len(tasks)), [node.id for node in self.nodes.values()]
            lock = os.open(logs / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
            job = Ray(address=reached.address, wait_s=wait_s / 2).start_on(ids, plan, logs, lock)
            os.close(lock)
            self.tell(f"{len(self.nodes)} nodes look at themselves, then add numbers")
            try:
                yield from self._messages(job, logs, START_S + 1.5 * wait_s)
            finally:
                job.kill()
            yield from ((BETWEEN, verdict) for verdict in self._between(tasks, files))

    def _messages(self, job: RayJob, logs: Path, wait_s: float) -> Iterator[Line]:
        """What each node says of itself, as it comes, until all have added their numbers, or one cannot."""
        give_up = time.monotonic() + wait_s
        while True:
            over = job.exit_code() is not None
            for rank, name in enumerate(self.names):
                yield from ((name, verdict) for verdict in self._new(name, logs / f"rank-{rank}.log"))
            for event in job.poll_events():
                if isinstance(event, Crashed):
                    yield from ((CLUSTER, CheckResult("FAIL", "Ray", line)) for line in event.lines)
            for rank, (code, why) in dict(job.ended()).items():
                text = (logs / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace")
                yield from self._missing(self.names[rank], why or last_words(text, code))
            if over:
                if why := job.lost_resources() if not job.ended() else "":
                    yield CLUSTER, CheckResult("FAIL", "Ray", why, LOOK_THERE)
                return
            known = len(self.reports) + len(self.failed) == len(self.names)
            complete = known and (self.failed or len(self.reduced) == len(self.names))
            late_s = time.monotonic() - give_up
            if complete or late_s > (wait_s if known else 0):  # the all-reduce ends by itself within that
                break
            time.sleep(POLL_S)
        for name in self.names:
            yield from self._missing(name, f"did not answer in {wait_s:g} s")

    def _new(self, name: str, log: Path) -> Iterator[CheckResult]:
        with log.open("rb") as file:
            file.seek(self.read[name])
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.read[name] += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            if not line.startswith('{"probe"'):
                continue
            with suppress(ValueError):  # which says that the node has another version
                message = json.loads(line)
                if message["probe"] == probe.REPORTED:
                    report = self.reports[name] = TypeAdapter(probe.NodeReport).validate_python(message["found"])
                    yield from (*report.results, *counts(self.nodes[name], report.facts))
                else:
                    self.reduced[name] = TypeAdapter(list[allreduce.RankResult]).validate_python(message["found"])

    def _missing(self, name: str, why: str) -> Iterator[Line]:
        """Once, of a node that has not looked at itself and will not."""
        if name not in self.reports and name not in self.failed:
            self.failed.add(name)
            other = "No module named" in why
            yield name, CheckResult("FAIL", "rlrun" if other else "node", why, SAME if other else LOOK_THERE)

    def _between(self, tasks: Sequence[probe.ProbeTask], files: Mapping[str, str]) -> Iterator[CheckResult]:
        if not self.reports:
            return
        if len(self.reports) > 1:
            yield from facts.compare({name: one.facts for name, one in self.reports.items()}, facts.hash_code())
            seen = {name: set(one.seen) for name, one in self.reports.items()}
            yield from (shared(what, file, seen) for what, file in files.items())
        over = f"{'NCCL' if tasks[0].backend == 'nccl' else 'gloo'} over {len(tasks)} node{'s' * (len(tasks) > 1)}"
        if self.failed:
            message = f"{', '.join(sorted(self.failed))} did not answer, so nothing was added by {over}"
            yield CheckResult("FAIL", allreduce.SUBJECT, message, "see that node's own line")
            return
        results, whose = list[allreduce.RankResult](), dict[int, str]()
        for name, task in zip(self.names, tasks, strict=True):
            mine = range(task.first, task.first + task.count)
            whose |= dict.fromkeys(mine, name)
            results += self.reduced.get(name) or [
                allreduce.RankResult(rank, code=1, why="did not report") for rank in mine
            ]
        yield allreduce.check_ranks(results, whose, over)


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
