"""Every node of a Ray cluster, by its own eyes; then the nodes beside each other and between them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from launcher.core.check_result import CheckResult, from_problems
from launcher.core.problems import Problems
from launcher.tools.doctor import facts, reduce, rendezvous
from launcher.tools.doctor.bridge import WHERE, Bridge, Node, Reply
from launcher.tools.doctor.here import Tell
from launcher.tools.doctor.loading import reason
from launcher.tools.doctor.node import FORMAT, Looked

T = TypeVar("T")
Line = tuple[str, CheckResult]
"""A node's name, or `BETWEEN`, and one result."""

MODULE = "launcher.tools.doctor.node"
PATIENCE_S, SHORT_S = 60.0, 30.0
BETWEEN = "between nodes"
SAME = "rlrun of the version that asks, installed for the Python that runs Ray there,"


def examined(address: str | None, root: Path, patience_s: float, tell: Tell) -> Iterator[Line]:
    """Every line, as soon as it is known. A node that does not answer in `patience_s` is named and left out."""
    tell("joining the cluster")
    try:
        bridge = Bridge(address)
    except Problems as problems:
        yield from ((WHERE, result) for result in from_problems(problems.problems))
        return
    with closing(bridge):
        names = named([node for node in bridge.nodes if node.alive])
        yield WHERE, _listed(bridge.nodes, bridge.address)
        gone = [node.address for node in bridge.nodes if not node.alive]
        if gone:
            message = f"{', '.join(gone)} died while the cluster was up"
            yield (
                WHERE,
                CheckResult("WARN", "nodes", message, "ray start --address there, if it is to come back, would do"),
            )
        yield from _Round(bridge, names, patience_s, tell).lines(root.absolute())


def named(nodes: Sequence[Node]) -> dict[str, Node]:
    """Each by its address and host, and by its id where several share these."""
    plain = {node.id: f"{node.address} ({node.hostname})" for node in nodes}
    counted = Counter(plain.values())
    return {
        plain[node.id] if counted[plain[node.id]] == 1 else f"{node.address} ({node.hostname}, {node.id[:6]})": node
        for node in nodes
    }


def _listed(nodes: Sequence[Node], address: str) -> CheckResult:
    alive = [node for node in nodes if node.alive]
    cpus, gpus = sum(node.cpus for node in alive), sum(node.gpus for node in alive)
    count = f"{len(alive)} node{'' if len(alive) == 1 else 's'}"
    return CheckResult("OK", "nodes", f"{count} at {address}, {cpus:g} CPUs and {gpus:g} GPUs as Ray counts them")


class _Round:
    """The nodes of one cluster that still answer."""

    def __init__(self, bridge: Bridge, names: dict[str, Node], patience_s: float, tell: Tell) -> None:
        self.bridge, self.patience_s, self.tell = bridge, patience_s, tell
        self.nodes = names
        self.facts: dict[str, facts.Facts] = {}

    def lines(self, root: Path) -> Iterator[Line]:
        self.tell(f"{len(self.nodes)} nodes look at themselves")
        for name, looked in self._asked(
            "look", {name: {"root": str(root)} for name in self.nodes}, Looked, self.patience_s
        ):
            if isinstance(looked, CheckResult):
                yield name, looked
                continue
            self.facts[name] = looked.facts
            yield from ((name, result) for result in looked.results)
            yield from ((name, result) for result in _counts(self.nodes[name], looked.facts))
        try:
            if len(self.facts) > 1:
                yield from ((BETWEEN, result) for result in facts.compared(self.facts, facts.code()))
                yield from self._shared()
                yield from self._met()
        finally:
            self._forget()
        if self.facts:
            yield from self._reduced()

    def _asked(
        self, ask: str, of: Mapping[str, Mapping[str, Any]], answer: type[T], seconds: float
    ) -> Iterator[tuple[str, T | CheckResult]]:
        """What each node answers, as it comes; a result for one that does not, or not so that it can be read."""
        ids = {self.nodes[name].id: name for name in of}
        texts = {
            self.nodes[name].id: json.dumps({"format": FORMAT, "ask": ask, "of": words}) for name, words in of.items()
        }
        for node, reply in self.bridge.ask(MODULE, texts, seconds):
            yield ids[node], _answer(reply, answer)

    def _shared(self) -> Iterator[Line]:
        """Which folders are one on all nodes: each looks for the files that the others have put there."""
        self.tell("looking for each other's files")
        paths = sorted({path for one in self.facts.values() for path in one.tokens.values()})
        seen: dict[str, set[str]] = {}
        for name, answer in self._asked("see", {name: {"paths": paths} for name in self.facts}, list[bool], SHORT_S):
            if isinstance(answer, CheckResult):
                yield name, answer
            else:
                seen[name] = {path for path, there in zip(paths, answer, strict=True) if there}
        for what in sorted({what for one in self.facts.values() for what in one.tokens}):
            put = {name: one.tokens[what] for name, one in self.facts.items() if what in one.tokens}
            yield BETWEEN, shared(what, put, seen)

    def _met(self) -> Iterator[Line]:
        self.tell("connecting every node to every other")
        where = {name: (self.nodes[name].address, one.ports[0]) for name, one in self.facts.items()}
        asked = {
            name: {"port": port, "peers": {other: at for other, at in where.items() if other != name}}
            for name, (_, port) in where.items()
        }
        met: dict[str, dict[str, rendezvous.Met]] = {}
        for name, answer in self._asked("meet", asked, dict[str, rendezvous.Met], rendezvous.SECONDS + SHORT_S):
            if isinstance(answer, CheckResult):
                yield name, answer
            else:
                met[name] = answer
        if met:
            yield from ((BETWEEN, result) for result in rendezvous.judged({name: met[name] for name in sorted(met)}))

    def _forget(self) -> None:
        """Each node removes what it put."""
        asked = {name: {"paths": list(one.tokens.values())} for name, one in self.facts.items()}
        for _ in self._asked("forget", asked, type(None), SHORT_S):
            pass

    def _reduced(self) -> Iterator[Line]:
        self.tell("adding numbers over all nodes")
        starts = ranks(self.nodes, self.facts)
        heard: list[reduce.Heard] = []
        whose: dict[int, str] = {}
        asked = {name: {"ranks": asdict(start)} for name, start in starts.items()}
        for name, answer in self._asked("reduce", asked, list[reduce.Heard], reduce.PATIENCE_S + SHORT_S):
            mine = range(starts[name].first, starts[name].first + starts[name].count)
            whose |= dict.fromkeys(mine, name)
            if isinstance(answer, CheckResult):
                heard += [reduce.Heard(rank, code=1, why=answer.message) for rank in mine]
            else:
                heard += answer
        backend = next(iter(starts.values())).backend
        over = "NCCL" if backend == "nccl" else "gloo"
        heard.sort(key=lambda one: one.rank)
        yield BETWEEN, reduce.judged(heard, whose, f"{over} over {len(starts)} node{'' if len(starts) == 1 else 's'}")


