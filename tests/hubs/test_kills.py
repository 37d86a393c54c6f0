"""`rlrun model download` in a process of its own, killed at some byte, and started again: no wrong byte gets a file's
name, and only files that were under way are downloaded again. ModelScope's client resumes those, Hugging Face's (2.4)
begins them anew. `make downloads` kills 30 times, at random bytes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

KILLS = int(os.environ.get("KILLED_DOWNLOADS", "0"))
SIZE, FILES, WORKERS = 6_000_000, 2, 2
DRAWN = random.Random(int(os.environ.get("SEED", "0")))
CASES = [("huggingface", 2_000_000), ("modelscope", 7_000_000)] + [
    (("huggingface", "xet", "modelscope")[number % 3], DRAWN.randrange(SIZE * FILES)) for number in range(KILLS)
]


def start_download(hub: Any, source: str, to: Path) -> subprocess.Popen[bytes]:
    name = "huggingface" if source == "xet" else source
    words = ["model", "download", "o/m", "--source", name, "--to", str(to), "--workers", str(WORKERS)]
    environment = {**os.environ, **hub.environment()}
    call = [sys.executable, "-m", "launcher", *words]
    return subprocess.Popen(call, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wrong_files(folder: Path, files: dict[str, bytes]) -> list[str]:
    return [name for name, data in files.items() if (folder / name).exists() and (folder / name).read_bytes() != data]


@pytest.mark.parametrize(("source", "at"), CASES)
def test_a_killed_download_continues(source: str, at: int, hub: Any, noise: Any, download: Any) -> None:
    weights = {f"model-{number}.safetensors": noise(SIZE, number) for number in range(FILES)}
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(weights)}}
    files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(), **weights}
    hub.add("o/m", files, xet=source == "xet")
    hub.bytes_per_s = 8e6  # of each file, so that there is a moment to kill at
    process = start_download(hub, source, to := download.folder)
    while process.poll() is None and hub.total < at:
        time.sleep(0.001)
    assert process.poll() is None, "it was not killed on its way"
    process.kill()
    process.wait()
    time.sleep(0.1)  # the servers notice it
    assert wrong_files(to, files) == []
    sent, needed = hub.total, sum(len(data) for name, data in files.items() if not (to / name).exists())
    unverified = sum(path.stat().st_size for path in (to / ".rlrun" / "partial").rglob("*") if path.is_file())
    hub.bytes_per_s = None
    assert start_download(hub, source, to).wait() == 0
    assert download.holds(files)
    assert hub.total - sent <= 1.01 * needed - (0.9 * unverified if source == "modelscope" else 0)
