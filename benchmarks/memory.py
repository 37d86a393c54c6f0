"""The memory estimate against the measured peak of real runs on this CPU: `python benchmarks/memory.py`.

What is measured is the most that the training process ever had resident (VmHWM). Models and rows are made here. Ends
with 1 when the median error is over 10 %, one is over 25 %, or a limit that the run went over was called enough.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from memory_settings import SETTINGS, Setting, write_rows
from rich.console import Console
from rich.table import Table
from watching import QUIET, tree

from launcher.config.resolve import resolve
from launcher.preflight.checks.memory import check_memory

RLRUN = (sys.executable, "-m", "launcher")
WORKER = b"launcher.engines.torch.worker"
POLL_S = 0.01
MEDIAN, WORST = 0.10, 0.25
MIB = 2**20


@dataclass(frozen=True)
class Measured:
    """One setting, estimated and measured, in bytes."""

    name: str
    estimate: int
    peak: int
    trusted: bool
    """Whether a limit just under the peak was called enough."""

    @property
    def error(self) -> float:
        return self.estimate / self.peak - 1


def peak_of(words: list[str], folder: Path) -> int:
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
    return resident


def high_water(pid: int) -> int:
    """The most that a training process has had resident; 0 for any other."""
    try:
        if WORKER not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return 0
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def measure(setting: Setting, root: Path) -> Measured:
    model = root / setting.model
    if not model.is_dir():
        code = f"from memory_settings import *; write_model(Path({str(model)!r}), SHAPES[{setting.model!r}])"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent, env=os.environ | QUIET)
    write_rows(root, setting.prompt, setting.response)
    words = setting.words(root)
    run = resolve(words)
    memory = run.engine.memory(run)
    assert memory
    with tempfile.TemporaryDirectory(dir=root) as folder:
        peak = peak_of(words, Path(folder))
    called = check_memory(run, peak - 1)
    fits = all(result.level == "OK" for result in called)
    return Measured(setting.name, memory.peak_bytes, peak, fits)


def table(found: list[Measured]) -> Table:
    shown = Table("setting", "estimate MiB", "resident MiB", "error", title="peak memory of the training process")
    for one in found:
        shown.add_row(one.name, f"{one.estimate / MIB:,.0f}", f"{one.peak / MIB:,.0f}", f"{one.error:+.1%}")
    return shown


def judged(found: list[Measured], out: Console) -> bool:
    """Whether the estimate is as good as it must be."""
    errors = [abs(one.error) for one in found]
    out.print(f"median error {median(errors):.1%}, worst {max(errors):.1%}, {len(found)} settings")
    wrong = [one.name for one in found if one.trusted]
    out.print(f'said "fits" of a limit under the peak: {len(wrong)} {wrong or ""}')
    return median(errors) <= MEDIAN and max(errors) <= WORST and not wrong


def main() -> int:
    out = Console(width=130)
    with tempfile.TemporaryDirectory() as root:
        found = []
        for setting in SETTINGS:
            found.append(measure(setting, Path(root)))
            out.print(f"{found[-1].name}: {found[-1].error:+.1%}", highlight=False)
    out.print(table(found))
    return 0 if judged(found, out) else 1


if __name__ == "__main__":
    sys.exit(main())
