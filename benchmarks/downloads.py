"""Kill `rlrun model download` with SIGKILL at random bytes: `python benchmarks/downloads.py KILLS [SEED]`.

A hub on this machine speaks to the real clients and counts what it sends. Each download is killed once the hub has
sent a random number of bytes, and started again. No file may ever have a final name and wrong bytes, and of what the
process had fetched, at most a tenth may be fetched again. What the hub sent and the process never took from its sockets
is counted too, in a column of its own. Ends with 1 when one row fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local_hub import LocalHub, serving
from rich.console import Console
from rich.table import Table

SIZES = {"model-00001-of-00002.safetensors": 32_000_000, "model-00002-of-00002.safetensors": 32_000_000}
SPEED = 24e6  # bytes a second of each file, so that there is a moment to kill at
LONGEST_S = 60.0


@dataclass(frozen=True)
class Kill:
    source: str
    sent: int
    """Bytes the hub had sent when the process was gone."""
    unread: int
    """Those of them that lay in sockets: the process never had them."""
    again: int
    """Bytes the hub sent twice."""
    wrong: list[str]
    """Files that had a name and other bytes, after the kill or at the end."""
    seconds: float

    @property
    def kept(self) -> float:
        """Share of the fetched bytes that were not fetched again."""
        fetched = self.sent - self.unread
        return 1 - max(self.again - self.unread, 0) / fetched if fetched else 1.0

    @property
    def good(self) -> bool:
        return self.kept >= 0.9 and not self.wrong


def model(rng: random.Random) -> dict[str, bytes]:
    weights = {name: rng.randbytes(size) for name, size in SIZES.items()}
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(weights)}}
    texts = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
    return {**texts, **weights}


def begin(hub: LocalHub, source: str, to: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "launcher", "model", "download", "o/m", "--source", source, "--to", str(to)]
    environment = {**os.environ, **hub.environment()}
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wrong(folder: Path, files: Mapping[str, bytes], *, all_there: bool) -> list[str]:
    found = []
    for name, data in files.items():
        path = folder / name
        if path.exists():
            same = hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(data).digest()
            found += [] if same else [name]
        elif all_there:
            found.append(f"{name} is missing")
    return found


def in_sockets(ports: set[int]) -> int:
    """Bytes on their way from servers at `ports`: not yet received, or received and not yet read."""
    unread = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        to_send, to_read = (int(count, 16) for count in queues.split(":"))
        if int(local.rpartition(":")[2], 16) in ports:
            unread += to_send
        elif int(remote.rpartition(":")[2], 16) in ports:
            unread += to_read
    return unread


def one(source: str, at: int, rng: random.Random) -> Kill:
    """Kill once `at` bytes were sent, start again, and look."""
    started = time.monotonic()
    with serving() as hub, tempfile.TemporaryDirectory() as scratch:
        files, to = model(rng), Path(scratch) / "to"
        hub.add("o/m", files)
        hub.bytes_per_s = SPEED
        process = begin(hub, source, to)
        while process.poll() is None and hub.total < at and time.monotonic() - started < LONGEST_S:
            time.sleep(0.001)
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)  # what is on its way arrives
        sent, unread = hub.total, in_sockets({hub.hub.server_port, hub.cdn.server_port})
        process.kill()
        process.wait()
        found = wrong(to, files, all_there=False)
        hub.bytes_per_s = None
        code = begin(hub, source, to).wait()
        found += wrong(to, files, all_there=True) + ([f"ended with {code}"] if code else [])
        again = hub.total - sum(map(len, files.values()))
        return Kill(source, sent, unread, again, found, time.monotonic() - started)


def main(kills: int, seed: int) -> int:
    rng = random.Random(seed)
    whole = sum(SIZES.values())
    rows = [one(("huggingface", "modelscope")[number % 2], rng.randrange(whole), rng) for number in range(kills)]
    columns = ("kill", "hub", "at MB", "unread kB", "again kB", "kept", "wrong", "s")
    table = Table(*columns, title=f"kill -9, seed {seed}")
    for number, row in enumerate(rows, 1):
        counts = (f"{row.sent / 1e6:.2f}", f"{row.unread / 1e3:.1f}", f"{row.again / 1e3:.1f}", f"{row.kept:.1%}")
        table.add_row(str(number), row.source, *counts, ", ".join(row.wrong) or "none", f"{row.seconds:.1f}")
    good, least = sum(row.good for row in rows), min(row.kept for row in rows)
    Console().print(
        table, f"{good}/{kills} without a wrong file and with 90 % kept; the least that was kept: {least:.1%}"
    )
    return 0 if good == kills else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
