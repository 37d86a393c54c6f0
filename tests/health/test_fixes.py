"""What findings advise: it can be typed in the program that wrote the log, suits what is trained, and agrees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

from launcher.cli.main import app
from launcher.core.events import Alert, Step
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.config.defaults import Program
from launcher.health.advice import with_one_rate
from launcher.health.judge import Judge
from launcher.health.profiles import profile_names, read_profile
from launcher.logs import endings
from launcher.logs.sources import open_log
from launcher.views.findings import PROGRAMS

RULES = read_profile("measured")
SETTINGS = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
VERL_RL = {"critic/score/mean": 0.5, "actor/grad_norm": 0.3, "actor/lr": 1e-5}
VERL_SFT = {"train/loss": 2.0, "train/grad_norm": 1.0, "train/lr": 1e-5}
TRL_SFT = {"loss": 2.0, "grad_norm": 0.3, "learning_rate": 1e-5, "entropy": 1.0, "mean_token_accuracy": 0.6}
TRL_DPO = {"loss": 0.69, "grad_norm": 0.3, "learning_rate": 1e-5, "rewards/chosen": 0.1, "rewards/accuracies": 0.6}
TRL_GRPO = {"loss": 0.0, "grad_norm": 0.3, "learning_rate": 1e-5, "reward": 0.5, "rewards/accuracy/mean": 0.5}
SLIME = {"rollout/raw_reward": 0.5, "train/loss": 0.0, "train/pg_loss": 0.0, "train/lr-pg_0": 1e-6}
OF_SFT = ("not-finite", "gradient-unstable", "loss-rose", "entropy-exploded", "val-loss-rose", "memory-near-limit")
"""Rules whose metrics logs of SFT have."""


def judge_of(program: str, metrics: Mapping[str, float]) -> Judge:
    judge = Judge(RULES, program)
    judge.see(Step(step=1, metrics=metrics))
    return judge


@pytest.mark.parametrize(("program", "metrics", "trained"), [
    ("verl", VERL_SFT, "sft"), ("trl", TRL_SFT, "sft"), ("trl", TRL_DPO, "pairs"), ("trl", SLIME, "rl"),
    ("rlrun", {"actor/dpo_loss": 0.7, "actor/lr": 1e-6}, "pairs"), ("verl", {"actor/grad_norm": 1.0}, "rl"),
    ("any", {"Loss": 0.0, "Entropy": 0.4, "Mismatch KL": 0.001}, "rl"), ("trl", {"eval_loss": 1.0}, "sft"),
])  # fmt: skip
def test_what_is_trained_is_known_by_the_metrics(program: str, metrics: Mapping[str, float], trained: str) -> None:
    """Without sampling it gets no argument of RL: a --beta of 0.01 would loosen DPO; SFTConfig has none."""
    judge = judge_of(program, metrics)
    assert judge.trained == trained
    for fix in (judge.fix_of(RULES.rules[rule].fix) for rule in OF_SFT if trained != "rl"):
        assert fix and "actor_rollout_ref" not in fix and "--beta" not in fix and "kl_loss" not in fix


OPENRLHF = {"policy_loss": 0.1, "actor_lr": 1e-6, "reward": 0.5}
SKYRL = {"reward/avg_raw_reward": 0.5, "policy/policy_loss": 0.1}
TRL_PPO = {"objective/scores": 0.5, "loss/policy_avg": 0.1, "lr": 1e-6}


@pytest.mark.parametrize("metrics", [SLIME, OPENRLHF, SKYRL, TRL_GRPO, TRL_SFT, TRL_DPO, TRL_PPO])
def test_dicts_of_another_program_get_no_arguments_of_trl(metrics: Mapping[str, float], tmp_path: Path) -> None:
    (path := tmp_path / "a.log").write_text("".join(f"{metrics}\n" for _ in range(3)))
    fix = judge_of(PROGRAMS.get(open_log(path).kind, "any"), metrics).fix_of(RULES.rules["reward-collapsed"].fix)
    other = metrics in (SLIME, OPENRLHF, SKYRL)
    assert fix.startswith("a learning rate five times smaller" if other else "--learning_rate")


@pytest.mark.parametrize("profile", profile_names())
def test_each_setting_and_command_of_our_own_that_a_fix_names_exists(profile: str) -> None:
    commands = get_command(app)
    assert isinstance(commands, TyperGroup)
    for name, rule in read_profile(profile).rules.items():
        text = re.sub(r"\{[^}]*\}", "1", " ".join(text for program, text in rule.fix.items() if "rlrun" in program))
        for key in re.findall(r"([a-z_]+\.[\w.]+)=", text):
            assert f"`{key}`" in SETTINGS, (name, key)
        for command, second in re.findall(r"rlrun (\w+) (\w+)", text):
            found = commands.get_command(Context(commands), command)
            assert found is not None, (name, command)
            if isinstance(found, TyperGroup):
                assert found.get_command(Context(found), second) is not None, (name, command, second)


@pytest.mark.parametrize(("spelling", "program"), [("verl", "ppo"), ("verl-sft", "sft")])
def test_each_setting_of_verl_that_a_fix_names_exists(spelling: str, program: Program) -> None:
    rules = [rule.fix for profile in profile_names() for rule in read_profile(profile).rules.values()]
    texts = [
        re.sub(r"\{[^}]*\}", "1", fix.get(spelling, "")) for fix in (*rules, endings.fixes_of(endings.OUT_OF_MEMORY))
    ]
    words = sorted({f"{key}=1" for text in texts for key in re.findall(r"([a-z_]+\.[\w.]+)=", text)})
    assert words
    assert [problem for problem in compose(words, program).problems if problem.code == "unknown-setting"] == []


@pytest.mark.parametrize("profile", profile_names())
def test_a_kl_coefficient_of_verl_is_named_with_its_switch(profile: str) -> None:
    for name, rule in read_profile(profile).rules.items():
        fix = rule.fix.get("verl", "")
        raised = "actor.kl_loss_coef=" in fix and name != "not-converging"  # which lowers it
        assert not raised or "use_kl_loss=true" in fix, name


def advised(profile: str, rate: float | None) -> list[str]:
    """The fix of a log-ratio of 7, 15 and 25 to the reference."""
    found = list[str]()
    for ratio in (7.0, 15.0, 25.0):
        metrics = {"mean_log_prob_current": -200.0 - ratio, "mean_log_prob_ref": -200.0}
        judge = Judge(read_profile(profile), "any")
        alerts = judge.see(Step(step=1, metrics=metrics | ({} if rate is None else {"learning_rate": rate})))
        found += [alert.fix.split()[1] for alert in alerts if alert.rule.startswith("log-ratio")]
    return found


def test_the_tiers_of_a_guide_do_not_raise_a_learning_rate_that_is_smaller() -> None:
    assert advised("grpo_continuous", 1e-4) == advised("grpo_continuous", None) == ["1e-06", "5e-07", "1e-07"]
    assert advised("grpo_continuous", 1e-7) == ["5e-08", "2e-08", "1e-08"]


def test_findings_of_a_run_advise_one_learning_rate() -> None:
    fixes = ["optim.lr=2e-06 seed=1, from the start", "actor_rollout_ref.actor.optim.lr=5e-6", "--learning_rate 1e-06",
             "critic.optim.lr=1e-5", "optim.lr=3e-05", "harder data"]  # fmt: skip
    alerts = with_one_rate([Alert(step=1, text=f"a; use {fix}", fix=fix) for fix in fixes], run_rate=1e-5)
    lowered = ["optim.lr=1e-06 seed=1, from the start", "actor_rollout_ref.actor.optim.lr=1e-06",
               "--learning_rate 1e-06", "critic.optim.lr=1e-5", "optim.lr=3e-05", "harder data"]  # fmt: skip
    assert [alert.fix for alert in alerts] == lowered, "a rate above the run's own is for one that learns nothing"
    assert [alert.text for alert in alerts] == [f"a; use {fix}" for fix in lowered]
