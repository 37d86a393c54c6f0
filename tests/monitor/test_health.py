"""Rules over the metrics of a run: what each finds, and that healthy runs are left alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import pytest

from launcher.config.resolve import resolve
from launcher.core.events import Alert, Loaded, Step
from launcher.monitor.health import Health, noise

SFT = resolve(["algorithm=sft", "model=tiny", "data=reverse", "optim.lr=1e-5"])
GRPO = resolve(["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=8", "optim.lr=1e-5"])
VAL = "val-core/reverse/reward/mean@1"


def judged(run: object, steps: Iterable[Mapping[str, float]]) -> tuple[list[Alert], list[str]]:
    """The alerts while it ran, and the rules that hold at its end. Step 0 is the first of `steps`."""
    health, alerts, steps = Health(run), list[Alert](), list(steps)  # type: ignore[arg-type]
    health.hear(Loaded(rows=8, refused=0, val_rows=0, val_refused=0, steps_per_epoch=1, steps=len(steps) - 1))
    for number, metrics in enumerate(steps):
        alerts += health.hear(Step(step=number, metrics=metrics))
    return alerts, [found.rule for found in health.verdict()]


def around(values: Sequence[float], spread: float, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [value + chance.gauss(0.0, spread) for value in values]


def sampled(
    scores: Sequence[float], *, flat: float = 0.2, entropy: float = 0.5, cut: float = 0.0, norm: float = 0.3,
    validations: Mapping[int, float] = {}, **more: float,
) -> list[dict[str, float]]:  # fmt: skip
    """Steps of a run that samples, after a step 0 with a validation."""
    found = [{VAL: validations[0], **bounds(validations[0])} if 0 in validations else {}]
    for step, score in enumerate(scores, start=1):
        found.append({
            "critic/score/mean": score, "critic/score/max": 1.0, "critic/frac_reward_zero_std": flat,
            "actor/entropy": entropy, "actor/grad_norm": norm, "actor/lr": 1e-5, "actor/skipped_nonfinite": 0.0,
            "response_length/clip_ratio": cut, **more,
        })  # fmt: skip
        if step in validations:
            found[-1] |= {VAL: validations[step], **bounds(validations[step])}
    return found


def bounds(value: float) -> dict[str, float]:
    stem = VAL.replace("val-core", "val-aux")
    return {stem.replace("mean", "wilson95_low"): value - 0.05, stem.replace("mean", "wilson95_high"): value + 0.05}


def losses(values: Sequence[float], **more: float) -> list[dict[str, float]]:
    return [
        {},
        *({"train/loss": value, "train/grad_norm": 1.0, "train/skipped_nonfinite": 0.0, **more} for value in values),
    ]


LINE = [step / 60 for step in range(60)]
RISING, FALLING = [0.2 + 0.5 * x for x in LINE], [0.6 - 0.5 * x for x in LINE]
LEARNT = {0: 0.2, 30: 0.4, 60: 0.7}
RUINED = {
    "loss-diverged": (SFT, losses([2.9, 2.8, *[2.9 * 1.5**n for n in range(20)]])),
    "nothing-learnt": (SFT, losses(around([2.9] * 60, 0.02))),
    "not-finite": (SFT, losses([2.9] * 20, **{"train/skipped_nonfinite": 1.0})),
    "no-gradient": (SFT, losses([2.9] * 20, **{"train/grad_norm": 0.0})),
    "no-signal": (GRPO, sampled([0.0] * 12, flat=1.0)),
    "no-groups": (GRPO, sampled(around([0.3] * 12, 0.05), **{"train/groups_kept": 0.0})),
    "scores-missing": (GRPO, sampled(around([0.3] * 12, 0.05), **{"reward/faults": 1500.0})),
    "score-fell": (GRPO, sampled(around(FALLING, 0.03))),
    "worse-than-before": (GRPO, sampled(around([0.5] * 60, 0.03), validations={0: 0.57, 30: 0.5, 60: 0.36})),
    "past-its-best": (GRPO, sampled(around(RISING, 0.03), entropy=0.4, validations={0: 0.2, 30: 0.7, 60: 0.45})),
    "answers-cut": (GRPO, sampled(around([0.1] * 20, 0.02), cut=0.97)),
    "far-from-reference": (GRPO, [
        step | ({"actor/kl_loss": 0.01 if number < 50 else 3.0} if step else {})
        for number, step in enumerate(sampled(around([0.3] * 60, 0.03)))
    ]),
    "entropy-collapsed": (GRPO, [
        step | ({"actor/entropy": max(2.5 - number / 10, 0.005)} if step else {})
        for number, step in enumerate(sampled(around([0.3] * 60, 0.03)))
    ]),
    "entropy-exploded": (GRPO, [
        step | ({"actor/entropy": 0.5 + number / 10} if step else {})
        for number, step in enumerate(sampled(around([0.3] * 60, 0.03)))
    ]),
}  # fmt: skip


@pytest.mark.parametrize("rule", RUINED)
def test_what_ruins_a_run_is_named_before_its_end_and_at_its_end(rule: str) -> None:
    alerts, verdict = judged(*RUINED[rule])
    ruins = {rule, "reward-exploited"} if rule == "past-its-best" else {rule}
    assert ruins & set(verdict)
    assert alerts and all("use " in alert.text or "look " in alert.text or "test " in alert.text for alert in alerts)
    assert len({alert.text.partition(";")[0] for alert in alerts}) == len(alerts)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "healthy",
    [
        lambda seed: (SFT, losses(around([3.0 * 0.97**n + 0.5 for n in range(120)], 0.1, seed))),
        lambda seed: (SFT, losses(around([0.9 - 0.001 * n for n in range(200)], 0.02, seed))),
        lambda seed: (GRPO, sampled(around(RISING, 0.06, seed), validations=LEARNT)),
        lambda seed: (
            GRPO,
            sampled(around([0.45 + 0.02 * x for x in LINE], 0.06, seed), validations={0: 0.42, 60: 0.45}),
        ),
        lambda seed: (GRPO, sampled([*around(RISING, 0.05, seed), *[0.99] * 10], flat=0.2, validations=LEARNT)),
        lambda seed: (GRPO, sampled(around([1.0] * 20, 0.0, seed), flat=1.0, validations={0: 0.95, 20: 1.0})),
    ],
    ids=["sft", "sft, slowly", "grpo", "grpo, hardly", "grpo, nearly all", "grpo, all solved"],
)
def test_a_healthy_run_is_not_called_ruined(healthy: object, seed: int) -> None:
    assert judged(*healthy(seed)) == ([], [])  # type: ignore[operator]


def test_a_run_of_no_steps_says_so() -> None:
    assert judged(SFT, [{}])[1] == ["no-step"]


def test_what_was_logged_before_is_not_said_again() -> None:
    run, steps = RUINED["no-signal"]
    events = [Step(step=number, metrics=metrics) for number, metrics in enumerate(steps)]
    alerts = judged(run, steps)[0]
    assert Health(run).replay([*events, *alerts]) == []
    assert [alert.text for alert in Health(run).replay(events)] == [alert.text for alert in alerts]


@pytest.mark.parametrize(("values", "expected"), [([], 0.0), ([1.0], 0.0), ([2.0] * 9, 0.0)])
def test_noise_of_what_does_not_vary(values: list[float], expected: float) -> None:
    assert noise(values) == expected


def test_noise_is_that_of_neighbours() -> None:
    values = around([n / 100 for n in range(200)], 0.5)
    assert noise(values) == pytest.approx(0.5, rel=0.2)
