"""The bands of the source guides: each rule fires just beyond its bound, and says nothing just within."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.core.events import Alert, Step
from launcher.health.judge import Judge
from launcher.health.profiles import read_profile
from launcher.logs.sources import open_log

PROFILES = ("verl_ppo_gsm8k", "platform", "verl_grpo_gsm8k", "grpo_continuous")
VAL = "val-core/openai/gsm8k/reward/mean@1"
Values = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Case:
    """Values that a rule of a profile finds at `step`, and values just within its bound."""

    profile: str
    numbers: str
    claim: str
    rule: str
    beyond: Values
    within: Values
    step: int
    threshold: float | None
    level: str = "warn"

    def __str__(self) -> str:
        return f"{self.numbers} {self.claim}"


def judged(profile: str, values: Values) -> list[Alert]:
    """The findings over series of equal length, whose first value is that of step 1; None is no value."""
    judge = Judge(read_profile(profile))
    alerts = list[Alert]()
    for step, row in enumerate(zip(*values.values(), strict=True), start=1):
        metrics = {name: value for name, value in zip(values, row, strict=True) if value is not None}
        alerts += judge.see(Step(step=step, metrics=metrics))
    return alerts


def line(first: float, last: float, count: int) -> list[float]:
    return [first + (last - first) * number / (count - 1) for number in range(count)]


def every(count: int, values: Sequence[float]) -> list[float | None]:
    """The values with `count - 1` steps without one before each."""
    return [each for value in values for each in (*([None] * (count - 1)), value)]


def ppo() -> list[Case]:
    score, entropy, kl, norm = "critic/score/mean", "actor/entropy", "actor/ppo_kl", "actor/grad_norm"
    seconds, used, card = "timing_s/step", "perf/max_memory_allocated_gb", "perf/gpu_memory_total_gb"
    rows = (
        ("S0-31", "score always 0", "score-always-zero", {score: [0.0] * 12},
         {score: [*[0.0] * 9, 0.01, 0.0, 0.0]}, 10, 0.0, "critical"),
        ("S0-27", "score rises", "score-not-rising", {score: [0.3] * 60},
         {score: line(0.3, 0.6, 60)}, 54, None, "info"),
        ("S0-28", "entropy < 0.4", "entropy-band", {entropy: [0.39] * 6}, {entropy: [0.401] * 60}, 5, 0.4),
        ("S0-28", "entropy > 0.6", "entropy-band", {entropy: [0.61] * 6}, {entropy: [0.599] * 60}, 5, 0.6),
        ("S0-29", "ppo_kl far above 0", "kl-far", {kl: [0.11] * 6}, {kl: [0.09] * 60}, 5, 0.1),
        ("S0-29", "ppo_kl far below 0", "kl-far", {kl: [-0.11] * 6}, {kl: [-0.09] * 60}, 5, -0.1),
        ("S0-30", "slower and slower", "step-slower", {seconds: [*[40.0] * 20, *[61.0] * 20]},
         {seconds: [*[40.0] * 20, *[59.0] * 20]}, 34, 60.0),
        ("S0-32", "gradient explodes", "gradient-surge", {norm: [*[0.5] * 12, 5.1]},
         {norm: [*[0.5] * 12, 4.9]}, 13, 5.0),
        ("S0-33", "near the GPU limit", "memory-near-limit", {used: [73.7], card: [80.0]},
         {used: [73.5], card: [80.0]}, 1, 73.6),
    )  # fmt: skip
    return [Case("verl_ppo_gsm8k", *row) for row in rows]


def platform() -> list[Case]:
    reward, kl, clip = "reward_mean", "kl_divergence", "clip_fraction"
    flat = [0.5] * 60
    rows = (
        ("S1-44", "policy_loss rises", "policy-loss-rises", {"policy_loss": line(0.1, 0.4, 60), reward: flat},
         {"policy_loss": line(0.4, 0.1, 60), reward: flat}, 54, None, "info"),
        ("S1-44", "policy_loss rises, and the reward", "policy-loss-rises",
         {"policy_loss": line(0.1, 0.4, 60), reward: flat},
         {"policy_loss": line(0.1, 0.4, 60), reward: line(0.1, 0.5, 60)}, 54, None, "info"),
        ("S1-45", "value_loss rises", "value-loss-rises", {"value_loss": line(0.1, 0.4, 60)},
         {"value_loss": line(0.4, 0.1, 60)}, 34, None),
        ("S1-46, S1-52", "reward_mean is flat", "reward-flat", {reward: flat}, {reward: line(0.4, 0.6, 60)}, 54, None),
        ("S1-47", "kl_divergence >= 0.1", "kl-above-bound", {kl: [0.1001] * 6}, {kl: [0.0999] * 60}, 5, 0.1),
        ("S1-48", "entropy falls moderately", "entropy-falls-fast", {"entropy": [*[1.0] * 9, *[0.09] * 9]},
         {"entropy": [*[1.0] * 9, *[0.11] * 9]}, 14, 0.1),
        ("S1-49", "clip_fraction < 0.1", "clip-fraction-band", {clip: [0.09] * 20},
         {clip: [0.11] * 60}, 14, 0.1, "info"),
        ("S1-49", "clip_fraction > 0.3", "clip-fraction-band", {clip: [0.31] * 20},
         {clip: [0.29] * 60}, 14, 0.3, "info"),
        ("S1-51", "no convergence", "not-converging", {reward: [0.5] * 110, kl: [0.0009] * 110},
         {reward: [0.5] * 110, kl: [0.0011] * 110}, 104, None),
    )  # fmt: skip
    return [Case("platform", *row) for row in rows]


def grpo_of_reward() -> list[tuple[object, ...]]:
    reward, positive = "reward", "critic/rewards/positive_share"
    falls, rises = [0.5, 0.4, 0.3, 0.2], [0.5, 0.4, 0.3, 0.31, 0.2, 0.1]
    spread = {"reward": line(0.1, 0.5, 30)}
    return [
        ("S2-21", "reward falls 3 steps in a row", "reward-falls", {reward: falls}, {reward: rises}, 4, 3.0),
        ("S2-02, S2-30", "reward mean rises", "reward-flat", {reward: [0.4] * 60},
         {reward: line(-0.1, 0.5, 60)}, 54, 0.55, "info"),
        ("S2-30", "flat at 0.4", "reward-flat", {reward: [0.4] * 60}, {reward: [0.56] * 60}, 54, 0.55, "info"),
        ("S2-01, S2-30", "share of positive rewards", "few-positive", {positive: [0.49] * 60},
         {positive: [0.51] * 60}, 54, 0.5, "info"),
        ("S2-01", "few but more and more positive", "few-positive", {positive: [0.4] * 60},
         {positive: line(0.0, 0.45, 60)}, 54, 0.5, "info"),
        ("S2-30", "95 % positive at the end", "few-positive-at-end", {positive: [0.94] * 310},
         {positive: [0.96] * 310}, 304, 0.95, "info"),
        ("S2-02, S2-03", "reward < 0.55 at the end", "reward-below-goal", {reward: line(0.1, 0.54, 310)},
         {reward: [*line(0.1, 0.56, 250), *[0.56] * 60]}, 304, 0.55, "info"),
        ("S2-25", "reward rises, and its variance", "reward-variance-grows",
         {**spread, "reward_std": line(0.1, 0.4, 30)}, {**spread, "reward_std": line(0.4, 0.1, 30)}, 24, None),
    ]  # fmt: skip


def grpo_of_policy() -> list[tuple[object, ...]]:
    pg, kl, entropy, norm, adv = "pg_loss", "kl_loss", "entropy", "grad_norm", "adv_mean"
    top, low = "critic/advantages/max", "critic/advantages/min"
    return [
        ("S2-21", "loss jumps from -0.1 to 0.5", "policy-loss-jumps", {pg: [*[-0.1] * 5, 0.5]},
         {pg: [*[-0.1] * 5, 0.49]}, 6, 0.5),
        ("S2-32", "policy_loss mean > 0.1", "policy-loss-above", {"policy_loss": [0.101] * 20},
         {"policy_loss": [0.099] * 20}, 14, 0.1),
        ("S2-32", "policy_loss mean < -0.2", "policy-loss-below", {"policy_loss": [-0.201] * 20},
         {"policy_loss": [-0.199] * 20}, 14, -0.2),
        ("S2-05, S2-06", "policy_loss within 0.05 at the end", "policy-loss-not-settled", {pg: [0.051] * 110},
         {pg: [0.049] * 110}, 104, 0.05, "info"),
        ("S2-05, S2-06", "policy_loss within -0.05 at the end", "policy-loss-not-settled", {pg: [-0.051] * 110},
         {pg: [-0.049] * 110}, 104, -0.05, "info"),
        ("S2-07, S2-08, S2-32", "kl_loss > 0.03", "kl-loss-high", {kl: [0.0301] * 6}, {kl: [0.0299] * 60}, 5, 0.03),
        ("S2-07", "kl_loss jumps", "kl-loss-jumps", {kl: [*[0.01] * 9, 0.031]}, {kl: [*[0.01] * 9, 0.029]}, 10, 0.03),
        ("S2-07", "kl_loss < 0.005", "kl-loss-band", {kl: [0.0049] * 30}, {kl: [0.0051] * 30}, 24, 0.005, "info"),
        ("S2-07", "kl_loss > 0.02", "kl-loss-band", {kl: [0.021] * 30}, {kl: [0.0199] * 30}, 24, 0.02, "info"),
        ("S2-32", "kl_loss < 0.001", "kl-loss-low", {kl: [0.0009] * 30}, {kl: [0.0011] * 30}, 24, 0.001, "info"),
        ("S2-09", "entropy falls from 1.0 to 0.1", "entropy-falls-off", {entropy: [*[1.0] * 5, 0.1]},
         {entropy: [*[1.0] * 5, 0.11]}, 6, 0.1),
        ("S2-10, S2-32", "entropy < 0.1", "entropy-low", {entropy: [0.099] * 30}, {entropy: [0.101] * 30}, 24, 0.1),
        ("S2-32", "entropy > 1.0", "entropy-high", {entropy: [1.01] * 110}, {entropy: [0.99] * 110}, 104, 1.0),
        ("S2-09, S2-10", "entropy < 0.2 at the end", "entropy-band", {entropy: [0.199] * 110},
         {entropy: [0.201] * 110}, 104, 0.2, "info"),
        ("S2-09, S2-10", "entropy > 0.5 at the end", "entropy-band", {entropy: [0.501] * 110},
         {entropy: [0.499] * 110}, 104, 0.5, "info"),
        ("S2-11, S2-32", "grad_norm >= 1.0", "gradient-high", {norm: [1.0]}, {norm: [0.99] * 60}, 1, 1.0),
        ("S2-11", "grad_norm jumps from 0.5 to 2.0", "gradient-jumps", {norm: [*[0.5] * 5, 2.0]},
         {norm: [*[0.5] * 5, 1.99]}, 6, 2.0),
        ("S2-12", "grad_norm mean >= 0.8", "gradient-mean-high", {norm: [0.81] * 30},
         {norm: [0.79] * 30}, 24, 0.8, "info"),
        ("S2-13, S2-14", "advantages constantly 0", "advantages-zero", {adv: [0.0] * 6, top: [0.0] * 6, low: [0.0] * 6},
         {adv: [0.0] * 60, top: [1e-4] * 60, low: [-1e-4] * 60}, 5, None),
        ("S2-14", "advantages constantly 0, all groups equal", "advantages-zero",
         {adv: [0.0] * 6, "frac_reward_zero_std": [1.0] * 6},
         {adv: [0.0] * 6, "frac_reward_zero_std": [0.99] * 6}, 5, None),
    ]  # fmt: skip


def grpo_of_machine() -> list[tuple[object, ...]]:
    pace, used, card, busy = "s/it", "perf/max_memory_allocated_gb", "perf/gpu_memory_total_gb", "perf/gpu_percent"
    return [
        ("S2-15", "3 times slower", "step-time-swings", {pace: [*[50.0] * 5, 151.0]},
         {pace: [*[50.0] * 5, 149.0]}, 6, 150.0),
        ("S2-15", "from 50 s to 200 s", "step-time-swings", {pace: [*[50.0] * 5, 200.0]},
         {pace: [*[50.0] * 5, 100.0]}, 6, 150.0),
        ("S2-22", "from 50 s to 100 s, and so on", "step-time-doubles", {pace: [*[50.0] * 10, *[100.0] * 10]},
         {pace: [*[50.0] * 10, *[99.0] * 10]}, 17, 100.0),
        ("S2-16", "30 to 60 s a step", "step-time-band", {pace: [61.0] * 30}, {pace: [59.0] * 30}, 24, 60.0, "info"),
        ("S2-33", "7 h rather than 5 h", "slower-than-planned", {pace: [*[56.25] * 10, *[79.0] * 60]},
         {pace: [*[56.25] * 10, *[78.5] * 60]}, 64, 78.75, "info"),
        ("S2-17", "from 20 to 30 GB", "memory-jumps", {used: [*[20.0] * 5, 30.0]},
         {used: [*[20.0] * 5, 29.9]}, 6, 30.0),
        ("S2-18, S2-33", "20 of 24 GB", "memory-near-limit", {used: [20.1], card: [24.0]},
         {used: [19.9], card: [24.0]}, 1, 20.0),
        ("S2-18, S2-33", "20 GB, the card unknown", "memory-for-24-gb", {used: [20.1]},
         {used: [19.9]}, 1, 20.0, "info"),
        ("S2-18, S2-33", "20 GB of a larger card", "memory-for-24-gb", {used: [20.1]},
         {used: [20.1], card: [80.0]}, 1, 20.0, "info"),
        ("S2-17", "GPU use <= 50 %", "gpu-half-idle", {busy: [49.0] * 20}, {busy: [51.0] * 20}, 14, 50.0, "info"),
        ("S2-33", "GPU use < 30 %", "gpu-idle", {busy: [29.0] * 20}, {busy: [31.0] * 20}, 14, 30.0),
    ]  # fmt: skip


def grpo_of_held_out() -> list[tuple[object, ...]]:
    rises, val = line(0.1, 0.7, 80), [0.4] * 8
    return [
        ("S2-25", "val flat while train rises", "held-out-flat", {"reward": rises, VAL: every(10, val)},
         {"reward": rises, VAL: every(10, line(0.1, 0.65, 8))}, 70, 0.42),
        ("S2-28", "train 0.5, val 0.3", "held-out-behind", {"reward": [0.5] * 10, VAL: every(10, [0.29])},
         {"reward": [0.5] * 10, VAL: every(10, [0.31])}, 10, 0.2),
        ("S2-04", "gap < 10 % at the end", "held-out-gap", {"reward": [0.6] * 300, VAL: every(10, [0.49] * 30)},
         {"reward": [0.6] * 300, VAL: every(10, [0.51] * 30)}, 300, 0.1, "info"),
        ("S2-29", "val from 0.7 to 0.5", "held-out-falls", {VAL: every(10, [0.7, 0.6, 0.5])},
         {VAL: every(10, [0.7, 0.69, 0.62, 0.63, 0.65])}, 30, 0.6),
        ("S2-30", "val >= 0.55 at the end", "held-out-below-goal", {"reward": [0.6] * 300, VAL: every(10, [0.54] * 30)},
         {"reward": [0.6] * 300, VAL: every(10, [0.62] * 30)}, 300, 0.55, "info"),
    ]  # fmt: skip


def grpo() -> list[Case]:
    rows = (*grpo_of_reward(), *grpo_of_policy(), *grpo_of_machine(), *grpo_of_held_out())
    return [Case("verl_grpo_gsm8k", *row) for row in rows]  # type: ignore[arg-type]


def apart(log_ratio: float) -> Values:
    """Log-probabilities of so large a difference, which are large themselves."""
    return {"mean_log_prob_current": [-833600.0 + log_ratio], "mean_log_prob_ref": [-833600.0]}


def continuous() -> list[Case]:
    loss, policy, kl, ratio, adv = "loss", "policy_loss", "kl_penalty", "mean_ratio", "mean_advantage"
    reward, spread = "mean_reward", "std_reward"
    equal = {reward: [0.5] * 6, adv: [0.0] * 6}
    clamped = (485165216.0, 22026.4658, 1e4, 1e-4, 4.53999e-05, 2.0611536e-09)
    rows = (
        ("S4-01", "loss > 10", "loss-band", {loss: [10.1]}, {loss: [9.9]}, 1, 10.0),
        ("S4-01", "loss < -10", "loss-band", {loss: [-10.1]}, {loss: [-9.9]}, 1, -10.0),
        ("S4-02, S4-16, S4-17", "policy_loss > 1", "policy-loss-band", {policy: [1.01]},
         {policy: [0.99]}, 1, 1.0, "critical"),
        ("S4-02, S4-16, S4-17", "policy_loss < -1", "policy-loss-band", {policy: [-1.01]},
         {policy: [-0.99]}, 1, -1.0, "critical"),
        ("S4-03", "kl_penalty > 1", "kl-penalty-band", {kl: [1.01]}, {kl: [0.99]}, 1, 1.0),
        ("S4-03", "kl_penalty < -1", "kl-penalty-band", {kl: [-1.01]}, {kl: [-0.99]}, 1, -1.0),
        ("S4-04, S4-16, S4-18, S4-19", "mean_ratio > 2", "ratio-band", {ratio: [2.01]},
         {ratio: [1.99]}, 1, 2.0, "critical"),
        ("S4-04, S4-16, S4-18, S4-19", "mean_ratio < 0.5", "ratio-band", {ratio: [0.49]},
         {ratio: [0.51]}, 1, 0.5, "critical"),
        *(("S4-10", f"mean_ratio {value}", "ratio-on-clamp", {ratio: [value]},
           {ratio: [value * 1.01]}, 1, 2.0 if value > 1 else 0.5, "critical") for value in clamped),
        ("S4-05", "mean_advantage > 1", "advantage-band", {adv: [1.01]}, {adv: [0.99]}, 1, 1.0),
        ("S4-05", "mean_advantage < -1", "advantage-band", {adv: [-1.01]}, {adv: [-0.99]}, 1, -1.0),
        ("S4-05, S4-12", "rewards are equal, not only the mean advantage 0", "rewards-equal",
         {**equal, spread: [0.0] * 6}, {**equal, spread: [0.1766] * 6}, 5, None),
        ("S4-12", "groups without spread", "rewards-equal", {**equal, "frac_reward_zero_std": [1.0] * 6},
         {**equal, "frac_reward_zero_std": [0.99] * 6}, 5, None),
        ("S4-08", "mean_reward < 0", "reward-band", {reward: [-0.01]}, {reward: [0.0]}, 1, 0.0, "info"),
        ("S4-08", "mean_reward > 1", "reward-band", {reward: [1.01]}, {reward: [1.0]}, 1, 1.0, "info"),
        ("S4-09", "std_reward > 0.5", "reward-std-band", {spread: [0.51]}, {spread: [0.49]}, 1, 0.5, "info"),
        ("S4-11, S4-23", "log-ratio 5 to 10", "log-ratio-5", apart(5.0), apart(4.99), 1, 5.0),
        ("S4-11, S4-23", "log-ratio -5 to -10", "log-ratio-5", apart(-9.99), apart(-4.99), 1, 5.0),
        ("S4-22, S4-23", "log-ratio 10 to 20, 10 the upper tier", "log-ratio-10", apart(10.0),
         apart(9.99), 1, 10.0, "critical"),
        ("S4-23", "log-ratio 20 the lower tier", "log-ratio-10", apart(20.0), apart(20.01), 1, 10.0, "critical"),
        ("S4-14, S4-15, S4-23", "log-ratio > 20", "log-ratio-20", apart(20.01), apart(20.0), 1, 20.0, "critical"),
        ("S4-11", "log-ratio -94037", "log-ratio-20", apart(-94037.0), apart(0.0), 1, 20.0, "critical"),
    )  # fmt: skip
    return [Case("grpo_continuous", *row) for row in rows]  # type: ignore[arg-type]


CASES = (*ppo(), *platform(), *grpo(), *continuous())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule_fires_beyond_its_bound_and_only_there(case: Case):
    (found,) = [alert for alert in judged(case.profile, case.beyond) if alert.rule == case.rule]
    assert (found.step, found.level) == (case.step, case.level)
    assert found.metric in case.beyond  # in the log's own spelling
    assert found.threshold == (None if case.threshold is None else pytest.approx(case.threshold))
    assert found.value is not None
    assert "{" not in found.text and "?" not in found.text
    assert case.rule not in [alert.rule for alert in judged(case.profile, case.within)]


@pytest.mark.parametrize("profile", PROFILES)
def test_each_rule_has_a_case(profile: str):
    assert {case.rule for case in CASES if case.profile == profile} == set(read_profile(profile).rules)


# ---- the guides' own examples

PPO_STEP = """step:5 - training/global_step:5 - critic/score/mean:0.0234375 -
critic/rewards/mean:0.0234375 - timing_s/step:41.01343672798248
"""
GRPO_BAR = (
    "Training Progress:  15%|█▌        | 49/320 [1:06:07<4:11:40, 55.72s/it, policy_loss=-0.1249, pg_loss=-0.1250, "
    "entropy=0.0321, kl_loss=0.00780, adv_mean=-0.0000, reward=0.3531, grad_norm=0.10]\n"
)
GRPO_VAL = "(TaskRunner pid=371299) step:290 - val-core/openai/gsm8k/reward/mean@1:0.7338893100833965\n"
NORMAL = """loss: 0.1234
policy_loss: 0.8567
kl_penalty: 0.0045
mean_ratio: 1.0234
mean_advantage: 0.0123
mean_log_prob_current: -256.78
mean_log_prob_ref: -258.45
mean_reward: 0.6234
std_reward: 0.1234
"""
RUINED = """loss: 171551552.0000
policy_loss: 171531792.0000
kl_penalty: 197562.5312
mean_ratio: 485165216.0000
mean_advantage: 0.0000
mean_log_prob_current: -833610.3125
mean_log_prob_ref: -1031172.8750
mean_reward: 0.4971
std_reward: 0.1766
"""


def diagnosed(profile: str, text: str, folder: Path, program: str = "any") -> tuple[list[Alert], list[Step]]:
    log = folder / "train.log"
    log.write_text(text, encoding="utf-8")
    events, judge = list(open_log(log).events()), Judge(read_profile(profile), program)
    return [alert for event in events for alert in judge.see(event)], [e for e in events if isinstance(e, Step)]


@pytest.mark.parametrize(("profile", "text", "step", "values"), [
    ("verl_ppo_gsm8k", PPO_STEP, 5, {"critic/score/mean": 6 / 256, "timing_s/step": 41.01343672798248}),
    ("verl_grpo_gsm8k", GRPO_BAR, 49, {"entropy": 0.0321, "kl_loss": 0.0078, "reward": 0.3531, "grad_norm": 0.1}),
    ("verl_grpo_gsm8k", GRPO_VAL, 290, {VAL: 0.7338893100833965}),
    ("grpo_continuous", NORMAL, 1, {"loss": 0.1234, "mean_ratio": 1.0234, "mean_log_prob_ref": -258.45}),
], ids=["S0-26", "S2-20", "S2-27", "S4-21"])  # fmt: skip
def test_healthy_example_of_a_guide_is_read_and_no_finding(profile, text, step, values, tmp_path):
    alerts, steps = diagnosed(profile, text, tmp_path)
    assert [each.step for each in steps] == [step]
    assert values.items() <= steps[0].metrics.items()
    assert alerts == []


def test_the_ruined_example_is_critical_and_each_number_is_called_what_it_is(tmp_path):
    alerts, _ = diagnosed("grpo_continuous", RUINED, tmp_path)
    found = {alert.rule: alert for alert in alerts}
    assert {name: alert.level for name, alert in found.items()} == {
        "loss-band": "warn", "policy-loss-band": "critical", "kl-penalty-band": "warn", "ratio-on-clamp": "critical",
        "log-ratio-20": "critical",
    }  # fmt: skip
    assert found["loss-band"].value == 171551552.0
    assert found["log-ratio-20"].value == 197562.5625, "the difference of the log-probabilities"
    assert found["log-ratio-20"].fix.startswith("--learning_rate 1e-07 --kl_penalty 2.0")
    assert "this is no ratio" in found["ratio-on-clamp"].text
    assert not found.keys() & {"advantage-band", "rewards-equal"}, "a mean advantage of 0 is true by construction"


def test_the_fixes_are_in_the_spelling_of_the_program(tmp_path):
    ours, theirs = (
        {alert.rule: alert.fix for alert in diagnosed("grpo_continuous", RUINED, tmp_path, program)[0]}
        for program in ("rlrun", "verl")
    )
    assert ours["policy-loss-band"] == "optim.lr=1e-06 algorithm.kl_loss_coef=1 algorithm.clip_ratio_c=3"
    assert "actor_rollout_ref.actor.clip_ratio_c=3" in theirs["policy-loss-band"]
