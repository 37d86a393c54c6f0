"""Merging large models: memory, speed, and the result against the formula: `python benchmarks/merge.py [--mb 1000]`.

Three models of random numbers are made in a temporary folder: a base, and two that moved a little from it. Every
method merges them by the real command, in a process of its own that tells its peak memory (VmHWM: libraries count,
the cache of files does not). Then each tensor is computed again, whole and in float64 by torch, rounded once, and
compared with what was written. Ends with 1 when a result is more than an ulp off or the memory more than the bound.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

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
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COLUMNS = 1024
FILE_BYTES = 250_000_000


@dataclass(frozen=True)
class Found:
    """What one merge cost, and how far from the formula it came out."""

    method: str
    dtype: str
    seconds: float
    cpu_s: float
    peak_bytes: int
    ulps: int
    differ: int
    """Numbers that are not equal to the last bit."""


def shapes(size: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """An embedding of a quarter of so many numbers, and layers of a few sizes."""
    yield "model.embed_tokens.weight", (max(size // 4 // COLUMNS, 1), COLUMNS)
    left, number = size * 3 // 4, 0
    while left > 0:
        rows = min((1024, 4096, 256)[number % 3], -(-left // COLUMNS))
        yield f"model.layers.{number}.weight", (rows, COLUMNS)
        left, number = left - rows * COLUMNS, number + 1


def make(folder: Path, dtype: torch.dtype, size: int) -> None:
    """`base`, `x` and `y`, in files as the hub has them."""
    generator = torch.Generator().manual_seed(0)
    for name in ("base", "x", "y"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text('{"model_type": "random"}')
    part: dict[str, dict[str, Tensor]] = {"base": {}, "x": {}, "y": {}}
    place: dict[str, str] = {}
    number = 1
    for tensor, shape in shapes(size):
        start = torch.randn(shape, generator=generator) * 0.02
        part["base"][tensor] = start.to(dtype)
        for name in ("x", "y"):
            part[name][tensor] = (start + torch.randn(shape, generator=generator) * 0.004).to(dtype)
        place[tensor] = f"part-{number}.safetensors"
        if sum(value.nbytes for value in part["x"].values()) >= FILE_BYTES:
            number = save(folder, part, number)
    if part["x"]:
        save(folder, part, number)
    for name in part:
        (folder / name / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))


def save(folder: Path, part: dict[str, dict[str, Tensor]], number: int) -> int:
    for name, tensors in part.items():
        save_file(tensors, folder / name / f"part-{number}.safetensors", metadata={"format": "pt"})
        tensors.clear()
    return number + 1


# ---- the formulas, of whole tensors


def slerp(x: Tensor, y: Tensor, base: Tensor) -> Tensor:
    cosine = ((x * y).sum() / x.norm() / y.norm()).item()
    if abs(cosine) > 0.9995:
        return 0.5 * x + 0.5 * y
    share = math.sin(0.5 * math.acos(cosine)) / math.sin(math.acos(cosine))
    return share * x + share * y


def ties(x: Tensor, y: Tensor, base: Tensor) -> Tensor:
    total, votes, kept = torch.zeros_like(base), torch.zeros_like(base), []
    for model in (x, y):
        change = model - base
        size = change.abs().flatten()
        least = size.kthvalue(size.numel() - max(round(0.2 * size.numel()), 1) + 1).values
        kept.append(torch.where(change.abs() >= least, change, 0.0))
    sign = (kept[0] + kept[1]).sign()
    for change in kept:
        agree = (change.sign() == sign) & (sign != 0)
        total += torch.where(agree, change, 0.0)
        votes += agree
    return base + total / votes.clamp(min=1)


FORMULAS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "linear": lambda x, y, base: 0.5 * x + 0.5 * y,
    "slerp": slerp,
    "ties": ties,
}


def place(values: Tensor) -> Tensor:
    """The number's place among all numbers of its format, so that neighbours differ by 1."""
    wide = values.dtype == torch.float32
    bits = values.view(torch.int32 if wide else torch.int16).long()
    return torch.where(bits < 0, -(bits + (1 << (31 if wide else 15))), bits)


def compared(method: str, folder: Path, out: Path) -> tuple[int, int]:
    """The most ulps that the result is off, and how many numbers are off at all."""
    most, differ = 0, 0
    held = {name: tensors(folder / name) for name in ("x", "y", "base")} | {"out": tensors(out)}
    assert held["out"].keys() == held["x"].keys()
    for name in held["out"]:
        x, y, base, found = (read(held[of][name], name) for of in ("x", "y", "base", "out"))
        expected = FORMULAS[method](x.double(), y.double(), base.double()).to(found.dtype)
        off = (place(found) - place(expected)).abs()
        most, differ = max(most, int(off.max())), differ + int((off != 0).sum())
    return most, differ


def tensors(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            found |= dict.fromkeys(opened.keys(), file)
    return found


def read(file: Path, name: str) -> Tensor:
    with safe_open(file, framework="pt") as opened:
        return opened.get_tensor(name)


# ---- measuring


def run(code: str, words: list[str]) -> tuple[float, float, int]:
    """Seconds, CPU seconds and peak memory in bytes of a process."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu, int(ran.stdout.split()[-1]) * 1024


def measured(method: str, dtype: str, folder: Path, bare: int) -> Found:
    out = folder / f"out-{method}"
    base = ["--base", str(folder / "base")] if method == "ties" else []
    words = ["model", "merge", str(folder / "x"), str(folder / "y"), "--method", method, "--out", str(out), *base]
    seconds, cpu, peak = run(TELL, words)
    ulps, differ = compared(method, folder, out)
    for file in out.iterdir():
        file.unlink()
    return Found(method, dtype, seconds, cpu, peak - bare, ulps, differ)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000, help="size of each model")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"], choices=FORMATS)
    parser.add_argument("--most-mb", type=int, default=400, help="memory above that of python with torch loaded")
    parser.add_argument("--at", type=Path, help="where the temporary folder is made")
    asked = parser.parse_args()
    bare = run(BARE, [])[2]
    found = []
    for dtype in asked.dtypes:
        with tempfile.TemporaryDirectory(dir=asked.at) as folder:
            make(Path(folder), FORMATS[dtype], asked.mb * 1_000_000 // FORMATS[dtype].itemsize)
            found += [measured(method, dtype, Path(folder), bare) for method in FORMULAS]
    title = f"merging two models of {asked.mb} MB; an interpreter with torch takes {bare / 1e6:.0f} MB"
    table = Table("method", "format", "s", "CPU s", "MB/s", f"peak MB above it, ≤ {asked.most_mb}", "ulps off, ≤ 1",
                  "numbers off", title=title)  # fmt: skip
    for one in found:
        table.add_row(
            one.method, one.dtype, f"{one.seconds:.1f}", f"{one.cpu_s:.1f}", f"{asked.mb / one.seconds:.0f}",
            f"{one.peak_bytes / 1e6:.0f}", str(one.ulps), f"{one.differ:,}",
        )  # fmt: skip
    Console().print(table)
    return 0 if all(one.ulps <= 1 and one.peak_bytes <= asked.most_mb * 1e6 for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
