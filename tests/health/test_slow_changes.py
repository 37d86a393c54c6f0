"""What changes slowly or for a while: growth is compared with half of the steps, and held-out values with their own
trend, so that a steady fall is no noise and noise is no fall."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from curves import Values, around, every, growth, judged, line

from launcher.core.events import Alert
from launcher.health.profiles import read_profile

RULES = read_profile("measured")
HELD_OUT = replace(RULES, rules={name: RULES.rules[name] for name in ("held-out-fell", "val-loss-rose")})
REWARD, LENGTH, ENTROPY, KL = "critic/score/mean", "response_length/mean", "actor/entropy", "actor/kl_loss"
CLIPPED, PPO_KL, RATIO_MAX = "actor/pg_clipfrac", "actor/ppo_kl", "actor/ratio_max"
VAL, VAL_LOSS = "val-core/gsm8k/reward/mean@1", "val/loss"
Curve = Callable[[float], float]
"""The value at a share of the run."""
COUNT = 200
STEPS = [number / COUNT for number in range(1, COUNT + 1)]


def found(values: Values, *rules: str) -> list[tuple[str, int]]:
    return [(each.rule, each.step) for each in judged(RULES, values) if not rules or each.rule in rules]


def held_out(values: Values) -> list[Alert]:
    return judged(HELD_OUT, values)


def noisy(curve: Curve, share: float, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [curve(at) * (1 + chance.gauss(0, share)) for at in STEPS]


# ---- the divergence from the reference, lengths, memory, the critic


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


@pytest.mark.parametrize("curve", [flat, rising, plateau])
@pytest.mark.parametrize(("count", "scale"), [(5, 0.01), (20, 0.05)])
def test_noise_of_held_out_values_is_no_finding(curve: Curve, count: int, scale: float) -> None:
    """Of 20 series of each kind, each as a score and as a loss, at most 3 of 40."""
    alarms = 0
    for seed in range(20):
        chance = random.Random(f"{curve.__name__} {count} {seed}")
        values = [curve(number / count) + chance.gauss(0, scale) for number in range(count)]
        alarms += len(held_out({VAL: values, VAL_LOSS: [2 - value for value in values]}))
    assert alarms <= 3


def share_of(items: int, chance: random.Random, right: float = 0.6) -> float:
    return sum(chance.random() < right for _ in range(items)) / items


@pytest.mark.parametrize(("items", "count"), [(32, 100), (512, 20)])
def test_a_score_of_few_items_is_no_fall_by_its_chance(items: int, count: int) -> None:
    """Of 20 series of equal true score at most 2; of many validations one is far down by chance."""
    alarms = 0
    for seed in range(20):
        chance = random.Random(f"{items} {count} {seed}")
        alarms += len(held_out({VAL: [share_of(items, chance) for _ in range(count)]}))
    assert alarms <= 2


def test_a_fall_of_a_score_of_many_items_is_named() -> None:
    named = 0
    for seed in range(15):
        chance = random.Random(seed)
        right = [*line(0.3, 0.7, 15), *line(0.7, 0.5, 15)]
        named += bool(held_out({VAL: [share_of(1319, chance, each) for each in right]}))
    assert named >= 14


def test_the_gap_counts_from_the_step_of_the_first_validations() -> None:
    """Without validation before training, the reward has risen by the first one."""
    rewards = [0.3 + 0.4 * min(1.0, at / 0.2) + 0.02 * at for at in STEPS]
    held_out = every(10, [rewards[10 * number - 1] - 0.05 for number in range(1, 7)] + [0.65] * 14)
    assert not found({REWARD: rewards, VAL: held_out}, "gap-grows")
    grows = every(10, [rewards[10 * number - 1] - 0.05 for number in range(1, 4)] + [0.56] * 17)
    assert found({REWARD: rewards, VAL: grows}, "gap-grows")


# ---- numbers, entropy, clipping


def test_entropy_that_rises_as_the_reward_collapses_is_not_said_to_have_kept_it() -> None:
    falls = {ENTROPY: [0.4] * 30 + [2.0] * 6, REWARD: around(0.7, 0.01, 30) + [0.2] * 6}
    assert [rule for rule, _ in found(falls, "entropy-rises", "entropy-exploded")] == ["entropy-exploded"]
    (kept,) = judged(RULES, {ENTROPY: [0.4] * 30 + [2.0] * 6, REWARD: around(0.7, 0.01, 36)})
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
    bounds = [each.threshold for each in judged(RULES, values) if each.rule == "clipped-often"]
    assert bounds == pytest.approx([] if bound is None else [bound])


def test_partial_credit_that_wanders_is_no_fall() -> None:
    """Rewards of 0, 0.1 and 1 over 32 items are shares of 320; of 20 series without a trend at most 1 is named."""
    alarms = 0
    for seed in range(20):
        chance = random.Random(seed)
        values = [sum(chance.choices((0.0, 0.1, 1.0), (3, 2, 5), k=32)) / 32 for _ in range(40)]
        alarms += len(held_out({VAL: values}))
    assert alarms <= 1
