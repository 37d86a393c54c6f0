"""Rules over the metrics of a run: what each finds, and that healthy runs are left alone."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from launcher.config.resolve import resolve
from launcher.core.events import Alert, Loaded, Step, WeightsMoved
from launcher.monitor.health import Health, leading_arguments
from launcher.monitor.history import noise
from launcher.spec.run import RunSpec

SFT = resolve(["algorithm=sft", "model=tiny", "data=reverse", "optim.lr=1e-5"])
GRPO = resolve(["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=8", "optim.lr=1e-5"])
TINY = resolve(["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=2", "data.train_batch_size=1"])
PPO = resolve(["algorithm=ppo", "model=tiny", "data=reverse"])
DAPO = resolve(["algorithm=dapo", "model=tiny", "data=reverse", "sampler.n=8", "algorithm.min_group_std=0.9"])
ORDERED, SFT_ORDERED = (replace(run, data=replace(run.data, shuffle=False)) for run in (GRPO, SFT))
BFLOAT16 = replace(SFT, model=replace(SFT.model, dtype="bfloat16"))
VAL = "val-core/reverse/reward/mean@1"


def judged(
    run: object, steps: Iterable[Mapping[str, float]], moved: float | None = None
) -> tuple[list[Alert], list[str]]:
    """The alerts while it ran, and the rules that hold at its end. Step 0 is the first of `steps`."""
    health, alerts, steps = Health(run), list[Alert](), list(steps)  # type: ignore[arg-type]
    health.hear(Loaded(rows=8, refused=0, val_rows=64, val_refused=0, steps_per_epoch=1, steps=len(steps) - 1))
    for number, metrics in enumerate(steps):
        alerts += health.hear(Step(step=number, metrics=metrics))
    if moved is not None:
        alerts += health.hear(WeightsMoved(step=len(steps) - 1, distance={"attention": moved, "mlp": moved}))
    for finding in health.verdict():  # whatever is advised may be typed
        for word in finding.settings:
            assert re.fullmatch(r"[a-z_.]+=[a-z0-9.+-]+", word) and word in finding.text
    return alerts, [finding.rule for finding in health.verdict()]


def around(values: Sequence[float], spread: float, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [value + chance.gauss(0.0, spread) for value in values]


def sampled(
    scores: Sequence[float], *, flat: float = 0.2, entropy: float = 0.5, cut: float = 0.0, norm: float = 0.3,
    validations: Mapping[int, float] = {}, high: float = 1.0, low: float = 0.0, **more: float,
) -> list[dict[str, float]]:  # fmt: skip
    """Steps of a run that samples, after a step 0 with a validation."""
    found = [{VAL: validations[0], **bounds(validations[0])} if 0 in validations else {}]
    for step, score in enumerate(scores, start=1):
        found.append({
            "critic/score/mean": score, "critic/score/max": high, "critic/score/min": low,
            "critic/frac_reward_zero_std": flat,
            "actor/entropy": entropy, "actor/grad_norm": norm, "actor/lr": 1e-5, "actor/skipped_nonfinite": 0.0,
            "response_length/clip_ratio": cut, **more,
        })  # fmt: skip
        if step in validations:
            found[-1] |= {VAL: validations[step], **bounds(validations[step])}
    return found


def varied(name: str, values: Sequence[float], **more: float) -> list[dict[str, float]]:
    """Steps with a metric of its own at each, whose score does not change."""
    steps = sampled(around([0.3] * len(values), 0.03), **more)  # type: ignore[arg-type]
    return [steps[0], *(step | {name: value} for step, value in zip(steps[1:], values, strict=True))]


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
    "nothing-learnt": (SFT, losses(around([2.9] * 60, 0.02)), 1e-6),
    "not-finite": (SFT, losses([2.9] * 20, **{"train/skipped_nonfinite": 1.0})),
    "no-gradient": (SFT, losses([2.9] * 20, **{"train/grad_norm": 0.0})),
    "no-signal": (GRPO, sampled([0.0] * 20, flat=1.0)),
    "no-groups": (GRPO, sampled(around([0.3] * 20, 0.05), **{"train/groups_kept": 0.0})),
    "scores-missing": (GRPO, sampled(around([0.3] * 12, 0.05), **{"reward/faults": 1500.0})),
    "score-fell": (GRPO, sampled(around(FALLING, 0.03))),
    "worse-than-before": (GRPO, sampled(around([0.5] * 60, 0.03), validations={0: 0.57, 30: 0.5, 60: 0.36})),
    "past-its-best": (GRPO, sampled(around(RISING, 0.03), entropy=0.4, validations={0: 0.2, 30: 0.7, 60: 0.45})),
    "answers-cut": (GRPO, sampled(around([0.1] * 20, 0.02), cut=0.97)),
    "answers-cut: all wrong": (GRPO, sampled([0.0] * 20, cut=1.0, flat=1.0, high=0.0)),
    "far-from-reference": (GRPO, varied("actor/kl_loss", [0.01] * 50 + [3.0] * 10)),
    "entropy-collapsed": (GRPO, varied("actor/entropy", [max(2.5 - number / 10, 0.005) for number in range(60)])),
    "entropy-exploded": (GRPO, varied("actor/entropy", [0.5 + number / 10 for number in range(60)])),
    "loss-diverged: at once": (SFT, losses([2.9, 31.0, 64.0, 92.0, 271.0, 150.0, 213.0, 212.0])),
    "not-finite: two steps": (SFT, losses([2.9] * 2, **{"train/skipped_nonfinite": 1.0})),
    "loss-diverged: later": (SFT, losses(around([*[2.9 - x * 1.9 for x in LINE], *[2.2] * 30], 0.05))),
    "loss-diverged: not by much": (SFT, losses(around([2.9 + 0.6 * x for x in LINE], 0.05))),
    "rate-zero": (SFT, losses(around([2.9] * 20, 0.02), **{"train/lr": 0.0})),
    "no-tokens": (SFT, losses([0.0] * 20, **{"train/loss_tokens": 0.0, "train/grad_norm": 0.0})),
    "no-end": (SFT, losses([2.9 * 0.95**n for n in range(40)], **{"train/end_token_share": 0.0})),
    "weights-still": (SFT, losses([2.9 * 0.95**n for n in range(40)]), 0.0),
    "weights-still: bfloat16": (BFLOAT16, losses(around([2.9] * 6, 0.02)), 0.0),
    "score-fell: after a rise": (GRPO, sampled(around([*RISING, *RISING[::-1], *[0.2] * 20], 0.03))),
    "no-signal: from the start": (GRPO, sampled([1.0] * 30, flat=1.0, validations={0: 1.0, 30: 1.0}, low=1.0)),
    "no-signal: a group in thirty": (
        GRPO, varied("critic/frac_reward_zero_std", [1.0, 1.0, 0.9] * 20, validations={0: 0.3, 60: 0.3}),
    ),
    "no-signal: two steps": (GRPO, sampled([0.0] * 2, flat=1.0)),
    "no-signal: one answer each": (PPO, sampled([0.5] * 30, flat=1.0, high=0.5, low=0.5)),
    "no-groups: never": (DAPO, sampled(around([0.3] * 4, 0.05), **{"train/groups_kept": 0.0})),
    "scores-missing: a third": (GRPO, sampled(around([0.3] * 12, 0.05), **{"reward/faults": 700.0})),
    "scores-missing: held out": (
        GRPO, sampled(around(RISING, 0.03), **{VAL.replace("core", "aux").replace("mean", "scored"): 0.1},
                      validations=LEARNT),
    ),
    "length-changed: nothing": (GRPO, varied("response_length/mean", [100 * 0.9**n for n in range(60)])),
    "length-changed: all there is": (
        GRPO, varied("response_length/mean", [100 + 10 * n for n in range(60)], cut=0.7),
    ),
    "critic-diverged": (PPO, varied("critic/vf_loss", [0.05 * 1.3**n for n in range(60)])),
    "far-from-reference: slowly": (GRPO, varied("actor/kl_loss", [0.1 * n for n in range(60)])),
}  # fmt: skip


@pytest.mark.parametrize("case", RUINED)
def test_what_ruins_a_run_is_named_before_its_end_and_at_its_end(case: str) -> None:
    alerts, verdict = judged(*RUINED[case])
    rule = case.partition(":")[0]
    ruins = {rule, "reward-exploited"} if rule == "past-its-best" else {rule}
    assert ruins & set(verdict)
    assert alerts and all(re.search(r"; (use|look|test) ", alert.text) for alert in alerts)
    assert len({alert.text.partition(";")[0] for alert in alerts}) == len(alerts)


def coins(seed: int) -> list[dict[str, float]]:
    """Two answers to one prompt a step, half of which differ."""
    chance = random.Random(seed)
    flat = [chance.random() < 0.6 for _ in range(200)]
    steps = [sampled([chance.choice((0.0, 1.0)) if same else 0.5], flat=float(same))[1] for same in flat]
    return [{}, *steps]


DIP = [0.5 - 0.3 * x for x in LINE[:15]] + [0.35 + 0.01 * n for n in range(45)]
HEALTHY = {
    "sft": lambda seed: (SFT, losses(around([3.0 * 0.97**n + 0.5 for n in range(120)], 0.1, seed))),
    "sft, slowly": lambda seed: (SFT, losses(around([0.9 - 0.001 * n for n in range(200)], 0.02, seed))),
    "sft, noisy": lambda seed: (SFT, losses(around([2.0 - 0.005 * n for n in range(200)], 0.5, seed))),
    "sft, learnt before": lambda seed: (SFT, losses(around([0.004] * 100, 0.0005, seed))),
    "sft, a little up": lambda seed: (SFT, losses(around([0.8 + 0.03 * x for x in LINE], 0.02, seed))),
    "sft, warm-up": lambda seed: (SFT, losses(around([3.0] * 20 + [3.0 * 0.97**n for n in range(80)], 0.05, seed))),
    "sft, ordered": lambda seed: (SFT_ORDERED, losses(around([0.8 + 0.9 * x for x in LINE], 0.05, seed))),
    "sft, three steps": lambda seed: (SFT, losses(around([3.0, 2.9, 2.8], 0.05, seed))),
    "grpo": lambda seed: (GRPO, sampled(around(RISING, 0.06, seed), validations=LEARNT)),
    "grpo, hardly": lambda seed: (
        GRPO, sampled(around([0.45 + 0.02 * x for x in LINE], 0.06, seed), validations={0: 0.42, 60: 0.45}),
    ),
    "grpo, nearly all": lambda seed: (
        GRPO, sampled([*around(RISING, 0.05, seed), *[0.99] * 10], flat=0.2, validations=LEARNT),
    ),
    "grpo, all solved": lambda seed: (
        GRPO, sampled(around([1.0] * 20, 0.0, seed), flat=1.0, validations={0: 0.95, 20: 1.0}),
    ),
    "grpo, good before": lambda seed: (
        GRPO, sampled(around([0.97] * 60, 0.01, seed), flat=0.8, entropy=0.01, validations={0: 1.0, 30: 1.0, 60: 1.0}),
    ),
    "grpo, a dip": lambda seed: (
        GRPO, sampled(around(DIP, 0.03, seed), validations={0: 0.5, 20: 0.36, 40: 0.55, 60: 0.8}),
    ),
    "grpo, very noisy": lambda seed: (GRPO, sampled(around([0.3 + 0.2 * x for x in LINE], 0.2, seed))),
    "grpo, ordered": lambda seed: (ORDERED, sampled(around([0.8 - 0.5 * x for x in LINE], 0.03, seed))),
    "grpo, one prompt": lambda seed: (TINY, coins(seed)),
    "grpo, two steps": lambda seed: (GRPO, sampled(around([0.3, 0.32], 0.05, seed))),
    "grpo, long": lambda seed: (GRPO, sampled(around([0.2 + 0.0003 * n for n in range(1500)], 0.06, seed))),
    "ppo": lambda seed: (PPO, sampled(around(RISING, 0.06, seed), flat=1.0, validations=LEARNT)),
}  # fmt: skip


@pytest.mark.parametrize("healthy", HEALTHY)
def test_a_healthy_run_is_not_called_ruined(healthy: str) -> None:
    for seed in range(20 if healthy != "grpo, long" else 2):
        assert judged(*HEALTHY[healthy](seed), 0.01) == ([], []), seed  # type: ignore[no-untyped-call]


def test_a_run_may_find_its_first_reward_late() -> None:
    found = [*sampled([0.0] * 12, flat=1.0), *sampled(around([0.02 + 0.5 * x for x in LINE], 0.01), flat=0.4)[1:]]
    assert judged(GRPO, found) == ([], [])


def test_a_run_of_no_steps_says_so() -> None:
    assert judged(SFT, [{}])[1] == ["no-step"]


@pytest.mark.parametrize(
    ("words", "case", "fix"),
    [
        (["algorithm=sft", "optim.lr=1e-3", "optim.weight_decay=50"], "loss-diverged", "optim.weight_decay=0.01"),
        (["algorithm=sft", "optim.lr=2"], "loss-diverged", "optim.lr=0.001"),
        (["algorithm=sft", "optim.lr=1e-5"], "loss-diverged", "optim.lr=1e-06"),
        (["algorithm=sft", "optim.lr=1e-9"], "nothing-learnt", "optim.lr=1e-05"),
        (["algorithm=sft", "optim.lr=1e-9", "model.lora_rank=4"], "nothing-learnt", "optim.lr=0.0001"),
        (["algorithm=sft", "optim.clip_grad=1e-9"], "nothing-learnt", "optim.clip_grad=1"),
        (["algorithm=dpo", "algorithm.beta=1e-6"], "nothing-learnt", "algorithm.beta=0.1"),
        (["algorithm=grpo", "sampler.n=8", "sampler.temperature=0.01"], "no-signal", "sampler.temperature=1"),
        (["algorithm=grpo", "sampler.n=8"], "no-signal", "sampler.n=16"),
        (["algorithm=grpo", "sampler.n=8"], "answers-cut: all wrong", "data.max_response_length=24"),
        (
            ["algorithm=grpo", "sampler.n=8", "algorithm.entropy_coeff=1"],
            "entropy-exploded",
            "algorithm.entropy_coeff=0",
        ),
    ],
)
def test_the_argument_is_the_one_that_caused_it(words: list[str], case: str, fix: str) -> None:
    run = resolve([*words, "model=tiny", "data=reverse"])
    steps = [{name.replace("train/loss", LOSS[run.algorithm.data]): x for name, x in step.items()}
             for step in RUINED[case][1]]  # fmt: skip
    health = Health(run)
    health.hear(Loaded(rows=8, refused=0, val_rows=0, val_refused=0, steps_per_epoch=1, steps=len(steps) - 1))
    for number, metrics in enumerate(steps):
        health.hear(Step(step=number, metrics=metrics))
    for moved in RUINED[case][2:]:
        health.hear(WeightsMoved(step=len(steps) - 1, distance={"attention": moved}))
    assert health.verdict()[0].settings == (fix,)


LOSS = {"answers": "train/loss", "pairs": "actor/dpo_loss", "prompts": "train/loss"}


@pytest.mark.parametrize(("steps", "moved", "named"), [(5, 0.0, False), (30, 0.0, True), (30, 1e-3, False)])
def test_weights_that_stay_are_named_after_a_warm_up(steps: int, moved: float, named: bool) -> None:
    health = Health(SFT)
    health.hear(Loaded(rows=8, refused=0, val_rows=0, val_refused=0, steps_per_epoch=1, steps=60))
    for step, loss in enumerate(around([2.9 * 0.95**n for n in range(steps)], 0.01), start=1):
        assert not health.hear(Step(step=step, metrics={"train/loss": loss}))
    alerts = health.hear(WeightsMoved(step=steps, distance={"attention": moved}))
    assert [alert.text for alert in alerts] == ["the weights did not move; use optim.lr=0.0001"] * named


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


def test_a_fix_of_the_profile_suits_the_run() -> None:
    """Settings that the run does not have, and values that it has, are left out of it."""
    hot = replace(GRPO, sampler=replace(GRPO.sampler, temperature=0.5), trainer=replace(GRPO.trainer, ppo_epochs=2))
    silent = [{"critic/score/mean": 0.0, "critic/advantages/max": 0.0, "critic/advantages/min": 0.0}] * 18
    clipped = [{"actor/pg_clipfrac": 0.8}] * 12

    def fixes(run: RunSpec, steps: Sequence[Mapping[str, float]]) -> list[str]:
        health = Health(replace(run, data=replace(run.data, train_batch_size=4)))
        return [a.fix for n, m in enumerate(steps, 1) for a in health.hear(Step(step=n, metrics=m))]

    assert fixes(GRPO, silent)[0].startswith("sampler.n=16, easier data, or SFT first; ")
    assert fixes(hot, silent)[0].startswith("sampler.n=16 sampler.temperature=1, easier data, ")
    assert fixes(GRPO, clipped) == ["a larger trainer.ppo_mini_batch_size"]
    assert fixes(hot, clipped) == ["trainer.ppo_epochs=1, or a larger trainer.ppo_mini_batch_size"]


def test_a_policy_that_diverged_gets_a_smaller_learning_rate_and_not_longer_answers() -> None:
    """Answers that ended before, and a score that fell with it, need no longer bound; nor more answers."""
    scores = [*around([0.6] * 12, 0.01), *[0.02] * 12]
    cuts = [0.05] * 12 + [1.0] * 12
    steps = [{**step, "response_length/clip_ratio": cut, "critic/frac_reward_zero_std": flat}
             for step, cut, flat in zip(sampled(scores)[1:], cuts, [0.2] * 12 + [1.0] * 12, strict=True)]  # fmt: skip
    alerts, _ = judged(GRPO, [{}, *steps])
    assert {"answers-cut"} <= {alert.rule for alert in alerts}
    for alert in alerts:
        assert "max_response_length" not in alert.fix and "sampler.n" not in alert.fix, alert
    rates = {word for alert in alerts for word in alert.fix.replace(",", "").split() if word.startswith("optim.lr=")}
    assert rates == {"optim.lr=2e-06"}
    from_start = [{**step, "response_length/clip_ratio": 1.0} for step in sampled(around([0.05] * 24, 0.01))[1:]]
    alerts, _ = judged(GRPO, [{}, *from_start])
    assert [alert.rule for alert in alerts] == ["answers-cut"] and "data.max_response_length=" in alerts[0].fix


def test_findings_with_a_rate_beyond_reason_advise_one_that_is_not() -> None:
    fast = replace(GRPO, optim=replace(GRPO.optim, lr=0.03))
    steps = sampled([*around([0.6] * 20, 0.01), *[0.02] * 20], validations={0: 0.6, 20: 0.6, 30: 0.0, 40: 0.0})
    alerts, _ = judged(fast, [{**step, "actor/lr": 0.03} for step in steps])
    rates = {word for alert in alerts for word in alert.fix.replace(",", "").split() if word.startswith("optim.lr=")}
    assert rates == {"optim.lr=0.001"}


@pytest.mark.parametrize(("fix", "arguments"), [
    ("optim.lr=1e-6 algorithm.kl_loss_coef=0.01, from the start", ("optim.lr=1e-6", "algorithm.kl_loss_coef=0.01")),
    ("algorithm.kl_loss_coef=0.005, or optim.lr=1e-6", ("algorithm.kl_loss_coef=0.005",)),
    ("a look at the labels, and model.dtype=bfloat16", ()),
    ("", ()),
])  # fmt: skip
def test_the_arguments_that_a_fix_begins_with(fix: str, arguments: tuple[str, ...]) -> None:
    assert leading_arguments(fix) == arguments
