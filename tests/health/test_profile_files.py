"""Profiles that cannot be used: each gives one clear problem, and nothing in them is ever executed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.resolve import resolve
from launcher.core.events import Step
from launcher.core.problems import Problems
from launcher.health.judge import Judge
from launcher.health.profiles import profile_names, read_profile
from launcher.health.run_judge import read_run_rules
from launcher.preflight import plan

BASE = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"]
LOG = "step:1 - critic/score/mean:0.5\n"
HARMFUL = "__import__('os').mkdir('harmed')"


def profile(when: str = "last(reward) > 1", **more: str) -> str:
    rule = {"metric": "reward", "text": "found", "when": when, **more}
    lines = "".join(f"    {key}: {value!r}\n" for key, value in rule.items())
    return f"metrics:\n  reward: critic/score/mean\nrules:\n  mine:\n{lines}"


CONDITIONS = {
    "an unknown function": ("median(reward) > 1", "unknown function median; use one of"),
    "a metric alone": ("reward > 1", "reward stands alone; use a call such as last(reward)"),
    "an attribute": ("last(reward).real > 1", "is not allowed"),
    "a subscript": ("reward[0] > 1", "Subscript is not allowed"),
    "a power": ("9 ** 9 ** 9 > 1", "Pow is not allowed"),
    "nothing": ("", "is no expression"),
    "too few arguments": ("max(1) > 0", "max has too few arguments"),
    "a huge expression": ("last(reward) > 1" + " or last(reward) > 1" * 200, "characters; expected at most 1000"),
    "deep brackets": ("(" * 450 + "1" + ")" * 450, "is no expression"),
    "an import": (HARMFUL, "only plain calls such as mean(reward, 3) are allowed"),
    "the hidden function": ("_compare(reward) > 1", "unknown function _compare"),
}  # fmt: skip
FILES = {
    "no mapping": ("- a\n- b\n", "mapping"),
    "an unknown key of a rule": (profile(severity="high"), "severity"),
    "no condition": ("metrics: {reward: r}\nrules: {mine: {metric: reward, text: found}}\n", "when"),
    "a Python object": ("rules: !!python/object/apply:os.mkdir [harmed]\n", "python/object"),
    "an unknown metric of a rule": (profile(metric="accuracy"), "'accuracy'; use one of reward"),
    "a wrong value": (profile(value=HARMFUL), "only plain calls"),
    "a wrong place in a text": (profile(text="found {" + HARMFUL + "}"), "only plain calls"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("when", "got"), CONDITIONS.values(), ids=CONDITIONS)
def test_wrong_condition_is_one_problem(when: str, got: str):
    Path("mine.yaml").write_text(profile(when))
    with pytest.raises(Problems) as caught:
        Judge(read_profile("mine.yaml"))
    (problem,) = caught.value.lines
    assert problem.startswith("health.rules.mine: cannot be read: ")
    assert got in problem
    assert not Path("harmed").exists()


@pytest.mark.parametrize(("text", "got"), FILES.values(), ids=FILES)
def test_wrong_file_is_one_problem(text: str, got: str):
    Path("mine.yaml").write_text(text)
    with pytest.raises(Problems) as caught:
        Judge(read_profile("mine.yaml"))
    (problem,) = caught.value.lines
    assert got in problem
    assert "mine" in problem
    assert "; " in problem  # what to use
    assert not Path("harmed").exists()


def test_all_wrong_rules_are_reported_at_once():
    Path("mine.yaml").write_text(
        profile("reward > 1") + profile("nan").partition("rules:\n")[2].replace("mine", "other")
    )
    with pytest.raises(Problems) as caught:
        Judge(read_profile("mine.yaml"))
    assert [line.partition(": ")[0] for line in caught.value.lines] == ["health.rules.mine", "health.rules.other"]


@pytest.mark.parametrize("name", ["nothing", "no/such/file.yaml", "", "a" * 300, "measured.yaml\0"])
def test_profile_that_is_not_there_names_those_that_are(name: str):
    with pytest.raises(Problems) as caught:
        read_profile(name)
    (problem,) = caught.value.lines
    assert f"use one of {', '.join(profile_names())}, or a file" in problem


@pytest.mark.parametrize("content", [b"", b"\0\1\2\xff", b"x" * 2**21], ids=["empty", "binary", "huge"])
def test_file_that_is_no_text_of_a_profile(content: bytes):
    Path("mine.yaml").write_bytes(content)
    with pytest.raises(Problems) as caught:
        Judge(read_profile("mine.yaml"))
    assert len(caught.value.lines) == 1


# ---- by the commands


def test_diagnose_refuses_a_wrong_profile():
    when, got = CONDITIONS["an import"]
    Path("mine.yaml").write_text(profile(when))
    Path("train.log").write_text(LOG)
    ran = CliRunner().invoke(app, ["diagnose", "train.log", "--profile", "mine.yaml"])
    assert (ran.exit_code, got in " ".join(ran.output.split())) == (2, True)
    assert sorted(os.listdir()) == ["mine.yaml", "train.log"]


@pytest.mark.parametrize(("word", "got"), [
    ("health.rules.no-signal.when='median(reward) > 1'", "unknown function median"),
    ("health.rules.no-signal.hold=0", "health.rules.no-signal.hold"),
    ("health.on_critical=explode", "health.on_critical"),
], ids=lambda value: value)  # fmt: skip
def test_plan_refuses_a_wrong_rule(word: str, got: str):
    try:
        found = plan.problems(resolve([*BASE, word]))
    except Problems as problems:  # a value that no rule may have is refused earlier
        found = problems.problems
    (problem,) = map(str, found)
    assert got in problem
    assert "; " in problem


def test_plan_takes_a_changed_rule():
    run = resolve([*BASE, "health.rules.no-signal.level=info", "health.on_critical=pause"])
    assert run.health.rules["no-signal"] == {"level": "info"}
    own, profile = read_run_rules(run)
    assert own.rules["no-signal"].level == "info" and profile.rules["no-signal"].level == "critical"
    assert run.health.on_critical == "pause"


def test_the_profile_in_the_documentation_is_read(here: Path):
    page = (Path(__file__).parents[2] / "docs" / "health.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    Path("mine.yaml").write_text(text)
    rules = read_profile("mine.yaml")
    assert set(rules.rules) == {"entropy-exploded"}
    rewards, entropies = [0.5] * 4 + [0.1] * 3, [0.4] * 4 + [2.1] * 3
    steps = [
        {"critic/score/mean": reward, "actor/entropy": entropy, "actor/lr": 1e-5}
        for reward, entropy in zip(rewards, entropies, strict=True)
    ]
    judge = Judge(rules)
    (alert,) = [a for n, metrics in enumerate(steps, 1) for a in judge.see(Step(step=n, metrics=metrics))]
    assert alert.text == "entropy rose to 2.1, from 0.4; use optim.lr=2e-06"
