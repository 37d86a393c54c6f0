"""The guides' own examples: what is read of them, and what their profiles find."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.core.events import Alert, Step
from launcher.health.judge import Judge
from launcher.health.profiles import read_profile
from launcher.logs.sources import open_log

VAL = "val-core/openai/gsm8k/reward/mean@1"
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
