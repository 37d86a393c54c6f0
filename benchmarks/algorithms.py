"""Every RL algorithm on the quickstart's task: `python benchmarks/algorithms.py [--write]`.

Each seed learns by imitation first, then every algorithm goes on from there with equal settings. Ends with 1 when
one of them does not raise the held-out accuracy by the required minimum. `--write` keeps the table and the
curves in docs/.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from launcher.core.events import Step, events_of

ROOT = Path(__file__).parents[1]
HEADING = "## Measured on one task\n"
"""The section of docs/algorithms.md that is written here; it is the last one."""
SEEDS, STEPS, LEAST = 3, 100, 0.15
ACCURACY = "val-core/reverse/reward/mean@1"
LEARNT = "optim.lr=3e-3 optim.lr_warmup_steps=20 data.train_batch_size=32 trainer.micro_batch_size_per_gpu=32"
COMMON = (
    "data.train_batch_size=32 trainer.ppo_mini_batch_size=16 sampler.n=8 optim.lr=5e-4 optim.lr_warmup_steps=5"
    " trainer.micro_batch_size_per_gpu=256"
)
ALGORITHMS: Mapping[str, str] = {
    "PPO": "algorithm=ppo critic.optim.lr=1e-3",
    "GRPO": "algorithm=grpo",
    "Dr. GRPO": "algorithm=dr_grpo",
    "GSPO": "algorithm=gspo",
    "DAPO": "algorithm=dapo algorithm.overlong_buffer_len=2",
    "GSPO self-play": "algorithm=gspo_selfplay",
}

Curve = Mapping[int, float]


@dataclass(frozen=True)
class Runs:
    """Where the runs of one seed lie."""

    root: Path
    seed: int

    def train(self, name: str, words: str, steps: int) -> Curve:
        """Held-out accuracy by step."""
        typed = (
            f"{words} data=reverse seed={self.seed} trainer.total_training_steps={steps} trainer.test_freq=10"
            f" trainer.run_root={self.root} trainer.project_name=seed-{self.seed} trainer.experiment_name={name}"
            " optim.betas=[0.9,0.95] engine.num_threads=1"
        )
        command = [sys.executable, "-m", "launcher", "train", *typed.split()]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        log = self.root / f"seed-{self.seed}" / name / "events.jsonl"
        steps_told = (event for event in events_of(log) if isinstance(event, Step))
        return {event.step: event.metrics[ACCURACY] for event in steps_told if ACCURACY in event.metrics}

    def all(self) -> dict[str, Curve]:
        self.train("sft", f"algorithm=sft model=tiny {LEARNT}", 1000)
        start = f"model=hf model.path={self.root}/seed-{self.seed}/sft"
        return {
            name: self.train(name.replace(" ", "").replace(".", "").lower(), f"{words} {start} {COMMON}", STEPS)
            for name, words in ALGORITHMS.items()
        }


def rise(curve: Curve) -> float:
    return curve[max(curve)] - curve[0]


def table(found: Sequence[Mapping[str, Curve]]) -> Table:
    """Held-out accuracy before and after, of all seeds."""
    made = Table(box=MARKDOWN)
    for column in ("algorithm", "before", "after", "least rise", "required"):
        made.add_column(column, justify="left" if column == "algorithm" else "right")
    for name in ALGORITHMS:
        curves = [curves[name] for curves in found]
        before, after = (" ".join(f"{curve[step(curve)]:.2f}" for curve in curves) for step in (min, max))
        made.add_row(name, before, after, f"{min(map(rise, curves)):.2f}", f"≥ {LEAST}")
    return made


def write(found: Sequence[Mapping[str, Curve]], made: Table) -> None:
    """The last section of docs/algorithms.md, and docs/algorithms.svg."""
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(made)
    page = ROOT / "docs" / "algorithms.md"
    before = page.read_text(encoding="utf-8").partition(HEADING)[0]
    page.write_text(
        f"""{before}{HEADING}
Reverse a word (`data=reverse`): a tiny model imitates demonstrations of which half are wrong, then each algorithm
goes on from there for {STEPS} steps. Held-out accuracy on a CPU, seeds 0 to {SEEDS - 1} (`make docs`):

{console.export_text().strip()}

![held-out accuracy by step, mean of the seeds](algorithms.svg)
""",
        encoding="utf-8",
    )
    draw(found, ROOT / "docs" / "algorithms.svg")


def draw(found: Sequence[Mapping[str, Curve]], path: Path) -> None:
    import matplotlib  # noqa: PLC0415  # only needed for the picture

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rlrun"  # equal curves, equal file
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name in ALGORITHMS:
        steps = sorted(found[0][name])
        axes.plot(steps, [mean(curves[name][step] for curves in found) for step in steps], label=name, linewidth=2)
    axes.set(xlabel="step", ylabel="held-out accuracy", ylim=(0, 1), xlim=(0, max(steps)))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    with tempfile.TemporaryDirectory() as root:
        found = [Runs(Path(root), seed).all() for seed in range(SEEDS)]
    made = table(found)
    Console().print(made)
    if "--write" in sys.argv[1:]:
        write(found, made)
    return int(min(rise(curves[name]) for curves in found for name in ALGORITHMS) < LEAST)


if __name__ == "__main__":
    sys.exit(main())
