"""A server of many runs: how soon it lists them and draws a curve, what it holds in memory, and 200 clients of one run.

    python benchmarks/serve_load.py --runs 1000 --steps 10000 --clients 200 --seconds 300

Every run has its own folder; their event logs are one file by hard links, which the server cannot tell from copies. One
of the clients never reads. What is bounded is said beside each figure, and the exit code is 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from websockets.asyncio.client import connect
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from launcher.core.events import Ended, Loaded, Started, Step, events_of, to_line
from launcher.core.metrics import described
from launcher.core.state import fold
from launcher.runs import summary
from launcher.runs.folder import Folder

SPEC = "algorithm: {_target_: launcher.algorithms.grpo.GRPO}\noptim: {lr: 1.0e-06}\ntrainer: {total_epochs: 1}\n"
LIVE = "live/one"
SHOWN = 12
"""Metrics of a screen."""


def make_runs(root: Path, runs: int, steps: int, metrics: int) -> list[str]:
    """The names of the metrics that were written."""
    names = [name for name in described() if "*" not in name and "@" not in name][:metrics]
    chance, first = random.Random(0), Folder(root / "load" / "run-0000")
    first.path.mkdir(parents=True)
    with first.events.open("w") as log:
        head = [
            Started(at=1e9, run="load/run-0000", algorithm="grpo", processes=1),
            Loaded(at=1e9, rows=64, refused=0, val_rows=8, val_refused=0, steps_per_epoch=steps, steps=steps),
        ]
        log.writelines(to_line(event, seq=seq, attempt=1) + "\n" for seq, event in enumerate(head))
        for step in range(1, steps + 1):
            values = {name: round(chance.gauss(0, 1), 6) for name in names}
            log.write(to_line(Step(at=1e9 + step, step=step, metrics=values), seq=step + 1, attempt=1) + "\n")
        log.write(to_line(Ended(at=1e9 + steps + 1, how="finished"), seq=steps + 2, attempt=1) + "\n")
    first.spec.write_text(SPEC)
    summary.keep(first, fold(events_of(first.events)))
    for number in range(1, runs):
        folder = Folder(root / "load" / f"run-{number:04}")
        folder.path.mkdir()
        folder.spec.write_text(SPEC)
        os.link(first.events, folder.events)
        if first.summary.exists():
            os.link(first.summary, folder.summary)
    live = Folder(root / LIVE)
    live.path.mkdir(parents=True)
    live.spec.write_text(SPEC)
    return names


class Asker:
    """Asks one server over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=600)

    def get(self, path: str, **query: Any) -> Any:
        self._connection.request("GET", f"{path}?{urllib.parse.urlencode(query)}")
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text[:300]
        return json.loads(text)

    def times(self, asks: Sequence[Callable[[], Any]]) -> list[float]:
        found = []
        for ask in asks:
            begin = time.perf_counter()
            ask()
            found.append(time.perf_counter() - begin)
        return found


