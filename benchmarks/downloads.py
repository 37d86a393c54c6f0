"""Kill `rlrun model download` with SIGKILL at random bytes: `python benchmarks/downloads.py KILLS [SEED]`.

A hub on this machine speaks to the real clients and counts what it sends. Each download is killed once the hub has
sent a random number of bytes, and started again. No file may ever have a final name and wrong bytes, and of what was
sent before the kill, also of what still lay in a socket, at most a tenth may be sent again. Ends with 1 when one row
fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
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
    again: int
    """Bytes it sent twice."""
    wrong: list[str]
    """Files that had a name and other bytes, after the kill or at the end."""
    seconds: float

    @property
    def kept(self) -> float:
        return 1 - self.again / self.sent if self.sent else 1.0

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
        process.kill()
        process.wait()
        time.sleep(0.1)  # the hub notices
        sent, found = hub.total, wrong(to, files, all_there=False)
        hub.bytes_per_s = None
        code = begin(hub, source, to).wait()
        found += wrong(to, files, all_there=True) + ([f"ended with {code}"] if code else [])
        return Kill(source, sent, hub.total - sum(map(len, files.values())), found, time.monotonic() - started)


def main(kills: int, seed: int) -> int:
    rng = random.Random(seed)
    whole = sum(SIZES.values())
    rows = [one(("huggingface", "modelscope")[number % 2], rng.randrange(whole), rng) for number in range(kills)]
    table = Table("kill", "hub", "after MB", "sent again kB", "kept", "wrong files", "s", title=f"kill -9, seed {seed}")
    for number, row in enumerate(rows, 1):
        told = ", ".join(row.wrong) or "none"
        table.add_row(str(number), row.source, f"{row.sent / 1e6:.2f}", f"{row.again / 1e3:.1f}", f"{row.kept:.1%}",
                      told, f"{row.seconds:.1f}")  # fmt: skip
    good, least = sum(row.good for row in rows), min(row.kept for row in rows)
    Console().print(
        table, f"{good}/{kills} without a wrong file and with 90 % kept; the least that was kept: {least:.1%}"
    )
    return 0 if good == kills else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
