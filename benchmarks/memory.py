"""The memory estimate against the measured peak of real runs: `python benchmarks/memory.py [--device cuda]`.

On a CPU what is measured is the most that the training process ever had resident (VmHWM); on a GPU it is
`perf/max_memory_allocated_gb`. Models and rows are made here. Ends with 1 when the median error is over 10 %, one is
over 25 %, or a limit that the run went over was called enough.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from memory_settings import FITTED, HELD_OUT, ON_GPU, Setting, write_rows
from rich.console import Console
from rich.table import Table
from watching import QUIET, tree

from launcher.config.resolve import resolve
from launcher.core.events import Step, events_of
from launcher.preflight.checks.memory import check_memory
from launcher.spec.run import RunSpec

RLRUN = (sys.executable, "-m", "launcher")
WORKER = b"launcher.engines.torch.worker"
POLL_S = 0.01
MEDIAN, WORST = 0.10, 0.25
MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Measured:
    """One setting, estimated and measured, in bytes."""

    name: str
    estimate: int
    peak: int
    held_out: bool
    trusted: bool
    """Whether a limit just under the peak was called enough."""

    @property
    def error(self) -> float:
        return self.estimate / self.peak - 1


def peak_of(words: list[str], folder: Path, device: str) -> int:
    """Bytes of the training process of a real run."""
    resident, log = 0, folder / "said"
    typed = [*RLRUN, "train", *words, "trainer.experiment_name=m", "trainer.keep_last=1"]
    with log.open("wb") as out, subprocess.Popen(
        typed, cwd=folder, env={**os.environ, **QUIET}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
    ) as process:  # fmt: skip
        while process.poll() is None:
            resident = max([resident, *map(high_water, tree(process.pid))])
            time.sleep(POLL_S)
    if process.returncode:
        sys.exit(f"{' '.join(words)}\nended with {process.returncode}:\n{log.read_text()[-3000:]}")
    steps = [event.metrics for event in events_of(folder / "runs/rlrun/m/events.jsonl") if isinstance(event, Step)]
    return resident if device == "cpu" else int(steps[-1]["perf/max_memory_allocated_gb"] * GIB)


def high_water(pid: int) -> int:
    """The most that a training process has had resident; 0 for any other."""
    try:
        if WORKER not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return 0
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def estimate_of(run: RunSpec) -> int:
    memory = run.engine.memory(run)
    assert memory
    return memory.peak_bytes


def measure(setting: Setting, root: Path, device: str) -> Measured:
    model = root / setting.model
    if not model.is_dir():
        code = f"from memory_settings import *; write_model(Path({str(model)!r}), SHAPES[{setting.model!r}])"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent, env=os.environ | QUIET)
    write_rows(root, setting.prompt, setting.response)
    words = setting.words(root, root, device)
    run = resolve(words)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        peak = peak_of(words, Path(folder), device)
    called = check_memory(run, peak - 1)
    fits = all(result.level == "OK" for result in called)
    return Measured(setting.name, estimate_of(run), peak, setting in HELD_OUT, fits)


def table(found: list[Measured], device: str) -> Table:
    what = "resident" if device == "cpu" else "allocated"
    shown = Table("setting", "estimate MiB", f"{what} MiB", "error", "", title="peak memory of the training process")
    for one in found:
        how = "held out" if one.held_out else ""
        shown.add_row(one.name, f"{one.estimate / MIB:,.0f}", f"{one.peak / MIB:,.0f}", f"{one.error:+.1%}", how)
    return shown


def judged(found: list[Measured], out: Console) -> bool:
    """Whether the estimate is as good as it must be."""
    errors = [abs(one.error) for one in found]
    for name, part in (("all", found), ("held out", [one for one in found if one.held_out])):
        if part:
            of_part = [abs(one.error) for one in part]
            out.print(f"{name}: median error {median(of_part):.1%}, worst {max(of_part):.1%}, {len(part)} settings")
    wrong = [one.name for one in found if one.trusted]
    out.print(f'said "fits" of a limit under the peak: {len(wrong)} {wrong or ""}')
    return median(errors) <= MEDIAN and max(errors) <= WORST and not wrong


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    asked.add_argument("--only", default="", help="settings whose name has this in it")
    asked.add_argument("--json", type=Path, help="file for the figures")
    given = asked.parse_args()
    out = Console(width=130)
    with tempfile.TemporaryDirectory() as root:
        chosen = FITTED + HELD_OUT if given.device == "cpu" else ON_GPU
        found = []
        for setting in (setting for setting in chosen if given.only in setting.name):
            found.append(measure(setting, Path(root), given.device))
            out.print(f"{found[-1].name}: {found[-1].error:+.1%}", highlight=False)
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    out.print(table(found, given.device))
    return 0 if judged(found, out) else 1


if __name__ == "__main__":
    sys.exit(main())