def ranks(nodes: Mapping[str, Node], known: Mapping[str, facts.Facts]) -> dict[str, reduce.Ranks]:
    """One process for each GPU where every node has some that work; otherwise one for each node, or two on a single
    one. They meet by the interface that has the address by which Ray knows the node."""
    on_gpus = all(one.usable_gpus for one in known.values())
    alone = 2 if len(known) == 1 else 1
    counts = {name: one.usable_gpus if on_gpus else alone for name, one in known.items()}
    first, found = 0, dict[str, reduce.Ranks]()
    head = next(iter(known))
    for name, one in known.items():
        found[name] = reduce.Ranks(
            first=first, count=counts[name], world=sum(counts.values()), backend="nccl" if on_gpus else "gloo",
            address=nodes[head].address, port=known[head].ports[1],
            interface=one.interfaces.get(nodes[name].address, ""),
        )  # fmt: skip
        first += counts[name]
    return found


def shared(what: str, put: Mapping[str, str], seen: Mapping[str, set[str]]) -> CheckResult:
    """`put`: the file that each node has put; `seen`: the files that each node finds."""
    folders = sorted({str(Path(path).parent) for path in put.values()})
    where = ", ".join(folders)
    blind = [name for name in sorted(seen) if any(path not in seen[name] for path in put.values())]
    if not blind:
        return CheckResult("OK", what, f"{where} is one folder on {len(seen)} nodes")
    message = f"{where} is not one folder: what others put there is not seen by {', '.join(blind)}"
    if what == "run root":
        return CheckResult("WARN", what, message, "a folder that all nodes share (--root, trainer.run_root) would do")
    return CheckResult("OK", what, f"{message}; each fetches its own")


def _counts(node: Node, one: facts.Facts) -> list[CheckResult]:
    """Ray gives out as many GPUs as it was told of when the node was started."""
    if node.gpus == len(one.gpus):
        return []
    message = f"Ray counts {node.gpus:g}, the driver {len(one.gpus)}"
    return [CheckResult("WARN", "GPUs of Ray", message, f"ray start --num-gpus={len(one.gpus)} there would do")]


def _answer(reply: Reply, answer: type[T]) -> T | CheckResult:
    if reply.lost:
        fix = "a look at its raylet (ray status, its logs), or a longer --timeout, would do"
        return CheckResult("FAIL", "node", reply.lost, fix)
    if reply.code:
        why = reason(reply.err, reply.code)
        if "No module named" in why or "Error while finding module" in why:
            return CheckResult(
                "FAIL", "rlrun", f"is not on this node, or is another version: {why}", f"{SAME} would do"
            )
        return CheckResult("FAIL", "node", why, f"{SAME} would do" if "format" in why else "")
    try:
        *_, last = reply.out.splitlines() or [""]
        node = json.loads(last)
        if node["format"] != FORMAT:
            raise ValueError(f"format {node['format']}")
        found: T = TypeAdapter(answer).validate_python(node["answer"])
        return found
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        return CheckResult("FAIL", "rlrun", f"answers what cannot be read ({type(error).__name__})", f"{SAME} would do")
