"""What a run came to, in one line: learned, not learned, harmed or cannot tell, with the numbers and what helps."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest

from launcher.core.events import Alert, Event, Loaded, Saved, Step
from launcher.core.metrics import wilson
from launcher.core.prompt_scores import held_out_scores
from launcher.core.state import fold
from launcher.health.held_out import EndFacts, HeldOutResults, judge_end

SIGNAL = Alert(step=51, text="89 % of the groups taught nothing; use sampler.n=16", fix="sampler.n=16")
ADVICE = {"slower": "optim.lr=1e-5", "faster": "optim.lr=1e-3"}
ROSE, FLAT = (0.1, 0.4, True), (0.1, 0.11, False)


def scored(values: Mapping[int, float], rows: int = 200, *, single: bool = True, **metrics: float) -> list[Event]:
    """Validations in which so many of the answers were right, always the same rows first."""
    events: list[Event] = []
    for step, value in values.items():
        right = round(value * rows)
        low, high = wilson(right / rows, rows)
        stem = "val-aux/x/reward/wilson95_"
        found = {"val-core/x/reward/mean@1": right / rows, f"{stem}low@1": low, f"{stem}high@1": high, **metrics}
        scores = [("x", f"{place:08x}", float(place < right)) for place in range(rows)]
        events += [*(held_out_scores(step, scores) if single else ()), Step(step=step, metrics=found)]
    return events


def losses(values: Mapping[int, float], rows: int = 60, spread: float = 0.02, **metrics: float) -> list[Event]:
    """Validations with this mean loss; each row is off it by its own difference, and a little by chance."""
    events, chance = list[Event](), random.Random(0)
    for step, value in values.items():
        found = [value * (0.5 + place / (rows - 1)) + chance.gauss(0, spread) for place in range(rows)]
        of_rows = [("", f"{place:08x}", loss) for place, loss in enumerate(found)]
        events += held_out_scores(step, of_rows, "loss")
        events.append(Step(step=step, metrics={"val/loss": sum(found) / rows, **metrics}))
    return events


CASES: list[tuple[str, list[Event], dict[str, Any], str, str]] = [
    ("a score that rises", scored({0: 0.1, 60: 0.6}), {}, "learned",
     r"held-out score 0.1 at step 0, 0.6 at step 60 \(\+0.5, 95 % interval \+0.4.* to \+0.5.*, 200 rows\)"),
    ("by intervals alone", scored({0: 0.1, 60: 0.6}, single=False), {}, "learned", r"\+0.5, 95 % interval"),
    ("a finding besides", scored({0: 0.1, 60: 0.6}), {"reasons": [SIGNAL]}, "learned", "held-out score"),
    ("a loss that falls", losses({0: 2.0, 60: 1.5}), {}, "learned", r"held-out loss 2 at step 0, 1.5 at step 60"),
    ("pairs", losses({0: 0.69, 60: 0.5}, **{"val/rewards/accuracies": 0.81}), {}, "learned", "81% of the pairs"),
    ("a mean loss alone, of another program", [Step(step=0, metrics={"val/loss": 2.0}),
     Step(step=60, metrics={"val/loss": 1.5})], {}, "learned", r"\(-0.5\)"),
    ("a dip that is small", scored({0: 0.1, 30: 0.62, 60: 0.6}), {}, "learned", "best 0.62 at step 30"),
    ("signal in few groups", scored({0: 0.1, 51: 0.1}), {"reasons": [SIGNAL]}, "not learned",
     "89 % of the groups taught nothing; use sampler.n=16"),
    ("few updates", scored({0: 0.1, 9: 0.11}), {"training": FLAT}, "not learned",
     "9 updates are too few; use trainer.total_training_steps=100"),
    ("a loss of random weights", losses({0: 3.9, 9: 2.7}), {"vocab_size": 50}, "not learned", "9 updates are too few"),
    ("the same of a trained model", losses({0: 2.1, 9: 1.7}), {"vocab_size": 50}, "learned", "held-out loss"),
    ("a loss without right answers", [*scored({0: 0.0}, **{"val/loss": 3.0}), *scored({40: 0.0}, **{"val/loss": 1.0})],
     {}, "not learned", "0% of the held-out answers are right"),
    ("all right from the start", scored({0: 0.98, 60: 0.98}), {}, "not learned", "the start; use harder data"),
    ("no rise of either score", scored({0: 0.3, 60: 0.31}), {"training": FLAT}, "not learned", "did not rise either"),
    ("a rise of its own alone", scored({0: 0.3, 60: 0.31}), {"training": ROSE}, "not learned", "does not carry over"),
    ("a loss that stays", losses({0: 2.0, 60: 2.0}), {}, "not learned", "it did not change; use optim.lr=1e-3"),
    ("a loss that falls by nothing that matters", losses({0: 2.0, 60: 1.995}, spread=0.0), {}, "not learned", "0.005"),
    ("a finding, and nothing held out", [Step(step=60, metrics={})], {"reasons": [SIGNAL]}, "not learned", "89 %"),
    ("a score that falls", scored({0: 0.6, 60: 0.1}), {"reasons": [SIGNAL]}, "harmed", "-0.5,.*: 89 % of the groups"),
    ("a loss that rises", losses({0: 2.0, 60: 2.5}), {}, "harmed", "use optim.lr=1e-5"),
    ("a score that rose and fell", [*scored({0: 0.1, 40: 0.6}), Saved(step=40, path="x"), *scored({100: 0.2})], {},
     "harmed", "overfitted since step 40: .*; the best checkpoint is that of step 40"),
    ("a loss that fell and rose", losses({0: 2.0, 40: 1.0, 100: 1.6}), {}, "harmed",
     "overfitted since step 40: .*; it is not saved; use trainer.total_training_steps=40"),
    ("nothing held out", [Step(step=60, metrics={})], {}, "cannot tell", "nothing is held out; use data.val_files"),
    ("one validation", scored({60: 0.5}), {}, "cannot tell", "only step 60 was validated; use trainer.val"),
    ("few rows", scored({0: 0.25, 60: 0.5}, 8), {}, "cannot tell", "may be chance; about [0-9]+ held-out rows would"),
    ("few rows and a rise", scored({0: 0.2, 60: 0.3}, 30), {"training": ROSE}, "cannot tell", "may be chance"),
]  # fmt: skip


@pytest.mark.parametrize(("events", "facts", "kind", "text"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_the_line_says_what_a_run_came_to(events: list[Event], facts: dict[str, Any], kind: str, text: str) -> None:
    results, loaded = HeldOutResults(), Loaded(rows=9, refused=0, val_rows=0, val_refused=0, steps_per_epoch=1, steps=9)
    for event in (loaded, *events):
        results.see(event)
    found = judge_end(fold(events), results, EndFacts(**{**ADVICE, **facts}))
    assert found.kind == kind, found.line
    assert re.search(text, found.line), found.line


def test_runs_that_change_by_chance_are_rarely_called_learned() -> None:
    """100 runs whose 100 answers are right or wrong by chance: ALPHA is two-sided, so one in 200 is called learned."""
    chance, kinds = random.Random(1), list[str]()
    for _ in range(100):
        results, events = HeldOutResults(), list[Event]()
        for step in (0, 60):
            scores = [("x", f"{place:08x}", float(chance.random() < 0.5)) for place in range(100)]
            mean = sum(score for *_, score in scores) / 100
            events += [*held_out_scores(step, scores), Step(step=step, metrics={"val-core/x/reward/mean@1": mean})]
        for event in events:
            results.see(event)
        kinds.append(judge_end(fold(events), results, EndFacts(training=FLAT)).kind)
    assert kinds.count("not learned") >= 96
