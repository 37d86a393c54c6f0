"""Rules that `make faults` needs: each finds its fault within 20 steps, and not what only looks like it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from launcher.config.resolve import resolve
from launcher.core.events import Alert, Loaded, Step
from launcher.monitor.health import Health

GRPO = resolve(["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=8", "trainer.ppo_epochs=2"])
VAL = "val-core/reverse/reward/mean@1"
RISES = [0.3, 0.3, 0.3, 0.3, *(0.3 + 0.02 * n for n in range(76))]


def alerts_of(steps: Sequence[Mapping[str, float]], validations: Mapping[int, float] | None = None) -> list[Alert]:
    """Of steps from 1, and of validations whose intervals are those of 128 held-out rows."""
    health, found = Health(GRPO), list[Alert]()
    health.hear(Loaded(rows=999, refused=0, val_rows=128, val_refused=0, steps_per_epoch=9, steps=len(steps)))
    for step, metrics in enumerate([{}, *steps]):
        held = (validations or {}).get(step)
        more = {} if held is None else {
            VAL: held, "val-aux/reverse/reward/wilson95_low@1": max(held - 0.07, 0.0),
            "val-aux/reverse/reward/wilson95_high@1": held + 0.07,
        }  # fmt: skip
        found += health.hear(Step(step=step, metrics={**metrics, **more}))
    return found


def around(value: float, spread: float, count: int = 40) -> list[float]:
    chance = random.Random(0)
    return [value + chance.gauss(0.0, spread) for _ in range(count)]


def scores(values: Sequence[float]) -> list[dict[str, float]]:
    each = {"critic/score/max": 3.0, "critic/score/min": 0.0, "critic/frac_reward_zero_std": 0.1}
    noisy = zip(values, around(0.0, 0.02, len(values)), strict=True)
    return [{"critic/score/mean": value + noise, **each} for value, noise in noisy]


@pytest.mark.parametrize(
    ("validations", "step"),
    [
        ({0: 0.3, 10: 0.02, 20: 0.01, 30: 0.0}, 20),  # worse at two in a row: the second is enough
        ({0: 0.3, 10: 0.3, 20: 0.3, 30: 0.3, 40: 0.02, 50: 0.01}, 50),
        ({0: 0.3, 10: 0.02, 20: 0.35, 30: 0.4}, None),  # one bad validation
        ({0: 0.3, 10: 0.32, 20: 0.35, 30: 0.4}, None),
    ],
)  # fmt: skip
def test_a_reward_that_rises_while_held_out_answers_get_worse(
    validations: Mapping[int, float], step: int | None
) -> None:
    found = [each for each in alerts_of(scores(RISES[:60]), validations) if each.rule == "reward-exploited"]
    assert [each.step for each in found if each.level == "critical"] == ([] if step is None else [step])


@pytest.mark.parametrize(
    ("values", "validations", "step"),
    [
        ([1.8] * 40, {0: 0.3, 10: 0.15, 20: 0.0, 30: 0.0}, 20),  # lost, and the reward stays
        ([1.8] * 40, {0: 0.3, 10: 0.2, 20: 0.15, 30: 0.14}, None),  # not lost
        ([1.8] * 40, {0: 0.3, 10: 0.0, 20: 0.3, 30: 0.3}, None),  # one bad validation
        ([1.8 - 0.03 * n for n in range(40)], {0: 0.3, 10: 0.15, 20: 0.0, 30: 0.0}, None),  # the reward falls with it
    ],
)  # fmt: skip
def test_a_reward_that_stays_while_the_held_out_score_is_lost(
    values: Sequence[float], validations: Mapping[int, float], step: int | None
) -> None:
    found = [each for each in alerts_of(scores(values), validations) if each.rule == "reward-exploited"]
    assert [each.step for each in found if each.level == "critical"] == ([] if step is None else [step])


@pytest.mark.parametrize(
    ("kl", "spread", "ratio", "wrong"),
    [
        (-0.07, 0.02, 2.0, True),
        (-0.07, 0.02, None, True),  # a log without the ratio
        (-0.07, 0.02, 1.0, False),  # the answers' own updates, say
        (0.0, 0.006, 1.0, False),
        (-0.005, 0.001, 1.2, False),
        (0.2, 0.05, 1.5, False),
        (-0.03, 0.2, 1.2, False),  # noise
    ],
)
def test_a_divergence_below_0_is_that_of_other_log_probabilities(
    kl: float, spread: float, ratio: float | None, wrong: bool
) -> None:
    more = {} if ratio is None else {"actor/ratio_mean": ratio}
    found = alerts_of([{"actor/ppo_kl": value, **more} for value in around(kl, spread)])
    steps = [each.step for each in found if each.rule == "old-policy-wrong" and each.level == "critical"]
    assert len(steps) == wrong and all(step <= 20 for step in steps)


@pytest.mark.parametrize(
    ("apart", "correlation", "levels"),
    [
        (0.0, 1.0, []),
        (0.004, 0.999, []),
        (0.02, 0.97, ["warn"]),  # 8 bits, say
        (0.065, 0.96, ["critical"]),  # a temperature of 0.6
        (0.03, 0.5, ["critical"]),
        (0.8, 0.05, ["critical"]),
    ],
)
def test_probabilities_of_sampler_and_trainer(apart: float, correlation: float, levels: list[str]) -> None:
    one = {"training/rollout_probs_diff_mean": apart, "training/rollout_actor_probs_pearson_corr": correlation}
    found = alerts_of([one] * 20)
    assert [each.level for each in found if each.rule.startswith("probabilities-")] == levels