def p95(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def memory(pid: int, what: str = "VmRSS") -> float:
    """MB of a process; `VmHWM` is the most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(what))) / 1024


def processor(pid: int) -> float:
    """Seconds that a process has computed: on a busy machine the times that clients see say less."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Follower(asyncio.Protocol):
    """A client that reads. It computes little, so that 200 of them do not wait for each other in one process."""

    def __init__(self, address: str, lines: int, late: list[float]) -> None:
        self.address, self.lines, self._late = address, lines, late
        self.got = list[int]()
        self.done = asyncio.get_running_loop().create_future()

    async def begin(self) -> None:
        """Connect, at first or again, and ask for what is still to come."""
        after = self.got[-1] if self.got else -1
        uri = parse_uri(f"{self.address}?after={after}")
        self._frames = ClientProtocol(uri)
        await asyncio.get_running_loop().create_connection(lambda: self, uri.host, uri.port)

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._frames.send_request(self._frames.connect())
        transport.writelines(self._frames.data_to_send())

    def data_received(self, data: bytes) -> None:
        self._frames.receive_data(data)
        for frame in self._frames.events_received():
            if isinstance(frame, Frame) and frame.opcode is Opcode.TEXT:
                node = orjson.loads(frame.data)
                if node["kind"] != "Ping":
                    self._late.append(time.time() - node["at"])
                    self.got.append(node["seq"])
        self._transport.writelines(self._frames.data_to_send())
        if len(self.got) >= self.lines:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if len(self.got) < self.lines:
            self._again = asyncio.create_task(self.begin())
        else:
            self.done.set_result(self.got)


async def freeze(address: str) -> None:
    """A client that connects and never reads."""
    async with connect(address, compression=None, open_timeout=60, ping_interval=None) as socket_:
        raw: socket.socket = socket_.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        socket_.transport.pause_reading()
        await asyncio.Event().wait()


async def watch(port: int, uuid: str, log: Path, pid: int, clients: int, seconds: float) -> dict[str, Any]:
    """20 events a second for so long, to all clients."""
    address, lines = f"ws://127.0.0.1:{port}/api/jobs/{uuid}/stream", int(seconds * 20)
    late, sizes = list[float](), list[float]()
    frozen = asyncio.create_task(freeze(address))
    followers = [Follower(address, lines, late) for _ in range(clients - 1)]
    for follower in followers:
        await follower.begin()
    await asyncio.sleep(2)
    computed = processor(pid)
    metrics = {f"metric/{number}": number / 7 for number in range(40)}
    with log.open("a") as file:
        for seq in range(lines):
            begin = time.perf_counter()
            file.write(to_line(Step(at=time.time(), step=seq, metrics=metrics), seq=seq, attempt=1) + "\n")
            file.flush()
            if seq % 100 == 0:
                sizes.append(memory(pid))
            await asyncio.sleep(max(0.05 - (time.perf_counter() - begin), 0))
    async with asyncio.timeout(60):
        got = await asyncio.gather(*(follower.done for follower in followers))
    computed = processor(pid) - computed
    frozen.cancel()
    whole = list(range(lines))
    wrong = sum(mine != whole for mine in got)
    return {"events": lines, "p50_ms": sorted(late)[len(late) // 2] * 1e3, "p95_ms": p95(late) * 1e3,
            "largest_ms": max(late) * 1e3, "clients_with_lost_or_double": wrong,
            "processor_share": computed / seconds, "memory_mb": sizes}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("runs", 100), ("steps", 2_000), ("metrics", 40), ("clients", 200), ("touches", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=60.0)
    of = parser.parse_args()
    with TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        names = make_runs(root, of.runs, of.steps, of.metrics)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        begin = time.perf_counter()
        command = [sys.executable, "-m", "launcher", "serve", "--reindex", "--port", str(port), "--root", str(root)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            return measure(of, names, root, port, server.pid, begin)
        finally:
            server.terminate()
            server.wait(30)


def measure(of: argparse.Namespace, names: list[str], root: Path, port: int, pid: int, begin: float) -> int:
    while True:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/api/jobs?size=1", timeout=600):
            break
        time.sleep(0.05)
    found: dict[str, Any] = {"reindex_s": time.perf_counter() - begin}
    asker, chance = Asker(port), random.Random(1)
    page = asker.get("/api/jobs", size=1000)
    uuids = [job["uuid"] for job in page["items"] if job["run"] != LIVE]
    live = next(job["uuid"] for job in page["items"] if job["run"] == LIVE)
    queries: list[dict[str, Any]] = [
        {"size": 50},
        {"search": "run-00"},
        {"sort": "step", "page": 2},
        {"status": "finished", "sort": "run"},
    ]
    found["list_p95_ms"] = p95(asker.times([partial(asker.get, "/api/jobs", **query) for query in queries * 25])) * 1e3
    touched = chance.sample(uuids, min(of.touches, len(uuids)))
    shown = ",".join(names[:SHOWN])

    def draw(uuid: str) -> Callable[[], Any]:
        return lambda: asker.get(f"/api/jobs/{uuid}/curves", names=shown, buckets=600)

    computed = processor(pid)
    found["curves_first_p95_ms"] = p95(asker.times([draw(uuid) for uuid in touched])) * 1e3
    found["curves_first_processor_ms"] = (processor(pid) - computed) / len(touched) * 1e3
    found["curves_again_p95_ms"] = p95(asker.times([draw(uuid) for uuid in touched[-20:]] * 5)) * 1e3
    found["memory_mb"], found["memory_most_mb"] = memory(pid), memory(pid, "VmHWM")
    found["live"] = asyncio.run(watch(port, live, root / LIVE / "events.jsonl", pid, of.clients, of.seconds))
    sizes = found["live"]["memory_mb"]
    bounds = {
        "reindex_s": (found["reindex_s"], 60), "list_p95_ms": (found["list_p95_ms"], 100),
        "curves_first_p95_ms": (found["curves_first_p95_ms"], 150), "memory_most_mb": (found["memory_most_mb"], 500),
        "live p95_ms": (found["live"]["p95_ms"], 150),
        "live clients with lost or double": (found["live"]["clients_with_lost_or_double"], 0),
        "live growth of memory, MB": (sizes[-1] - sizes[len(sizes) // 4], 20),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    for name, (value, most) in bounds.items():
        print(f"{'ok   ' if value <= most else 'BROKEN'} {name}: {value:.1f}, at most {most}")
    return int(any(value > most for value, most in bounds.values()))


if __name__ == "__main__":
    sys.exit(main())
