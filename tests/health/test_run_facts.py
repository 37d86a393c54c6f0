"""What rules know of a run, on both sides of each of its bounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.config.resolve import resolve
from launcher.core.events import Loaded, Step
from launcher.health.run_facts import OwnRun
from launcher.health.series import Series, UnknownValue
from launcher.spec.run import RunSpec

GRPO = "algorithm=grpo sampler.n=8 data.train_batch_size=4 optim.lr=1e-5"  # 32 answers a step
WIDE = GRPO.replace("batch_size=4", "batch_size=32")
PPO = "algorithm=ppo sampler.n=8 data.train_batch_size=32"
DPO, SFT = "algorithm=dpo algorithm.beta=0.1", "algorithm=sft optim.lr=1e-5"
NAMED = {"GRPO": GRPO, "WIDE": WIDE, "PPO": PPO, "DPO": DPO, "SFT": SFT}
"""What facts.yaml calls these arguments."""
MEAN, ENDS = "val-core/a/reward/mean@1", "val-aux/a/reward/normal95_{}@1"
Values = Sequence[float]


@cache
def run_of(words: str) -> RunSpec:
    return resolve([*" ".join(NAMED.get(word, word) for word in words.split()).split(), "model=tiny", "data=reverse"])


def own_run(words: str, values: Mapping[str, Values], planned: int = 100, rows: int = 0, start: int = 1, steps: int = 0,
            **held: Values) -> OwnRun:  # fmt: skip
    """After a step for each value, or `steps`; the validations `held` begin at step `start`, one a step."""
    facts = OwnRun(run_of(words))
    series = defaultdict[str, Series](Series)
    facts.series = series
    facts.load(Loaded(rows=8, refused=0, val_rows=rows, val_refused=0, steps_per_epoch=1, steps=planned))
    ((name, validations),) = held.items() or [("", ())]
    metric = {"": "", "score": MEAN, "loss": "val/loss", "pairs": "val/rewards/accuracies", "ends": MEAN}[name]
    for step, (now, *measured) in enumerate(zip_longest(validations, *values.values(), [None] * steps), start):
        more = {ENDS.format("low"): now - 0.1, ENDS.format("high"): now + 0.1} if name == "ends" and now else {}
        facts.see(Step(step=step, metrics={} if now is None else {metric: now, **more}))
        for alias, value in zip(values, measured, strict=False):
            if value is not None:
                series[alias].add(step, value)
    return facts


CASES = yaml.safe_load((Path(__file__).parent / "facts.yaml").read_text(encoding="utf-8"))


def unrolled(values: Sequence[Any]) -> list[float]:
    """With 0.5 three times for [3, 0.5]."""
    return [one for each in values for one in ([each[1]] * each[0] if isinstance(each, list) else [each])]


def unrolled_in(node: Mapping[str, Any]) -> dict[str, Any]:
    return {name: unrolled(value) if isinstance(value, list) else value for name, value in node.items()}


@pytest.mark.parametrize("case", CASES)
def test_facts(case: Mapping[str, Any]) -> None:
    facts = own_run(case["words"], unrolled_in(case.get("values", {})), **unrolled_in(case.get("more", {})))
    for name, value in case["facts"].items():
        found = facts.find(name)
        assert found == (pytest.approx(value) if type(value) is float else value), name


@pytest.mark.parametrize(("moved", "words", "share"), [
    ({}, SFT, 0.012), ({"mlp": 9e-4, "lora_B": 1.0}, SFT, 0.03), ({"mlp": 1e-3}, SFT, 0.0),
    ({"lora_B": 1.0}, SFT, 0.012),
    ({"mlp": 9e-4, "attention": 1e-3}, SFT, 0.0), ({"mlp": 1e-3}, f"{SFT} model.lora_rank=4", 0.012),
])  # fmt: skip
def test_what_noise_may_hide(moved: Mapping[str, float], words: str, share: float) -> None:
    facts = own_run(words, {})
    facts.moved = moved
    assert facts.find("hidden") == share


def test_how_much_worse_a_validation_is_beyond_chance() -> None:
    """Of the normal distribution 0.0005 are beyond 3.2905 deviations, 0.0005 / 3 beyond 3.5879."""
    facts = own_run(GRPO, {}, ends=[0.5, 0.9, 0.3], rows=200)
    start, best, now = facts.validations
    margin = math.hypot(0.1, 0.1) / 1.959964
    assert facts._worse_by(start, now) == pytest.approx(0.2 - 3.2905 * margin - 1 / 200, abs=1e-4)
    assert facts._worse_by(best, now) == pytest.approx(0.6 - 3.5879 * margin - 1 / 200, abs=1e-4)
    facts.val_rows = 0
    assert facts._worse_by(start, now) == pytest.approx(0.2 - 3.2905 * margin, abs=1e-4)
    waves = own_run(GRPO, {}, loss=[1.0, 1.2, 1.0, 1.2, 1.0])
    error = 0.4 / 0.6745 / math.sqrt(6) * (1 + 4 / 5)
    assert waves._held_out_error(False) == pytest.approx(error)
    assert waves._worse_by(*waves.validations[:2]) == pytest.approx(0.2 - 3.2905 * math.sqrt(2) * error, abs=1e-3)
    assert own_run(GRPO, {}, loss=[1.0, 1.2, 1.0])._held_out_error(False) == 0
    scored = own_run(GRPO, {"score": [0.0, 1.0, 0.0]}, score=[0.5], rows=128)
    spread = scored.series["score"].spread_of_one
    assert scored._held_out_error(True) == pytest.approx(spread / 2) and scored._held_out_error(False) == 0
    scored.val_rows = 0
    assert scored._held_out_error(True) == pytest.approx(spread)


def test_pairs_have_the_interval_of_their_share() -> None:
    (known,) = own_run(DPO, {}, pairs=[0.5], rows=100).validations
    assert (known.low, known.high) == (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))
    assert own_run(DPO, {}, pairs=[0.5]).validations[0].low is None


@pytest.mark.parametrize(("positions", "longest"), [(None, 64), (97, 64), (96, 64), (95, 63), (65, 33)])
def test_answers_get_as_many_tokens_as_the_positions_leave(
    positions: int | None, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"{GRPO} data.max_prompt_length=32 data.max_response_length=32"
    facts = own_run(words, {"cut": [1.0], "score": [0.0]})
    monkeypatch.setattr(type(facts.run.model), "positions", positions)
    model = "a model that ends its answers"
    assert facts.answers_that_end() == f"data.max_response_length={longest}, or {model}"


def test_the_share_of_prompts_with_a_score_is_the_smallest_of_the_sources() -> None:
    facts = own_run(GRPO, {})
    with pytest.raises(UnknownValue):
        facts.find("scored_share")
    shares = {f"val-aux/{source}/reward/scored@1": share for source, share in (("a", 0.75), ("b", 0.5))}
    facts.see(Step(step=1, metrics={MEAN: 1.0, **shares}))
    assert facts.find("scored_share") == 0.5
    with pytest.raises(UnknownValue):
        facts.find("optim.no_such")
