"""Events of runs for the reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from launcher.core.events import Event, HeldOutScores, Loaded, LoggedEvent, Sample, Started, Step
from launcher.core.metrics import wilson
from launcher.core.prompt_scores import held_out_scores, prompt_digest
from launcher.runs.folder import Folder

MEAN, LOW, HIGH = (f"val-{name}@1" for name in (
    "core/gsm8k/reward/mean", "aux/gsm8k/reward/wilson95_low", "aux/gsm8k/reward/wilson95_high",
))  # fmt: skip


def write_events(folder: Folder, events: Iterable[Event]) -> None:
    lines = [LoggedEvent(seq, 1, event).line for seq, event in enumerate(events)]
    folder.events.write_text("".join(f"{line}\n" for line in lines))


def validated(step: int, right: int, of: int, **metrics: float) -> Step:
    """A step with a validation in which `right` of `of` answers were right."""
    low, high = wilson(right / of, of)
    return Step(at=100.0 + step, step=step, metrics={MEAN: right / of, LOW: low, HIGH: high, **metrics})


def answers(step: int, scores: Iterable[float], **texts: Any) -> list[Sample]:
    """An answer for each score; the prompts are numbered."""
    return [
        Sample(at=100.0 + step, step=step, score=score,
               **{"data_source": "gsm8k", "prompt": f"question {number}", "ground_truth": "1",
                  "response": "#### 1" if score else "#### 2"} | texts)
        for number, score in enumerate(scores)
    ]  # fmt: skip


def scores_of(step: int, scores: Iterable[float], source: str = "gsm8k") -> list[HeldOutScores]:
    """The scores of the prompts that `answers` numbers."""
    means = [(source, prompt_digest(f"question {number}", "1"), score) for number, score in enumerate(scores)]
    return held_out_scores(step, means)


def begin(rows: int = 10, steps: int = 100) -> list[Event]:
    loaded = Loaded(at=2.0, rows=100, refused=0, val_rows=rows, val_refused=0, steps_per_epoch=steps, steps=steps)
    return [Started(at=1.0, run="p/one", algorithm="GRPO", processes=1), loaded]


def pair_steps(held_out: str = MEAN) -> list[Step]:
    """A training on pairs whose accuracy rises, while what is held out stays."""
    steps = [Step(at=10.0 + n, step=n, metrics={"rewards/accuracies": 0.5 + n / 20}) for n in range(1, 10)]
    first, last = (Step(at=10.0 + n, step=n, metrics={held_out: 0.1}) for n in (0, 10))
    return [first, *steps, last]
