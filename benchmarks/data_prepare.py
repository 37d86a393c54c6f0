"""Rows to parquet, against the `datasets` library in one run.

`python benchmarks/data_prepare.py PYTHON`, of an environment with datasets.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROWS, MOST, REPEATS = 1_000_000, 4_000_000, 3
ENOUGH, BOUND, FLAT = 10.0, 600, 1.15
QUIET = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}

NAMES = ("Natalia", "James", "Weng", "Ken", "Betty", "Julie", "Mark", "Albert", "Joy", "Randy", "Tina", "Carlos")
THINGS = ("clips", "books", "apples", "stickers", "pages", "cups", "boxes", "shirts", "tickets", "flowers")


def rows(count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Problems that differ in names, numbers and length; each solution ends in `#### number`."""
    draw = random.Random(seed)
    for _ in range(count):
        one, other, thing = draw.choice(NAMES), draw.choice(NAMES), draw.choice(THINGS)
        a, b, c = draw.randint(2, 999), draw.randint(2, 99), draw.randint(2, 30)
        question = (
            f"{one} sold {a} {thing} in April, and then sold {b} more than that in May. Every one of the {thing} costs"
            f' {c} dollars, and "half" of the money goes to {other}.'
        )
        question += " It rained on most of the days, but nobody minded that." * draw.randint(0, 2)
        question += f" How many dollars did {one} and {other} get altogether in April and May?"
        may, sold = a + b, 2 * a + b
        solution = (
            f"In May {a}+{b}=<<{a}+{b}={may}>>{may} {thing} were sold.\n"
            f"Altogether that makes {a}+{may}=<<{a}+{may}={sold}>>{sold}.\n"
            f"They got {c}*{sold}=<<{c}*{sold}={c * sold}>>${c * sold:,}.\n#### {c * sold:,}"
        )
        yield {"question": question, "answer": solution}


def write(count: int, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows(count):
            file.write(json.dumps(row) + "\n")


def ran(command: list[str]) -> tuple[dict[str, object], float, float]:
    """What the command printed last, its CPU seconds, and its peak memory in MiB. It has to succeed."""
    reader, writer = os.pipe()
    pid = os.posix_spawn(
        command[0], command, os.environ | QUIET,
        file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_CLOSE, reader)],
    )  # fmt: skip
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as output:
        text = output.read()
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return json.loads(text[text.index("{") :]), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def prepare(source: Path, folder: Path) -> tuple[Path, float, float, float]:
    """Ours: the file, CPU seconds of the work and of the whole process, and its peak memory in MiB."""
    out = folder / "ours"
    made, whole, peak = ran([sys.executable, str(HERE / "data_ours.py"), str(source), str(out)])
    return out / "train.parquet", float(str(made["cpu_s"])), whole, peak


def same(ours: Path, theirs: Path) -> bool:
    """Whether the two files hold equal rows in equal order."""
    one, other = pq.ParquetFile(ours), pq.ParquetFile(theirs)
    columns = one.schema_arrow.names
    if one.metadata.num_rows != other.metadata.num_rows or set(columns) != set(other.schema_arrow.names):
        return False
    left, right = (file.iter_batches(10_000, columns=columns) for file in (one, other))
    return all(a.to_pylist() == b.to_pylist() for a, b in zip(left, right, strict=True))


def compare_preparing(peer: str, folder: Path, table: Table) -> bool:
    small, large = folder / "rows.jsonl", folder / "most.jsonl"
    write(ROWS, small)
    ratios, wholes, peaks, ours, theirs = [], [], [], [], []
    for number in range(REPEATS):
        made, cpu, whole, peak = prepare(small, folder)
        out = folder / "peer.parquet"
        other, their_whole, their_peak = ran([peer, str(HERE / "datasets_peer.py"), str(small), str(out)])
        if number == 0 and not same(made, out):
            sys.exit("the two did not write equal rows")
        ours.append(ROWS / cpu)
        theirs.append(ROWS / float(str(other["cpu_s"])))
        ratios.append(ours[-1] / theirs[-1])
        wholes.append(their_whole / whole)
        peaks.append(peak)
        shutil.rmtree(f"{out}.cache")
    ratio = statistics.median(ratios)
    table.add_row(
        f"{ROWS:,} rows to parquet", f"{statistics.median(ours):,.0f}", f"{statistics.median(theirs):,.0f}",
        f"{ratio:.1f} ({min(ratios):.1f}–{max(ratios):.1f})", f"≥ {ENOUGH:.0f}",
        f"{max(peaks):.0f} / {their_peak:.0f}", f"≤ {BOUND}",
    )  # fmt: skip
    table.add_row("  from the start of the process", "", "", f"{statistics.median(wholes):.1f}", "", "", "")
    small.unlink()
    write(MOST, large)
    _, cpu, _, peak = prepare(large, folder)
    flat = peak / statistics.median(peaks)
    table.add_row(
        f"{MOST:,} rows to parquet",
        f"{MOST / cpu:,.0f}",
        "",
        "",
        "",
        f"{peak:.0f}, {flat:.2f} times",
        f"≤ {FLAT} times",
    )
    large.unlink()
    return ratio >= ENOUGH and max(*peaks, peak) <= BOUND and flat <= FLAT


def main() -> None:
    table = Table(title=f"rows a CPU second: ours / datasets, medians of {REPEATS}")
    for column in ("work", "ours", "datasets", "ratio (range)", "bound", "peak MiB", "bound"):
        table.add_column(column)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = compare_preparing(sys.argv[1], folder, table)
    Console(width=120).print(table)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
