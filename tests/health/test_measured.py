"""The measured rules together: which of them speaks, and that steady runs of small batches, noisy rises and late
plateaus are left alone. What changes slowly or for a while: growth is compared with half of the steps, and held-out
values with their own trend, so that a steady fall is no noise and noise is no fall."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, pstdev

import pytest
from curves import Values, around, every, growth, judged, line

from launcher.health.profiles import read_profile

RULES = read_profile("measured")
HELD_OUT = replace(RULES, rules={name: RULES.rules[name] for name in ("held-out-fell", "val-loss-rose")})
REWARD, ZERO, HIGH, LOW = "critic/score/mean", "critic/frac_reward_zero_std", "critic/score/max", "critic/score/min"
TOP, BOTTOM, SPREAD = "critic/advantages/max", "critic/advantages/min", "critic/score/std"
ENTROPY, NORM, LR = "actor/entropy", "actor/grad_norm", "actor/lr"
LENGTH, CUT = "response_length/mean", "response_length/clip_ratio"
WEIGHT, STEP, SAVE = "rollout_corr/rollout_is_mean", "timing_s/step", "timing_s/save_checkpoint"
KL, CLIPPED, PPO_KL, RATIO_MAX = "actor/kl_loss", "actor/pg_clipfrac", "actor/ppo_kl", "actor/ratio_max"
VAL, VAL_LOSS = "val-core/gsm8k/reward/mean@1", "val/loss"
findings = partial(judged, RULES)


def found(values: Values, *rules: str) -> list[tuple[str, int]]:
    return [(each.rule, each.step) for each in findings(values) if not rules or each.rule in rules]


@pytest.mark.parametrize(("factor", "shift"), [(1.0, 0.0), (10.0, 0.0), (2.0, -1.0), (1.0, -1.0), (1.0, 1.0)])
def test_a_reward_is_judged_alike_on_any_scale(factor: float, shift: float):
    def scaled(values: Sequence[float]) -> list[float]:
        return [factor * value + shift for value in values]

    steady = around(0.85, 0.02, 20)
    dip, fall = [*steady, 0.62, 0.6, 0.8, 0.85], [*steady, 0.3, 0.2, 0.1, 0.0]
    for values, expected in ((dip, []), (fall, [("reward-collapsed", 24)])):
        known = findings({REWARD: scaled(values), LOW: scaled([0.0] * 24)})
        assert [(alert.rule, alert.step) for alert in known if alert.level == "critical"] == expected
    costs = findings({REWARD: [value - 1.0 for value in dip], SPREAD: [0.45] * 24})
    assert not [alert for alert in costs if alert.level == "critical"], "rewards below 0, of which the spread is known"


def test_the_bound_of_the_sampler_follows_the_reward():
    low, high = {WEIGHT: [0.4] * 12}, {WEIGHT: [11.0] * 4}
    assert not findings({**low, REWARD: [0.6] * 12})
    (fell,) = [each for each in findings({**low, REWARD: [0.6] * 8 + [0.2] * 4}) if each.rule == "sampler-drifts"]
    (rose,) = [each for each in findings(high) if each.rule == "sampler-drifts"]
    assert (fell.step, fell.value, fell.threshold) == (10, 0.4, 0.5)
    assert (rose.step, rose.value, rose.threshold) == (2, 11.0, 10.0)


@pytest.mark.parametrize(("rate", "fix"), [({}, "a learning rate five times"), ({LR: [1e-4] * 30}, "optim.lr=2e-05")])
def test_a_fix_without_the_value_that_it_needs_is_in_words(rate: dict[str, list[float]], fix: str):
    collapse = findings({REWARD: [*around(0.8, 0.02, 20), *around(0.05, 0.02, 10)], **rate})
    assert [alert.rule for alert in collapse] == ["reward-gone", "reward-collapsed"]
    assert all(alert.fix.startswith(fix) and "?" not in alert.text for alert in collapse)


def test_a_slow_step_names_the_part_that_took_long():
    (alert,) = findings({STEP: [60.0] * 8 + [361.0], SAVE: [1.0] * 8 + [300.0]})
    assert "timing_s/save_checkpoint took 300 s" in alert.text


# ---- steady, rising and late runs

Chance = Callable[[random.Random, int], float]
PROMPTS_OF: Mapping[str, Chance] = {
    "half right": lambda chance, step: 0.5,
    "one in five right": lambda chance, step: 0.2,
    "easy and hard": lambda chance, step: chance.betavariate(2, 2),
    "mostly all right or all wrong": lambda chance, step: 0.95 if chance.random() < 0.3 else 0.05,
    "noisy rise": lambda chance, step: min(max(0.2 + 0.5 * step / 100 + chance.gauss(0, 0.2), 0.02), 0.98),
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
    """Of 2 runs those with a critical finding."""
    found = 0
    for seed in range(2):
        chance = random.Random(seed)
        steps = [sampled(chance, [draw(chance, step) for _ in range(prompts)], answers) for step in range(100)]
        series = {name: [step[name] for step in steps] for name in steps[0]}
        found += any(alert.level == "critical" for alert in findings(series))
    return found


@pytest.mark.parametrize(("batch", "most"), [((1, 8), 3), ((16, 4), 1)], ids=lambda value: str(value))
def test_few_healthy_runs_of_small_batches_have_a_critical_finding(batch: tuple[int, int], most: int):
    """Of 12 runs: at most one in four where a step is a single prompt."""
    found = {name: false_alarms(draw, *batch) for name, draw in PROMPTS_OF.items()}
    assert sum(found.values()) <= most, found


# ---- slow changes of the divergence from the reference, and of lengths

Curve = Callable[[float], float]
"""The value at a share of the run."""
COUNT = 200
STEPS = [number / COUNT for number in range(1, COUNT + 1)]


def noisy(curve: Curve, share: float) -> list[float]:
    chance = random.Random(0)
    return [curve(at) * (1 + chance.gauss(0, share)) for at in STEPS]


@pytest.mark.parametrize("rate", [0.25, 0.1])
@pytest.mark.parametrize("start", [0, 100])
def test_a_divergence_that_grows_by_a_share_of_itself_is_warned_of_and_then_critical(rate: float, start: int) -> None:
    values = [*line(0.001, 0.01, start), *growth(0.011, 1 + rate, 140)] if start else growth(0.011, 1 + rate, 140)
    *warned, (critical, step) = found({KL: values, REWARD: around(0.6, 0.02, len(values))})
    assert ([rule for rule, _ in warned], critical) == (["kl-grows"], "kl-exploded")
    assert all(values[before - 1] < 5 for _, before in warned)
    assert values[step - 1] < 40


HEALTHY_KL: dict[str, Curve] = {
    "to 0.1": lambda at: 0.1 * at,
    "to 3 nats": lambda at: 3 * at,
    "sums over answers, to 17": lambda at: 17 * math.sqrt(at),
    "with the square of the steps, as in a warm-up": lambda at: 4 * at * at,
    "late and soon over": lambda at: 0.001 + 0.5 / (1 + math.exp(-40 * (at - 0.6))),
}


@pytest.mark.parametrize("curve", HEALTHY_KL)
@pytest.mark.parametrize("rises", [True, False])
def test_a_divergence_that_grows_with_the_steps_is_no_finding(curve: str, rises: bool) -> None:
    rewards = line(0.3, 0.7, COUNT) if rises else around(0.6, 0.02, COUNT)
    assert not found({KL: noisy(HEALTHY_KL[curve], 0.1), REWARD: rewards})


def test_answers_that_grow_are_named_unless_the_reward_rises() -> None:
    flat, rises = around(0.6, 0.02, COUNT), [0.3 + 0.5 * math.sqrt(at) for at in STEPS]
    steadily, late = line(250.0, 1900.0, COUNT), [*line(250.0, 260.0, 60), *line(260.0, 1200.0, COUNT - 60)]
    assert [found({LENGTH: late, REWARD: reward}) for reward in (flat, rises)] == [[("answers-grow-slowly", 98)], []]
    assert not found({LENGTH: noisy(lambda at: 250 + 800 * math.sqrt(at), 0.05), REWARD: rises})
    assert not found({LENGTH: steadily, REWARD: rises})
    assert not found({LENGTH: noisy(lambda _: 250.0, 0.1), REWARD: flat})
    assert not found({LENGTH: late}), "the reward is not known"


# ---- held-out values


def flat(at: float) -> float:
    return 0.6


def rising(at: float) -> float:
    return 0.3 + 0.4 * at


def plateau(at: float) -> float:
    return 0.3 + 0.4 * min(1.0, 3 * at)


def alarms(series: int, values_of: Callable[[random.Random], Values], name: str = "") -> int:
    """The findings in so many series that differ by chance."""
    chances = (random.Random(f"{name} {seed}" if name else seed) for seed in range(series))
    return sum(len(judged(HELD_OUT, values_of(chance))) for chance in chances)


def share_of(items: int, chance: random.Random, right: float = 0.6) -> float:
    return sum(chance.random() < right for _ in range(items)) / items


@pytest.mark.parametrize("curve", [flat, rising, plateau])
@pytest.mark.parametrize(("count", "scale"), [(5, 0.01), (20, 0.05)])
def test_noise_of_held_out_values_is_no_finding(curve: Curve, count: int, scale: float) -> None:
    """Of 20 series of each kind, each as a score and as a loss, at most 3 of 40."""

    def drawn(chance: random.Random) -> Values:
        values = [curve(number / count) + chance.gauss(0, scale) for number in range(count)]
        return {VAL: values, VAL_LOSS: [2 - value for value in values]}

    assert alarms(20, drawn, f"{curve.__name__} {count}") <= 3


@pytest.mark.parametrize(("items", "count"), [(32, 100), (512, 20)])
def test_a_score_of_few_items_is_no_fall_by_its_chance(items: int, count: int) -> None:
    """Of many validations one is far down by chance."""
    assert alarms(20, lambda chance: {VAL: [share_of(items, chance) for _ in range(count)]}, f"{items} {count}") <= 2


def test_a_fall_of_a_score_of_many_items_is_named() -> None:
    right = [*line(0.3, 0.7, 15), *line(0.7, 0.5, 15)]
    assert alarms(15, lambda chance: {VAL: [share_of(1319, chance, each) for each in right]}) in (14, 15)


def test_partial_credit_that_wanders_is_no_fall() -> None:
    """Rewards of 0, 0.1 and 1 over 32 items are shares of 320."""

    def drawn(chance: random.Random) -> Values:
        return {VAL: [sum(chance.choices((0.0, 0.1, 1.0), (3, 2, 5), k=32)) / 32 for _ in range(40)]}

    assert alarms(20, drawn) <= 1


def test_the_gap_counts_from_the_step_of_the_first_validations() -> None:
    """Without validation before training, the reward has risen by the first one."""
    rewards = [0.3 + 0.4 * min(1.0, at / 0.2) + 0.02 * at for at in STEPS]
    validated = every(10, [rewards[10 * number - 1] - 0.05 for number in range(1, 7)] + [0.65] * 14)
    assert not found({REWARD: rewards, VAL: validated}, "gap-grows")
    grows = every(10, [rewards[10 * number - 1] - 0.05 for number in range(1, 4)] + [0.56] * 17)
    assert found({REWARD: rewards, VAL: grows}, "gap-grows")


# ---- numbers, entropy, clipping


def test_entropy_that_rises_as_the_reward_collapses_is_not_said_to_have_kept_it() -> None:
    falls = {ENTROPY: [0.4] * 30 + [2.0] * 6, REWARD: around(0.7, 0.01, 30) + [0.2] * 6}
    assert [rule for rule, _ in found(falls, "entropy-rises", "entropy-exploded")] == ["entropy-exploded"]
    (kept,) = findings({ENTROPY: [0.4] * 30 + [2.0] * 6, REWARD: around(0.7, 0.01, 36)})
    assert kept.text.startswith("entropy rose to 2 nats, from 0.4; the reward is 0.7, and was 0.7")


@pytest.mark.parametrize(("clipped", "beside", "bound"), [
    (0.45, {PPO_KL: 0.02}, 0.3), (0.45, {PPO_KL: -0.02}, 0.3), (0.25, {PPO_KL: 0.02}, None),
    (0.45, {PPO_KL: 0.0002}, 0.4),  # its sign makes the KL small where ratios are large
    (0.36, {PPO_KL: 0.0004}, None),  # sequences, whose range is 1,000 times narrower
    (0.36, {PPO_KL: 0.0004, RATIO_MAX: 1.6}, 0.3), (0.6, {PPO_KL: 0.0004, RATIO_MAX: 1.01}, None),
    (0.75, {PPO_KL: 0.0004, RATIO_MAX: 1.01}, 0.7), (0.45, {}, 0.4), (0.36, {}, None),
])  # fmt: skip
def test_clipping_of_tokens_has_a_lower_bound_than_that_of_sequences(
    clipped: float, beside: Mapping[str, float], bound: float | None
) -> None:
    values = {CLIPPED: [clipped] * 12} | {name: [value] * 12 for name, value in beside.items()}
    bounds = [each.threshold for each in findings(values) if each.rule == "clipped-often"]
    assert bounds == pytest.approx([] if bound is None else [bound])
