"""The measured rules: each fires on a series that shows its fault and not on one just within, and steady runs of small
batches, noisy rises and late plateaus are left alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev

import pytest
from curves import around, every, growth, line

from launcher.core.events import Alert, Step
from launcher.health.judge import Judge
from launcher.health.profiles import read_profile

RULES = read_profile("measured")
REWARD, ZERO, HIGH, LOW = "critic/score/mean", "critic/frac_reward_zero_std", "critic/score/max", "critic/score/min"
TOP, BOTTOM, SPREAD = "critic/advantages/max", "critic/advantages/min", "critic/score/std"
LOGP = "actor/log_prob_mean"
ENTROPY, KL, NORM, LR = "actor/entropy", "actor/kl_loss", "actor/grad_norm", "actor/lr"
LENGTH, CUT, PROMPTS = "response_length/mean", "response_length/clip_ratio", "prompt_length/clip_ratio"
RATIO, PPO_KL, CLIPPED, ABORTED = "actor/ratio_mean", "actor/ppo_kl", "actor/pg_clipfrac", "response/aborted_ratio"
WEIGHT, K3 = "rollout_corr/rollout_is_mean", "rollout_corr/k3_kl"
APART, ALIKE = "training/rollout_probs_diff_mean", "training/rollout_actor_probs_pearson_corr"
LOSS, RATE, DPO, VAL_LOSS = "train/loss", "train/lr", "actor/dpo_loss", "val/loss"
VAL, CHOSEN, MARGIN = "val-core/gsm8k/reward/mean@1", "rewards/chosen", "rewards/margins"
RIGHT, EXPLAINED = "rewards/accuracies", "critic/vf_explained_var"
LOGP_DIFF = "sampling/sampling_logp_difference/mean"
ERROR = "token_mult_prob_error"
STEP, SAVE, TOKENS = "timing_s/step", "timing_s/save_checkpoint", "perf/total_num_tokens"
USED, CARD, BUSY, MFU = (
    "perf/max_memory_allocated_gb", "perf/gpu_memory_total_gb", "perf/gpu_percent", "perf/mfu/actor",
)  # fmt: skip

Values = Mapping[str, Sequence[float | None]]
Case = tuple[Values, Values, tuple[int, int, str, str, float, float | None]]


def judged(steps: Iterable[Mapping[str, float]]) -> list[Alert]:
    judge = Judge(RULES)
    return [
        alert for step, metrics in enumerate(steps, start=1) for alert in judge.see(Step(step=step, metrics=metrics))
    ]


def rows(values: Values) -> list[dict[str, float]]:
    """Steps from series of equal length; None is no value."""
    return [
        {name: value for name, value in zip(values, row, strict=True) if value is not None}
        for row in zip(*values.values(), strict=True)
    ]


def held(
    metric: str, before: list[float], count: int, beyond: float, within: float,
    finding: tuple[int, int, str, float | None], others: Values | None = None,
) -> Case:  # fmt: skip
    """`count` steps at a value beyond a bound, or within it, after those `before`."""
    step, since, level, threshold = finding
    worse, fine = ({**(others or {}), metric: before + [value] * count} for value in (beyond, within))
    return worse, fine, (step, since, level, metric, beyond, threshold)


def of_reward() -> dict[str, Case]:
    healthy, rises = around(0.6, 0.02, 20), line(0.3, 0.8, 60)
    lost = [0.35, 0.2, 0.3, 0.22, 0.27, 0.21, 0.3, 0.2, 0.25, 0.2]
    mixed = [0.2, 0.8] * 3 + [0.3] * 24
    exploits = {REWARD: line(0.2, 0.9, 40), HIGH: [1.0] * 40, LOW: [0.0] * 40}
    solved = {REWARD: [0.95] * 10, HIGH: [1.0] * 10}
    frozen = {NORM: [0.0] * 14, SPREAD: [0.4] * 14, ZERO: [0.3] * 14}
    ends = [0.05] * 20 + [0.9] * 6
    equal = {REWARD: around(0.5, 0.02, 40), HIGH: [1.0] * 40, LOW: [0.0] * 40}
    ended = {REWARD: around(0.5, 0.02, 40), HIGH: [1.0] * 40}
    return {
        "not-finite": (
            {NORM: [0.3] * 4, LOSS: [2.0, 2.0, math.nan, math.inf]}, {NORM: [0.3] * 3, LOSS: [2.0, math.nan, 2.0]},
            (4, 4, "critical", LOSS, math.inf, None),
        ),
        "step-not-finite": (
            {NORM: [0.3, 0.3, math.nan]}, {NORM: [0.3, 0.3, 1e30]}, (3, 3, "warn", NORM, math.nan, None),
        ),
        "reward-collapsed": (
            {REWARD: [*healthy, 0.29, 0.28, 0.27]}, {REWARD: [*healthy, 0.45, 0.44, 0.43]},
            (22, 22, "critical", REWARD, 0.285, 0.3033),
        ),
        "reward-lost": (
            {REWARD: rises + lost}, {REWARD: rises + [0.5] * 10}, (70, 68, "critical", REWARD, 0.2167, 0.3958),
        ),
        "reward-degraded": (
            {REWARD: around(0.5, 0.005, 20) + around(0.38, 0.005, 20)},
            {REWARD: around(0.5, 0.005, 20) + around(0.42, 0.005, 20)}, (25, 23, "warn", REWARD, 0.3783, 0.4013),
        ),
        "reward-exploited": (
            {**exploits, VAL: every(10, [0.5, 0.5, 0.4, 0.2])}, {**exploits, VAL: every(10, [0.5, 0.5, 0.4, 0.3])},
            (40, 40, "critical", VAL, 0.2, 0.25),
        ),
        "no-signal": (
            {REWARD: [0.0] * 18, ZERO: [1.0] * 18}, {REWARD: [0.0] * 18, ZERO: [0.97] * 18},
            (16, 16, "critical", REWARD, 0.0, None),
        ),
        "signal-lost": (
            {REWARD: [0.5, 0.6] * 5 + [0.01] * 24, ZERO: [0.3] * 10 + [1.0] * 24},
            {REWARD: [0.5, 0.6] * 5 + [0.06] * 24, ZERO: [0.3] * 10 + [1.0] * 24},
            (30, 30, "critical", REWARD, 0.01, None),
        ),
        "no-advantages": (
            {**equal, TOP: [0.0] * 40, BOTTOM: [0.0] * 40},
            {**equal, TOP: [0.0] * 20 + [0.5] * 20, BOTTOM: [0.0] * 40}, (30, 30, "critical", REWARD, 0.504, None),
        ),
        "signal-ended": (
            {**ended, ZERO: [0.5] * 10 + [1.0] * 30}, {**ended, ZERO: [0.5] * 10 + [0.99] * 30},
            (34, 30, "warn", REWARD, 0.504, None),
        ),
        "signal-scarce": held(ZERO, [], 30, 0.6, 0.49, (24, 20, "warn", 0.5), {REWARD: mixed}),
        "signal-solved": held(ZERO, [], 10, 0.91, 0.89, (7, 5, "info", 0.9), solved),
        "update-without-effect": (
            {**frozen, LR: [1e-6] * 14}, {**frozen, LR: [0.0] * 14}, (12, 10, "critical", NORM, 0.0, 1e-06),
        ),
        "answers-too-long": (
            {REWARD: around(0.6, 0.01, 20) + [0.1] * 6, CUT: [0.5] * 20 + [0.9] * 6},
            {REWARD: around(0.6, 0.01, 20) + [0.1] * 6, CUT: [0.49] * 20 + [0.9] * 6},
            (24, 23, "critical", CUT, 0.9, 0.8),
        ),
        "answers-cut-and-wrong": (
            {REWARD: around(0.6, 0.01, 20) + [0.1] * 6, CUT: ends}, {REWARD: around(0.6, 0.01, 26), CUT: ends},
            (24, 23, "critical", CUT, 0.9, 0.8),
        ),
    }  # fmt: skip


def of_answers() -> dict[str, Case]:
    flat = [0.5] * 26
    return {
        "answers-cut": held(CUT, [], 10, 0.26, 0.24, (7, 5, "warn", 0.25)),
        "answers-grow": held(LENGTH, [200.0] * 20, 6, 361.0, 355.0, (25, 23, "warn", 360.0), {REWARD: flat}),
        "answers-grow-slowly": (
            {LENGTH: [200.0] * 40 + line(200.0, 440.0, 40), REWARD: [0.5] * 80},
            {LENGTH: line(200.0, 440.0, 80), REWARD: [0.5] * 80}, (74, 72, "warn", LENGTH, 375.4, 360.0),
        ),
        "answers-shrink": held(LENGTH, [200.0] * 12, 14, 59.0, 61.0, (17, 15, "warn", 60.0), {REWARD: flat}),
        "answers-failed": held(ABORTED, [], 10, 0.051, 0.049, (7, 5, "warn", 0.05)),
        "prompts-cut": held(PROMPTS, [], 6, 0.011, 0.009, (5, 3, "warn", 0.01)),
    }  # fmt: skip


def of_policy() -> dict[str, Case]:
    flat, lost, falls = [0.5] * 14, [0.5] * 10 + [0.2] * 4, [0.6] * 4 + [0.3] * 12
    rate, margin = [1e-5] * 6, line(0.0, 4.0, 40)
    return {
        "entropy-exploded": held(ENTROPY, [0.4] * 10, 4, 1.61, 1.59, (13, 12, "critical", 1.6), {REWARD: lost}),
        "entropy-rises": held(ENTROPY, [0.4] * 10, 4, 1.61, 1.59, (13, 12, "warn", 1.6), {REWARD: flat}),
        "entropy-exhausted": held(ENTROPY, [], 16, 0.019, 0.021, (12, 10, "warn", 0.02), {REWARD: falls}),
        "entropy-low": held(ENTROPY, [1.0] * 5, 12, 0.099, 0.101, (14, 10, "info", 0.1)),
        "kl-exploded": held(KL, [0.1] * 10, 4, 1.01, 0.99, (13, 12, "critical", 1.0), {REWARD: flat}),
        "kl-grows": (
            {KL: growth(0.01, 1.15, 50), REWARD: [0.5] * 50}, {KL: line(0.0, 3.0, 50), REWARD: [0.5] * 50},
            (38, 36, "warn", KL, 1.358, 1.076),
        ),
        "ratio-exploded": held(RATIO, [], 1, 10.1, 9.9, (1, 1, "critical", 10.0)),
        "old-policy-wrong": held(PPO_KL, [], 8, -0.021, -0.019, (7, 5, "critical", -0.02)),
        "answers-of-another-policy": held(LOGP, [], 6, -0.61, -0.59, (5, 3, "critical", -0.6), {ENTROPY: [0.4] * 6}),
        "update-too-large": held(PPO_KL, [], 6, 0.21, 0.19, (5, 3, "warn", 0.2)),
        "clipped-often": held(CLIPPED, [], 10, 0.41, 0.39, (10, 8, "warn", 0.4)),
        "gradient-spike": held(NORM, [0.3] * 20, 1, 3.1, 2.9, (21, 21, "info", 3.0)),
        "gradient-unstable": (
            {NORM: [0.3] * 20 + [3.1, 0.3, 3.1, 0.3, 3.1]}, {NORM: [0.3] * 20 + [3.1, 0.3, 3.1, 0.3, 2.9]},
            (25, 25, "warn", NORM, 3.1, 3.0),
        ),
        "loss-rose": held(LOSS, [2.0] * 10, 8, 2.9, 2.65, (17, 15, "critical", 2.7)),
        "loss-zero": (
            {LOSS: [0.0] * 6, RATE: rate}, {LOSS: [0.0, 0.0, 0.1] * 2, RATE: rate},
            (5, 3, "critical", LOSS, 0.0, None),
        ),
        "value-useless": held(EXPLAINED, [], 40, -0.01, 0.01, (34, 30, "warn", 0.0)),
        "pairs-not-learnt": (
            {RIGHT: around(0.5, 0.05, 60), DPO: [0.693] * 60}, {RIGHT: around(0.6, 0.05, 60), DPO: [0.68] * 60},
            (53, 51, "warn", RIGHT, 0.5, 0.55),
        ),
        "chosen-displaced": (
            {CHOSEN: line(0.0, -4.0, 40), MARGIN: margin}, {CHOSEN: line(0.0, -0.9, 40), MARGIN: margin},
            (32, 30, "warn", CHOSEN, -3.077, -1.0),
        ),
    }  # fmt: skip


def of_sampler_and_held_out() -> dict[str, Case]:
    flat = every(10, [0.4] * 10)
    return {
        "sampler-drifts": held(WEIGHT, [], 4, 0.09, 0.11, (2, 2, "critical", 0.1)),
        "sampler-mismatch": held(K3, [], 6, 0.11, 0.09, (5, 3, "critical", 0.1)),
        "sampler-differs": held(K3, [], 6, 0.011, 0.009, (5, 3, "warn", 0.01)),
        "probabilities-differ": held(APART, [], 6, 0.011, 0.009, (5, 3, "warn", 0.01), {ALIKE: [0.97] * 6}),
        "log-probabilities-differ": held(LOGP_DIFF, [], 6, 0.051, 0.049, (5, 3, "warn", 0.05)),
        "probability-error": held(ERROR, [], 6, 1.051, 1.049, (5, 3, "warn", 1.05)),
        "probabilities-unrelated": held(ALIKE, [], 6, 0.89, 0.91, (5, 3, "critical", 0.9), {APART: [0.021] * 6}),
        "held-out-fell": (
            {VAL: [0.6] * 10 + [0.5] * 8}, {VAL: [0.6] * 10 + [0.551] * 20}, (13, 13, "warn", VAL, 0.5, 0.5275),
        ),
        "gap-grows": (
            {REWARD: line(0.3, 0.6, 100), VAL: flat}, {REWARD: line(0.3, 0.38, 100), VAL: flat},
            (100, 80, "warn", VAL, 0.2576, 0.1),
        ),
        "val-loss-rose": (
            {VAL_LOSS: [1.7] * 10 + [1.8] * 8}, {VAL_LOSS: [1.7] * 10 + [1.719] * 20},
            (13, 13, "warn", VAL_LOSS, 1.8, 1.7683),
        ),
    }  # fmt: skip


def of_machine() -> dict[str, Case]:
    slower, save = [60.0] * 40 + [91.0] * 40, [1.0] * 8 + [300.0]
    return {
        "step-stalled": held(STEP, [60.0] * 8, 1, 361.0, 359.0, (9, 9, "warn", 360.0), {SAVE: save}),
        "step-slower": (
            {STEP: slower, TOKENS: [1000.0] * 80}, {STEP: slower, TOKENS: [1000.0] * 40 + [1500.0] * 40},
            (64, 60, "warn", STEP, 91.0, 90.0),
        ),
        "memory-near-limit": held(USED, [], 3, 73.7, 73.5, (2, 1, "warn", 73.6), {CARD: [80.0] * 3}),
        "memory-grows-slowly": (
            {USED: line(40.0, 80.0, 100)}, {USED: line(40.0, 48.0, 100)}, (53, 51, "warn", USED, 60.2, 59.64),
        ),
        "memory-grows": held(USED, [40.0] * 25, 8, 48.1, 47.9, (32, 30, "warn", 48.0)),
        "gpu-idle": held(BUSY, [], 32, 29.0, 31.0, (29, 20, "warn", 30.0)),
        "mfu-low": held(MFU, [], 32, 0.049, 0.051, (29, 20, "info", 0.05)),
    }  # fmt: skip


SERIES = {**of_reward(), **of_answers(), **of_policy(), **of_sampler_and_held_out(), **of_machine()}
"""Of each rule: a series beyond its bound, one just within, and the finding of the first: its step, since when it held,
level, metric, value and bound."""


@pytest.mark.parametrize("rule", RULES.rules)
def test_rule_fires_on_its_fault_and_not_just_within(rule: str):
    beyond, within, (step, since, level, metric, value, threshold) = SERIES[rule]
    (alert,) = [each for each in judged(rows(beyond)) if each.rule == rule]
    assert (alert.step, alert.since, alert.level, alert.metric) == (step, since, level, metric)
    assert alert.value == pytest.approx(value, rel=1e-3, nan_ok=True)
    assert alert.threshold == (None if threshold is None else pytest.approx(threshold, rel=1e-3))
    assert "{" not in alert.text and "?" not in alert.text
    assert alert.source
    assert rule not in [each.rule for each in judged(rows(within))]


@pytest.mark.parametrize("metric", ["actor/kl_loss", "actor/entropy", "critic/vf_loss", "train/loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_shown_with_its_metric(metric: str, value: float):
    """Once a run may survive it; twice in a row it is lost, also where the log has no other metric."""
    for others in ({NORM: [0.3] * 6}, {}):
        alerts = judged(rows({**others, metric: [0.1, 0.1, value, 0.1, value, value]}))
        found = [(alert.rule, alert.level, alert.step) for alert in alerts]
        assert found == [("step-not-finite", "warn", 3), ("not-finite", "critical", 6)]
        assert {(alert.metric, str(alert.value)) for alert in alerts} == {(metric, str(value))}


@pytest.mark.parametrize(("factor", "shift"), [(1.0, 0.0), (10.0, 0.0), (2.0, -1.0), (1.0, -1.0), (1.0, 1.0)])
def test_a_reward_is_judged_alike_on_any_scale(factor: float, shift: float):
    def scaled(values: Sequence[float]) -> list[float]:
        return [factor * value + shift for value in values]

    steady = around(0.85, 0.02, 20)
    dip, fall = [*steady, 0.62, 0.6, 0.8, 0.85], [*steady, 0.3, 0.2, 0.1, 0.0]
    for values, expected in ((dip, []), (fall, [("reward-collapsed", 22)])):
        known = judged(rows({REWARD: scaled(values), LOW: scaled([0.0] * 24)}))
        assert [(alert.rule, alert.step) for alert in known if alert.level == "critical"] == expected
    costs = judged(rows({REWARD: [value - 1.0 for value in dip], SPREAD: [0.45] * 24}))
    assert not [alert for alert in costs if alert.level == "critical"], "rewards below 0, of which the spread is known"


def test_entropy_that_rises_is_critical_only_where_the_reward_is_lost():
    rises = [0.15] * 12 + [1.5] * 6
    kept, lost, shifted = around(0.8, 0.02, 18), [0.8] * 12 + [0.3] * 6, around(1.8, 0.02, 12) + [1.0] * 6
    found = [
        {alert.rule for alert in judged(rows({ENTROPY: rises, **reward})) if alert.rule.startswith("entropy")}
        for reward in ({REWARD: kept}, {REWARD: lost}, {REWARD: shifted}, {})
    ]
    assert found == [
        {"entropy-rises"},
        {"entropy-exploded"},
        {"entropy-exploded"},
        {"entropy-exploded"},
    ]


def test_the_bound_of_the_sampler_follows_the_reward():
    low, high = {WEIGHT: [0.4] * 12}, {WEIGHT: [11.0] * 4}
    assert not judged(rows({**low, REWARD: [0.6] * 12}))
    (fell,) = [each for each in judged(rows({**low, REWARD: [0.6] * 8 + [0.2] * 4})) if each.rule == "sampler-drifts"]
    (rose,) = [each for each in judged(rows(high)) if each.rule == "sampler-drifts"]
    assert (fell.step, fell.value, fell.threshold) == (10, 0.4, 0.5)
    assert (rose.step, rose.value, rose.threshold) == (2, 11.0, 10.0)


@pytest.mark.parametrize(
    "start", [[0.3, 0.5, 0.6, 0.2, 0.01], [0.6, 0.3, 0.05], [0.5, 0.55, 0.1], [0.4, 0.6, 0.5, 0.3, 0.6]]
)
def test_a_collapse_in_the_first_steps_is_one(start: list[float]):
    lost = {REWARD: [*start, *[0.0] * 30], ZERO: [*[0.3] * len(start), *[1.0] * 30]}
    critical = [alert.rule for alert in judged(rows(lost)) if alert.level == "critical"]
    assert critical == ["reward-collapsed", "signal-lost"]


@pytest.mark.parametrize(("rate", "fix"), [({}, "a learning rate five times"), ({LR: [1e-4] * 30}, "optim.lr=2e-05")])
def test_a_fix_without_the_value_that_it_needs_is_in_words(rate: dict[str, list[float]], fix: str):
    (alert, *_) = judged(rows({REWARD: [*around(0.8, 0.02, 20), *around(0.05, 0.02, 10)], **rate}))
    assert alert.rule == "reward-collapsed" and alert.fix.startswith(fix) and "?" not in alert.text


def test_a_divergence_that_is_below_0_step_after_step_is_wrong_however_it_scatters():
    estimates = [-0.0915, -0.0611, -0.0917, -0.0321, -0.0648, -0.1104, -0.0732, -0.043, -0.0804, -0.045]
    assert ("old-policy-wrong", 10) in [(alert.rule, alert.step) for alert in judged(rows({PPO_KL: estimates}))]
    once_above = [*estimates[:5], 0.001, *estimates[5:]]
    assert not [alert for alert in judged(rows({PPO_KL: once_above})) if alert.rule == "old-policy-wrong"]


def test_a_slow_step_names_the_part_that_took_long():
    (alert,) = judged(rows(SERIES["step-stalled"][0]))
    assert "timing_s/save_checkpoint took 300 s" in alert.text


def test_advantages_of_0_show_that_nothing_is_learnt_where_the_share_of_equal_groups_is_unknown():
    nothing, silent = {REWARD: [0.0] * 18, TOP: [0.0] * 18, BOTTOM: [0.0] * 18}, [0.0] * 30
    assert [(alert.rule, alert.step) for alert in judged(rows(nothing))] == [("no-signal", 16)]
    unknown = judged(rows({REWARD: [0.0] * 25}))
    assert [(alert.rule, alert.step) for alert in unknown] == [("no-signal", 20)]
    lost = {REWARD: [0.5, 0.6] * 5 + silent, TOP: [1.0] * 10 + silent, BOTTOM: [-1.0] * 10 + silent}
    assert ("signal-lost", 30) in [(alert.rule, alert.step) for alert in judged(rows(lost))]
    lucky = {REWARD: [0.0] * 7 + [0.05] + [0.0] * 60, ZERO: [1.0] * 7 + [0.9] + [1.0] * 60}
    at_first = {REWARD: [0.05, *[0.0] * 70], ZERO: [0.9, *[1.0] * 70]}
    for series in (lucky, at_first):
        assert [alert.rule for alert in judged(rows(series)) if alert.level == "critical"] == ["no-signal"]
    once = {REWARD: [0.5, *[0.0] * 12], TOP: [1.0, *[0.0] * 12], BOTTOM: [-1.0, *[0.0] * 12]}
    assert not {"no-signal", "signal-lost"} & {alert.rule for alert in judged(rows(once))}, (
        "12 hard prompts in a row may be chance"
    )


def test_equal_advantages_are_critical_where_nothing_was_learnt_and_tell_of_an_end_where_nearly_all_is_right():
    def found(reward: float, **more: Sequence[float]) -> list[tuple[str, str]]:
        return [(alert.rule, alert.level) for alert in judged(rows({REWARD: around(reward, 0.02, 60), **more}))]

    equal, groups, bounds = (
        {TOP: [0.0] * 60, BOTTOM: [0.0] * 60},
        {ZERO: [1.0] * 60},
        {HIGH: [1.0] * 60, LOW: [0.0] * 60},
    )
    assert found(0.5, **equal, **bounds) == found(0.9, **equal, **bounds) == [("no-advantages", "critical")], "as verl"
    assert found(0.5, **groups) == [("no-advantages", "critical")], "as TRL, which logs no largest score"
    assert found(0.9, **groups) == [("signal-solved", "info")]
    assert found(0.99, **equal, **bounds) == [], "few prompts that are never solved"
    critics = {"critic/vf_loss": [0.1] * 60}
    assert found(0.5, **groups, **critics) == [], "advantages of a critic differ where rewards do not"
    assert found(0.5, **groups, **{"critic/advantages/std": [1.0] * 60}) == []


def test_a_policy_gradient_loss_that_is_printed_as_0_is_no_lost_label():
    """As the trainer of prime-rl prints it, whose log has no reward."""
    dead = {"loss": [0.0] * 6, "lr": [1e-6] * 6}
    assert [alert.rule for alert in judged(rows(dead))] == ["loss-zero"]
    for signs in ({"Grad. Norm": [0.1] * 6}, {"Mismatch KL": [0.0005] * 6}, {"pg_loss": [0.0] * 6}):
        assert judged(rows({**dead, **signs})) == []
    nan = judged(rows({**dead, "grad_norm": [0.1] * 2 + [math.nan] * 4}))
    assert "loss-zero" in [alert.rule for alert in nan], "0 beside NaN is a NaN that the logging filtered"


def test_the_score_is_judged_and_not_the_score_less_a_penalty():
    """TRL's PPO prints objective/rlhf_reward before objective/scores."""
    both = {"objective/rlhf_reward": line(0.3, 0.1, 50), "objective/scores": line(0.3, 0.8, 50)}
    assert judged(rows(both)) == []
    assert {alert.metric for alert in judged(rows({"objective/scores": line(0.8, 0.1, 50)}))} == {"objective/scores"}


