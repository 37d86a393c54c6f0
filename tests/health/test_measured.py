"""The measured rules together: which of them speaks, and that steady runs of small batches, noisy rises and late
plateaus are left alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev

import pytest
from curves import Values, around, judged

from launcher.core.events import Alert
from launcher.health.profiles import read_profile

RULES = read_profile("measured")
REWARD, ZERO, HIGH, LOW = "critic/score/mean", "critic/frac_reward_zero_std", "critic/score/max", "critic/score/min"
TOP, BOTTOM, SPREAD = "critic/advantages/max", "critic/advantages/min", "critic/score/std"
ENTROPY, NORM, LR = "actor/entropy", "actor/grad_norm", "actor/lr"
LENGTH, CUT = "response_length/mean", "response_length/clip_ratio"
WEIGHT, STEP, SAVE = "rollout_corr/rollout_is_mean", "timing_s/step", "timing_s/save_checkpoint"


def found_in(values: Values) -> list[Alert]:
    return judged(RULES, values)


@pytest.mark.parametrize(("factor", "shift"), [(1.0, 0.0), (10.0, 0.0), (2.0, -1.0), (1.0, -1.0), (1.0, 1.0)])
def test_a_reward_is_judged_alike_on_any_scale(factor: float, shift: float):
    def scaled(values: Sequence[float]) -> list[float]:
        return [factor * value + shift for value in values]

    steady = around(0.85, 0.02, 20)
    dip, fall = [*steady, 0.62, 0.6, 0.8, 0.85], [*steady, 0.3, 0.2, 0.1, 0.0]
    for values, expected in ((dip, []), (fall, [("reward-collapsed", 24)])):
        known = found_in({REWARD: scaled(values), LOW: scaled([0.0] * 24)})
        assert [(alert.rule, alert.step) for alert in known if alert.level == "critical"] == expected
    costs = found_in({REWARD: [value - 1.0 for value in dip], SPREAD: [0.45] * 24})
    assert not [alert for alert in costs if alert.level == "critical"], "rewards below 0, of which the spread is known"


def test_the_bound_of_the_sampler_follows_the_reward():
    low, high = {WEIGHT: [0.4] * 12}, {WEIGHT: [11.0] * 4}
    assert not found_in({**low, REWARD: [0.6] * 12})
    (fell,) = [each for each in found_in({**low, REWARD: [0.6] * 8 + [0.2] * 4}) if each.rule == "sampler-drifts"]
    (rose,) = [each for each in found_in(high) if each.rule == "sampler-drifts"]
    assert (fell.step, fell.value, fell.threshold) == (10, 0.4, 0.5)
    assert (rose.step, rose.value, rose.threshold) == (2, 11.0, 10.0)


@pytest.mark.parametrize(("rate", "fix"), [({}, "a learning rate five times"), ({LR: [1e-4] * 30}, "optim.lr=2e-05")])
def test_a_fix_without_the_value_that_it_needs_is_in_words(rate: dict[str, list[float]], fix: str):
    (alert, *_) = found_in({REWARD: [*around(0.8, 0.02, 20), *around(0.05, 0.02, 10)], **rate})
    assert alert.rule == "reward-collapsed" and alert.fix.startswith(fix) and "?" not in alert.text


def test_a_slow_step_names_the_part_that_took_long():
    (alert,) = found_in({STEP: [60.0] * 8 + [361.0], SAVE: [1.0] * 8 + [300.0]})
    assert "timing_s/save_checkpoint took 300 s" in alert.text


# ---- steady, rising and late runs

STEPS, SEEDS = 100, 2
Chance = Callable[[random.Random, int], float]
PROMPTS_OF: Mapping[str, Chance] = {
    "half right": lambda chance, step: 0.5,
    "one in five right": lambda chance, step: 0.2,
    "easy and hard": lambda chance, step: chance.betavariate(2, 2),
    "mostly all right or all wrong": lambda chance, step: 0.95 if chance.random() < 0.3 else 0.05,
    "noisy rise": lambda chance, step: min(max(0.2 + 0.5 * step / STEPS + chance.gauss(0, 0.2), 0.02), 0.98),
    "late plateau": lambda chance, step: min(max(0.85 * min(1, 0.4 + step / 60) + chance.gauss(0, 0.1), 0.02), 0.99),
}
"""How likely an answer to the prompt is right."""


def sampled(chance: random.Random, prompts: Sequence[float], answers: int) -> dict[str, float]:
    groups = [[float(chance.random() < right) for _ in range(answers)] for right in prompts]
    scores = [score for group in groups for score in group]
    equal = sum(len(set(group)) == 1 for group in groups)
    learns = equal < len(groups)
    return {
        REWARD: fmean(scores), SPREAD: pstdev(scores), HIGH: max(scores), LOW: min(scores), ZERO: equal / len(groups),
        TOP: 1.5 * learns, BOTTOM: -1.5 * learns, NORM: abs(chance.gauss(0.3, 0.1)) * learns, LR: 1e-6,
        ENTROPY: 0.4 + chance.gauss(0, 0.03), LENGTH: 200 + chance.gauss(0, 10), CUT: 0.02,
    }  # fmt: skip


def false_alarms(draw: Chance, prompts: int, answers: int) -> int:
    """Of `SEEDS` runs those with a critical finding."""
    found = 0
    for seed in range(SEEDS):
        chance = random.Random(seed)
        steps = [sampled(chance, [draw(chance, step) for _ in range(prompts)], answers) for step in range(STEPS)]
        series = {name: [step[name] for step in steps] for name in steps[0]}
        found += any(alert.level == "critical" for alert in found_in(series))
    return found


@pytest.mark.parametrize(("batch", "most"), [((1, 8), 3), ((16, 4), 1)], ids=lambda value: str(value))
def test_few_healthy_runs_of_small_batches_have_a_critical_finding(batch: tuple[int, int], most: int):
    """Of 12 runs: at most one in four where a step is a single prompt."""
    found = {name: false_alarms(draw, *batch) for name, draw in PROMPTS_OF.items()}
    assert sum(found.values()) <= most, found
