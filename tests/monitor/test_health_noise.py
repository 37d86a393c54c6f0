"""Healthy runs with much noise, few held-out rows or unusual scores are left alone; the same, ruined, are named."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping

import pytest

from launcher.config.resolve import resolve
from launcher.core.events import Loaded, Step, WeightsMoved
from launcher.core.metrics import wilson
from launcher.monitor.health import Health

SEEDS = 20
SFT = resolve(["algorithm=sft", "model=tiny", "data=reverse", "optim.lr=1e-5"])
ORDERED = resolve(["algorithm=sft", "model=tiny", "data=reverse", "data.shuffle=false"])
DPO = resolve(["algorithm=dpo", "model=tiny", "data=reverse", "algorithm.beta=0.01"])
GRPO = resolve(["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=8", "data.train_batch_size=16"])
EVERY = 10  # steps between two validations

Metrics = dict[str, float]
Simulated = tuple[object, list[Metrics], int]
"""A run, its steps, and its held-out rows."""


def simulated(simulation: Simulated, moved: float | None) -> tuple[list[str], list[str]]:
    """The alerts and the verdict."""
    run, steps, rows = simulation
    health = Health(run)  # type: ignore[arg-type]
    health.hear(Loaded(rows=512, refused=0, val_rows=rows, val_refused=0, steps_per_epoch=8, steps=len(steps) - 1))
    heard = [health.hear(Step(step=number, metrics=metrics)) for number, metrics in enumerate(steps)]
    if moved is not None:
        heard.append(health.hear(WeightsMoved(step=len(steps) - 1, distance={"attention": moved})))
    return [alert.text for alerts in heard for alert in alerts], [finding.rule for finding in health.verdict()]


def line(first: float, last: float, count: int) -> list[float]:
    return [first + (last - first) * number / (count - 1) for number in range(count)]


def share(chance: random.Random, p: float, rows: int) -> float:
    return sum(chance.random() < p for _ in range(rows)) / rows


def with_validations(steps: Iterable[Metrics], measure: Callable[[int], Metrics]) -> list[Metrics]:
    """A step 0 and `steps`, with what `measure` finds at each step that validates."""
    return [step | (measure(number) if number % EVERY == 0 else {}) for number, step in enumerate([{}, *steps])]


def interval(source: str, value: float, rows: int) -> Metrics:
    low, high = wilson(value, rows)
    aux = f"val-aux/{source}/reward/wilson95_"
    return {f"val-core/{source}/reward/mean@1": value, f"{aux}low@1": low, f"{aux}high@1": high}


def rewarded(
    chance: random.Random, means: Iterable[float], spread: float, low: float, high: float, *, flat: float = 0.3
) -> list[Metrics]:
    """Steps of 16 prompts with 8 answers each, whose scores have that spread."""
    return [
        {
            "critic/score/mean": min(max(mean + chance.gauss(0, spread / math.sqrt(128)), low), high),
            "critic/score/max": high, "critic/score/min": low, "critic/frac_reward_zero_std": flat,
            "actor/grad_norm": 0.3, "actor/lr": 1e-5, "actor/entropy": 0.4,
            "actor/skipped_nonfinite": 0.0,
        }
        for mean in means
    ]  # fmt: skip


def losses(values: Iterable[float]) -> list[Metrics]:
    return [{"train/loss": value, "train/grad_norm": 1.0} for value in values]


def pairs(chance: random.Random, loss: list[float], accuracy: list[float], spread: float = 0.002) -> list[Metrics]:
    return [
        {
            "actor/dpo_loss": x + chance.gauss(0, spread), "rewards/accuracies": share(chance, p, 64),
            "rewards/margins": 2 * (math.log(2) - x) + chance.gauss(0, spread), "actor/grad_norm": 0.3,
        }
        for x, p in zip(loss, accuracy, strict=True)
    ]  # fmt: skip


# ---- healthy


def few_pairs(chance: random.Random, rows: int = 16) -> Simulated:
    steps = pairs(chance, line(0.69, 0.55, 100), line(0.5, 0.75, 100))
    return DPO, with_validations(steps, lambda _: {"val/rewards/accuracies": share(chance, 0.7, rows)}), rows


def two_sources(chance: random.Random, rows: int = 32) -> Simulated:
    truth = line(0.5, 0.6, 101)
    steps = rewarded(chance, truth[1:], 0.45, 0.0, 1.0)
    measure = lambda step: {
        **interval("a", share(chance, truth[step], rows), rows),
        **interval("b", share(chance, truth[step], rows), rows),
    }
    return GRPO, with_validations(steps, measure), 2 * rows


def reward_model(chance: random.Random, rise: float = 0.3) -> Simulated:
    """64 held-out rows, whose scores have a standard deviation of 0.8."""
    truth = line(0.1, 0.1 + rise, 101)
    measure = lambda step: {"val-core/rm/reward/mean@1": chance.gauss(truth[step], 0.1)}
    return GRPO, with_validations(rewarded(chance, truth[1:], 0.8, -3.0, 3.0), measure), 64


def learnt_loss(chance: random.Random) -> Simulated:
    """Nearly all is learnt, and the held-out loss goes up and down by a few thousandths."""
    steps = losses(abs(chance.gauss(0.01, 0.003)) for _ in range(100))
    return SFT, with_validations(steps, lambda _: {"val/loss": chance.gauss(0.0105, 0.001)}), 64


def noisy_held_out_loss(chance: random.Random) -> Simulated:
    truth = line(1.4, 1.2, 101)
    steps = losses(chance.gauss(x, 0.15) for x in truth[1:])
    return SFT, with_validations(steps, lambda step: {"val/loss": chance.gauss(truth[step], 0.03)}), 16


def small_beta(chance: random.Random) -> Simulated:
    return DPO, [{}, *pairs(chance, line(0.6917, 0.6829, 100), line(0.5, 0.75, 100))], 0


def continued_pretraining(chance: random.Random) -> Simulated:
    return SFT, [{}, *losses(chance.gauss(x, chance.choice((0.01, 0.03, 0.1))) for x in line(2.10, 2.07, 200))], 0


def penalties(chance: random.Random) -> Simulated:
    """Rewards in [-1, 0] that rise to 0, after which answers agree."""
    steps = rewarded(chance, line(-0.8, -0.02, 60), 0.4, -1.0, 0.0)
    return GRPO, [{}, *steps, *rewarded(chance, [0.0] * 30, 0.0, -1.0, 0.0, flat=1.0)], 0


def converged(chance: random.Random) -> Simulated:
    steps = rewarded(chance, line(0.30, 0.85, 60), 0.45, 0.0, 1.0)
    return GRPO, [{}, *steps, *rewarded(chance, [0.85] * 30, 0.0, 0.0, 1.0, flat=1.0)], 0


def all_right_before(chance: random.Random) -> Simulated:
    steps = rewarded(chance, [1.0] * 60, 0.01, 0.0, 1.0)
    for step in steps:
        step["critic/frac_reward_zero_std"] = float(chance.random() > 0.005)
    return GRPO, with_validations(steps, lambda _: interval("a", 1.0, 64)), 64


def easy_to_hard(chance: random.Random) -> Simulated:
    return ORDERED, [{}, *losses(chance.gauss(x, 0.03) for x in line(0.2, 1.0, 100))], 0


def batch_of_one(chance: random.Random) -> Simulated:
    return SFT, [{}, *losses(chance.lognormvariate(0.0, 0.7) for _ in range(200))], 0


def short(chance: random.Random) -> Simulated:
    return SFT, [{}, *losses(chance.lognormvariate(0.0, 0.5) for _ in range(chance.choice((1, 2, 3, 4, 5))))], 0


def hiccup(chance: random.Random) -> Simulated:
    """A reward server that was away for a step or two."""
    steps = rewarded(chance, line(0.3, 0.6, 60), 0.45, 0.0, 1.0)
    for number in (20, 21):
        steps[number] = {"reward/faults": 128.0, "actor/skipped_nonfinite": 1.0}
    return GRPO, [{}, *steps], 0


HEALTHY = (
    few_pairs, two_sources, reward_model, learnt_loss, noisy_held_out_loss, small_beta, continued_pretraining,
    penalties, converged, easy_to_hard, batch_of_one, short, hiccup,
)  # fmt: skip


@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda each: each.__name__)
@pytest.mark.parametrize("moved", [0.01, None])
def test_noise_is_no_verdict(healthy: Callable[[random.Random], Simulated], moved: float | None) -> None:
    found = {seed: simulated(healthy(random.Random(seed)), moved) for seed in range(SEEDS)}
    assert {seed: each for seed, each in found.items() if each != ([], [])} == {}


def test_a_run_with_nothing_left_to_learn_says_so_and_is_not_ruined() -> None:
    alerts, verdict = simulated(all_right_before(random.Random(0)), 1e-5)
    assert not verdict
    assert alerts == ["nearly all answers had the largest score, 1, from the start: nothing is left to learn; "
                      "use harder data"]  # fmt: skip


# ---- ruined


def sunk(values: list[Metrics], more: Mapping[int, Metrics]) -> list[Metrics]:
    return [step | more.get(number, {}) for number, step in enumerate(values)]


def pairs_forgotten(chance: random.Random) -> Simulated:
    run, steps, rows = few_pairs(chance, 128)
    return run, sunk(steps, {100: {"val/rewards/accuracies": 0.4}, 90: {"val/rewards/accuracies": 0.42}}), rows


def source_forgotten(chance: random.Random) -> Simulated:
    run, steps, rows = two_sources(chance, 128)
    return run, sunk(steps, {n: {**interval("a", 0.1, 128), **interval("b", 0.4, 128)} for n in (90, 100)}), rows


def reward_model_exploited(chance: random.Random) -> Simulated:
    run, steps, rows = reward_model(chance, 1.5)
    return run, sunk(steps, {n: {"val-core/rm/reward/mean@1": -1.5} for n in (90, 100)}), rows


def overfitted(chance: random.Random) -> Simulated:
    truth = [*line(1.4, 1.1, 50), *line(1.1, 1.6, 51)]
    steps = losses(chance.gauss(x, 0.05) for x in line(1.4, 0.3, 100))
    return SFT, with_validations(steps, lambda step: {"val/loss": truth[step]}), 64


def scores_lost(chance: random.Random) -> Simulated:
    """Half of the steps have no score at all."""
    steps = rewarded(chance, line(0.3, 0.3, 40), 0.45, 0.0, 1.0)
    return GRPO, [{}, *(step | ({"reward/faults": 100.0} if n % 2 else {}) for n, step in enumerate(steps))], 0


def updates_skipped(chance: random.Random) -> Simulated:
    """And an answer has no score now and then."""
    steps = rewarded(chance, line(0.3, 0.3, 40), 0.45, 0.0, 1.0)
    return GRPO, [{}, *(step | {"actor/skipped_nonfinite": 1.0, "reward/faults": float(n % 5 == 0)}
                        for n, step in enumerate(steps))], 0  # fmt: skip


def exploded_soon(chance: random.Random) -> Simulated:
    return SFT, [{}, *losses([2.9, *(chance.gauss(60.0, 9.0) for _ in range(chance.choice((1, 2, 3, 4))))])], 0


def exploded_in_order(chance: random.Random) -> Simulated:
    return ORDERED, [{}, *losses(chance.gauss(x, 0.1) for x in [*line(2.0, 1.5, 30), *line(30.0, 60.0, 10)])], 0


def pairs_still(chance: random.Random) -> Simulated:
    return DPO, [{}, *pairs(chance, [0.693] * 100, [0.5] * 100, 1e-4)], 0


RUINED = {
    pairs_forgotten: {"past-its-best", "worse-than-before"}, source_forgotten: {"reward-exploited"},
    reward_model_exploited: {"reward-exploited"}, overfitted: {"worse-than-before"},
    scores_lost: {"scores-missing"}, updates_skipped: {"not-finite"}, exploded_soon: {"loss-diverged"},
    exploded_in_order: {"loss-diverged"}, pairs_still: {"nothing-learnt"},
}  # fmt: skip


@pytest.mark.parametrize("ruined", RUINED, ids=lambda each: each.__name__)
def test_what_is_beyond_noise_is_named(ruined: Callable[[random.Random], Simulated]) -> None:
    found = {seed: simulated(ruined(random.Random(seed)), 1e-6)[1] for seed in range(SEEDS)}
    assert {seed: each for seed, each in found.items() if not RUINED[ruined] & set(each)} == {}