def test_a_run_without_reward_in_its_first_steps_is_given_time_to_find_one():
    late = {REWARD: [0.0] * 14 + line(0.02, 0.4, 40), ZERO: [1.0] * 14 + line(0.9, 0.3, 40)}
    assert not [alert for alert in judged(rows(late)) if alert.level == "critical"]


def test_steps_without_a_gradient_count_by_the_groups_that_should_have_had_one():
    """Where a step is one group, its gradient is 0 as often as a group has equal rewards."""

    def found(steps: int, zero: float | None) -> bool:
        values = {NORM: [0.0] * steps, SPREAD: [0.4] * steps, LR: [1e-6] * steps}
        groups = {} if zero is None else {ZERO: [zero] * steps}
        return "update-without-effect" in [alert.rule for alert in judged(rows(values | groups))]

    assert [found(14, zero) for zero in (0.2, 0.7, 0.95, None)] == [True, False, False, True]
    assert [found(30, zero) for zero in (0.7, 0.95)] == [True, False]
    advantages = {NORM: [0.0] * 14, TOP: [1.5] * 14, BOTTOM: [-1.5] * 14, LR: [1e-6] * 14}
    assert [alert.rule for alert in judged(rows(advantages))] == ["update-without-effect"], "as of verl"


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
        found += any(alert.level == "critical" for alert in judged(steps))
    return found


@pytest.mark.parametrize(("batch", "most"), [((1, 8), 3), ((16, 4), 1)], ids=lambda value: str(value))
def test_few_healthy_runs_of_small_batches_have_a_critical_finding(batch: tuple[int, int], most: int):
    """Of 12 runs: at most one in four where a step is a single prompt."""
    found = {name: false_alarms(draw, *batch) for name, draw in PROMPTS_OF.items()}
    assert sum(found.values()) <= most, found
