"""Profiles that cannot be used: each gives one clear problem, and nothing in them is ever executed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from curves import judged
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.resolve import resolve
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
    "an empty file": (b"", ""),
    "a binary file": (b"\0\1\2\xff", ""),
    "a huge file": (b"x" * 2**21, ""),
    "a wrong place in a text": (profile(text="found {" + HARMFUL + "}"), "only plain calls"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(name: str, content: str | bytes | None = None) -> list[str]:
    """Why a profile cannot be used; nothing of it was executed."""
    if content is not None:
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(Problems) as caught:
        Judge(read_profile(name))
    assert not Path("harmed").exists()
    return caught.value.lines


@pytest.mark.parametrize(("when", "got"), CONDITIONS.values(), ids=CONDITIONS)
def test_wrong_condition_is_one_problem(when: str, got: str):
    (problem,) = refused("mine.yaml", profile(when))
    assert problem.startswith("health.rules.mine: cannot be read: ") and got in problem


@pytest.mark.parametrize(("content", "got"), FILES.values(), ids=FILES)
def test_wrong_file_is_one_problem(content: str | bytes, got: str):
    (problem,) = refused("mine.yaml", content)
    assert got in problem and "mine" in problem and "; " in problem  # what to use


def test_all_wrong_rules_are_reported_at_once():
    other = profile("nan").partition("rules:\n")[2].replace("mine", "other")
    problems = refused("mine.yaml", profile("reward > 1") + other)
    assert [line.partition(": ")[0] for line in problems] == ["health.rules.mine", "health.rules.other"]


@pytest.mark.parametrize("name", ["nothing", "no/such/file.yaml", "", "a" * 300, "measured.yaml\0"])
def test_profile_that_is_not_there_names_those_that_are(name: str):
    (problem,) = refused(name)
    assert f"use one of {', '.join(profile_names())}, or a file" in problem


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
    ("health.rules.nosuch.level=warn", "health.rules.nosuch: is no rule of the run's profile"),
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
    values = {"critic/score/mean": rewards, "actor/entropy": entropies, "actor/lr": [1e-5] * 7}
    (alert,) = judged(rules, values)
    assert alert.text == "entropy rose to 2.1, from 0.4; use optim.lr=2e-06"
