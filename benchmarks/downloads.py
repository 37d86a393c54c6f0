"""Kill `rlrun model download` with SIGKILL at random bytes: `python benchmarks/downloads.py KILLS [SEED]`.

A hub on this machine speaks to the real clients and counts what it sends. Each download is killed once the hub has
sent a random number of bytes, and started again. No file may ever have a final name and wrong bytes, and only the files
that were under way may be downloaded again: ModelScope's client resumes them, Hugging Face's (2.4) begins them anew,
over HTTP and over Xet.
What the hub sent and the process never took from its sockets has a column of its own. Ends with 1 when one row fails.
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

SIZES = {f"model-{number:05}-of-00016.safetensors": 4_000_000 for number in range(1, 17)}
WORKERS = 4
SOURCES = ("huggingface", "xet", "modelscope")
SPEED = 6e6  # bytes a second of each file, so that there is a moment to kill at
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
        return not self.wrong and self.again - self.unread <= 1.01 * WORKERS * max(SIZES.values())


def random_model(rng: random.Random) -> dict[str, bytes]:
    weights = {name: rng.randbytes(size) for name, size in SIZES.items()}
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(weights)}}
    texts = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
    return {**texts, **weights}


def start_download(hub: LocalHub, source: str, to: Path) -> subprocess.Popen[bytes]:
    hub_name = "huggingface" if source == "xet" else source
    words = ["model", "download", "o/m", "--source", hub_name, "--to", str(to), "--workers", str(WORKERS)]
    environment = {**os.environ, **hub.environment(), "HF_HOME": str(to.parent / "hf")}
    call = [sys.executable, "-m", "launcher", *words]
    return subprocess.Popen(call, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wrong_files(folder: Path, files: Mapping[str, bytes], *, all_there: bool) -> list[str]:
    found = []
    for name, data in files.items():
        path = folder / name
        if path.exists():
            same = hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(data).digest()
            found += [] if same else [name]
        elif all_there:
            found.append(f"{name} is missing")
    return found


def unread_bytes(ports: set[int]) -> int:
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


def kill_once(source: str, at: int, rng: random.Random) -> Kill:
    """Kill once `at` bytes were sent, start again, and look."""
    started = time.monotonic()
    with serving() as hub, tempfile.TemporaryDirectory() as scratch:
        files, to = random_model(rng), Path(scratch) / "to"
        hub.add("o/m", files, xet=source == "xet")
        hub.bytes_per_s = SPEED
        process = start_download(hub, source, to)
        while process.poll() is None and hub.total < at and time.monotonic() - started < LONGEST_S:
            time.sleep(0.001)
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)  # what is on its way arrives
        sent, unread = hub.total, unread_bytes({hub.hub.server_port, hub.cdn.server_port})
        process.kill()
        process.wait()
        found = wrong_files(to, files, all_there=False)
        hub.bytes_per_s = None
        code = start_download(hub, source, to).wait()
        found += wrong_files(to, files, all_there=True) + ([f"ended with {code}"] if code else [])
        again = hub.total - sum(map(len, files.values()))
        return Kill(source, sent, unread, again, found, time.monotonic() - started)


def main(kills: int, seed: int) -> int:
    rng = random.Random(seed)
    rows = [kill_once(SOURCES[number % 3], rng.randrange(sum(SIZES.values())), rng) for number in range(kills)]
    table = Table("hub", "at MB", "again kB", "kept", "wrong", "s", title=f"kill -9, seed {seed}")
    for row in sorted(rows, key=lambda row: (row.source, row.kept)):
        again, wrong = f"{row.again / 1e3:.1f}", ", ".join(row.wrong) or "none"
        table.add_row(row.source, f"{row.sent / 1e6:.2f}", again, f"{row.kept:.1%}", wrong, f"{row.seconds:.1f}")
    good = sum(row.good for row in rows)
    Console().print(table, f"{good}/{kills} without a wrong file, and with every complete file kept")
    return 0 if good == kills else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
