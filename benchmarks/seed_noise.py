"""Runs of equal and of different settings, simulated: how often `rlrun compare` calls a setting better or worse.

A run's prompts have each their own chance of a right answer, which all runs share, and a run is better or worse than
its setting by the noise between seeds. Of 40 pairs of runs of equal settings at most 2 may be called different, of
sides of 3 equal runs 5 % with their noise, and of sides of 3 runs whose settings differ by EFFECT at least 80 % have
to be found.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from launcher.core.events import Event, Loaded, LoggedEvent, Started, Step
from launcher.core.metrics import wilson
from launcher.core.prompt_scores import held_out_scores
from launcher.reports.comparison import compare_runs
from launcher.runs.folder import Folder

EFFECT, BETWEEN, PROMPTS, ROUNDS = 0.1, 0.015, 256, 200
"""Of a setting; standard deviation between seeds; of a run; pairs of sides that are compared."""
SPEC = """
algorithm: {{_target_: launcher.algorithms.grpo.GRPO}}
optim: {{lr: {lr}}}
trainer: {{experiment_name: {name}}}
seed: {seed}
"""


class Simulation:
    """Writes the folders of runs, and compares them."""

    def __init__(self, root: Path, prompts: int, between: float, seed: int) -> None:
        self.root, self.between, self.chance, self.number = root, between, random.Random(seed), 0
        self.prompts = prompts

    def write_run(self, level: float, lr: float, right: list[float], seed: int) -> str:
        """A run whose answers are right with the chance `right` of each prompt, raised to the level of the run."""
        self.number += 1
        folder = Folder(self.root / "p" / f"run-{self.number}")
        folder.path.mkdir(parents=True)
        folder.spec.write_text(SPEC.format(lr=lr, name=folder.path.name, seed=seed))
        own = level + self.chance.gauss(0.0, self.between)
        scores = [float(self.chance.random() < min(max(x + own, 0.0), 1.0)) for x in right]
        mean = sum(scores) / len(scores)
        ends = dict(zip(("low", "high"), wilson(mean, len(scores)), strict=True))
        metrics = {"val-core/x/reward/mean@1": mean}
        metrics |= {f"val-aux/x/reward/wilson95_{end}@1": value for end, value in ends.items()}
        rows = len(scores)
        events: list[Event] = [
            Started(at=1.0, run=f"p/{folder.path.name}", algorithm="GRPO", processes=1),
            Loaded(at=2.0, rows=9, refused=0, val_rows=rows, val_refused=0, steps_per_epoch=9, steps=9),
            *held_out_scores(9, [("x", f"{place:08x}", score) for place, score in enumerate(scores)]),
            Step(at=9.0, step=9, metrics=metrics),
        ]
        lines = [LoggedEvent(seq, 1, event).line for seq, event in enumerate(events)]
        folder.events.write_text("".join(f"{line}\n" for line in lines))
        return str(folder.path)

    def called(self, effect: float, seeds: int, *, one_setting: bool = False) -> bool:
        """Whether the settings of two sides are called different."""
        right = [0.2 + 0.6 * self.chance.betavariate(0.7, 0.7) for _ in range(self.prompts)]
        sides = ((0.0, 1e-6), (effect, 1e-6 if one_setting else 1e-5))
        runs = [
            self.write_run(level, lr, right, seed + (10 if one_setting and place else 0))
            for place, (level, lr) in enumerate(sides)
            for seed in range(seeds)
        ]
        return any(test.significant for test in compare_runs(runs, self.root).tests)


def main() -> int:
    with tempfile.TemporaryDirectory() as temp:
        runs = Simulation(Path(temp), PROMPTS, BETWEEN, 0)
        by_seed = sum(runs.called(0.0, 1, one_setting=True) + runs.called(0.0, 1) for _ in range(20))
        equal = sum(runs.called(0.0, 3) for _ in range(ROUNDS)) / ROUNDS
        found = sum(runs.called(EFFECT, 3) for _ in range(ROUNDS)) / ROUNDS
    noise = 3 * (0.05 * 0.95 / ROUNDS) ** 0.5
    print(f"equal settings, one run each: {by_seed} of 40 pairs called different; at most 2")
    print(f"equal settings, 3 runs each: {equal:.1%} called different; at most {0.05 + noise:.1%}")
    print(f"an effect of {EFFECT}, 3 runs each: {found:.1%} found; at least 80 %")
    return int(by_seed > 2 or equal > 0.05 + noise or found < 0.8)


if __name__ == "__main__":
    sys.exit(main())
