"""Memory, speed and the numbers of merging large models: `python benchmarks/merge.py [--mb 1000]`.

A base and two models that moved a little from it are made of random numbers in a temporary folder. Each method merges
them by the real command, in a process of its own that tells its peak memory (VmHWM: libraries count, the cache of files
does not). Then each tensor is computed again by numpy in float64 and compared. Ends with 1 when a result is more than
an ulp off, or when memory above that of Python with torch is more than `WIDE` wide copies of the largest tensor.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

TELL = """
import sys
from pathlib import Path
from launcher.cli.main import app
try:
    app(sys.argv[1:], standalone_mode=False) if sys.argv[1:] else None
finally:
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""
BARE = TELL.replace("from launcher.cli.main import app", "import torch")
COLUMNS, ROWS = 1024, (1024, 4096, 256)
WIDE = 16  # copies of the largest tensor: three models as stored and widened, changes, signs and votes of TIES
FILE_BYTES = 250_000_000


def save_models(folder: Path, dtype: torch.dtype, size: int) -> int:
    """`base`, `x` and `y` of so many numbers, in files as the hub has them; how many numbers the largest tensor has."""
    generator = torch.Generator().manual_seed(0)
    rows = [max(size // 4 // COLUMNS, 1)]  # an embedding of a quarter, and layers of a few sizes
    while sum(rows) * COLUMNS < size:
        rows.append(ROWS[len(rows) % 3])
    parts: dict[str, dict[str, Tensor]] = {"base": {}, "x": {}, "y": {}}
    places: dict[str, str] = {}
    for number, count in enumerate(rows):
        start = torch.randn(count, COLUMNS, generator=generator) * 0.02
        for name, part in parts.items():
            moved = 0.0 if name == "base" else 0.004
            part[f"w{number}"] = (start + moved * torch.randn(count, COLUMNS, generator=generator)).to(dtype)
        places[f"w{number}"] = f"part-{number}.safetensors"
        for name, part in parts.items():
            (folder / name).mkdir(exist_ok=True)
            save_file(part, folder / name / f"part-{number}.safetensors", metadata={"format": "pt"})
            part.clear()
    for name in parts:
        (folder / name / "config.json").write_text('{"model_type": "random"}')
        (folder / name / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return max(rows) * COLUMNS


def slerp(x: np.ndarray, y: np.ndarray, base: np.ndarray) -> np.ndarray:
    cosine = float((x / np.linalg.norm(x)).ravel() @ (y / np.linalg.norm(y)).ravel())
    if abs(cosine) > 0.9995:
        return 0.5 * x + 0.5 * y
    share = np.sin(0.5 * np.arccos(cosine)) / np.sin(np.arccos(cosine))
    return share * x + share * y


def ties(x: np.ndarray, y: np.ndarray, base: np.ndarray) -> np.ndarray:
    trimmed = []
    for change in (x - base, y - base):
        size = np.abs(change)
        count = max(round(0.2 * size.size), 1)
        trimmed.append(np.where(size >= np.partition(size, size.size - count, axis=None)[-count], change, 0.0))
    sign = np.sign(sum(trimmed))
    agreed = [np.where(np.sign(change) == sign, change, 0.0) for change in trimmed]
    return base + sum(agreed) / np.maximum(sum(change != 0 for change in agreed), 1)


FORMULAS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "linear": lambda x, y, base: 0.5 * x + 0.5 * y,
    "slerp": slerp,
    "ties": ties,
}


def rank(values: Tensor) -> Tensor:
    """The number's place among all numbers of its format, so that neighbours differ by 1."""
    wide = values.dtype == torch.float32
    bits = values.view(torch.int32 if wide else torch.int16).long()
    return torch.where(bits < 0, -(bits + (1 << (31 if wide else 15))), bits)


def furthest(method: str, folder: Path, out: Path) -> int:
    """The most ulps that the result is off. Numbers near 0, where models cancel, are compared by the models' size."""
    most = 0
    places = json.loads((folder / "x" / "model.safetensors.index.json").read_text())["weight_map"]
    held = {name: file for file in out.glob("*.safetensors") for name in names(file)}
    assert held.keys() == places.keys()
    for name, file in places.items():
        x, y, base = (read(folder / of / file, name).double().numpy() for of in ("x", "y", "base"))
        merged = read(held[name], name)
        expected = torch.from_numpy(FORMULAS[method](x, y, base)).to(merged.dtype)
        large = expected.double().abs() > 1e-3 * float(np.abs(x).max())
        most = max(most, int((rank(merged) - rank(expected)).abs()[large].max()))
    return most


def names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())


def read(file: Path, name: str) -> Tensor:
    with safe_open(file, framework="pt") as opened:
        return opened.get_tensor(name)


def run(code: str, words: list[str]) -> tuple[float, float, int]:
    """Seconds, CPU seconds and peak memory in bytes of a process."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu, int(ran.stdout.split()[-1]) * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000, help="size of each model")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"], choices=["bfloat16", "float32"])
    parser.add_argument("--at", type=Path, help="where the temporary folder is made")
    options = parser.parse_args()
    bare = run(BARE, [])[2]
    table = Table("method", "format", "s", "CPU s", "MB/s", "peak MB above it", "allowed", "ulps off, ≤ 1",
                  title=f"merging models of {options.mb} MB; Python with torch takes {bare / 1e6:.0f} MB")  # fmt: skip
    good = True
    for dtype in (getattr(torch, name) for name in options.dtypes):
        with tempfile.TemporaryDirectory(dir=options.at) as scratch:
            folder = Path(scratch)
            largest = save_models(folder, dtype, options.mb * 1_000_000 // dtype.itemsize)
            allowed = WIDE * 2 * dtype.itemsize * largest + 100_000_000
            for method in FORMULAS:
                out = folder / f"out-{method}"
                base = ["--base", str(folder / "base")] if method == "ties" else []
                models = [str(folder / "x"), str(folder / "y")]
                seconds, cpu, peak = run(
                    TELL, ["model", "merge", *models, "--method", method, "--out", str(out), *base]
                )
                off = furthest(method, folder, out)
                good = good and off <= 1 and peak - bare <= allowed
                table.add_row(method, str(dtype), f"{seconds:.1f}", f"{cpu:.1f}", f"{options.mb / seconds:.0f}",
                              f"{(peak - bare) / 1e6:.0f}", f"{allowed / 1e6:.0f}", str(off))  # fmt: skip
    Console().print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
