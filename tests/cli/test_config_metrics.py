"""`rlrun config metrics`: by our names, by parts of them, and by those of other projects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.core.metrics import described


def printed(*words: str) -> str:
    ran = CliRunner().invoke(app, ["config", "metrics", *words])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def as_json(*words: str) -> list[dict[str, Any]]:
    return json.loads(printed(*words, "--json"))


def test_all_are_listed() -> None:
    assert [entry["metric"] for entry in as_json()] == list(described())
    lines = printed().splitlines()
    assert len(lines) == len(described()) + 1 and "others call it" not in lines[0]


def test_one_has_its_formula_and_its_other_names() -> None:
    text = printed("critic/vf_explained_var")
    assert "1 - Var(returns - values) / Var(returns)" in text and "explained_variance" in text


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("mean_ratio", "actor/ratio_mean"),  # S4-04
        ("old_approx_kl", "actor/ppo_kl"),
        ("explained_variance", "critic/vf_explained_var"),
        ("critic/vf_explained_var", "critic/vf_explained_var"),
    ],
)
def test_another_projects_name_finds_ours(spelling: str, name: str) -> None:
    (entry,) = as_json(spelling)
    assert entry["metric"] == name
    assert spelling in [entry["metric"], *entry["also"]]


def test_a_name_that_is_part_of_others_is_listed_first_where_it_is_an_alias() -> None:
    """`clip_ratio` is what TRL calls actor/pg_clipfrac, and a part of response_length/clip_ratio."""
    names = [entry["metric"] for entry in as_json("clip_ratio")]
    assert names[0] == "actor/pg_clipfrac" and "response_length/clip_ratio" in names


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("training/global_step", "S0-07"), ("training/epoch", "S0-08"), ("critic/score/mean", "S0-10"),
        ("critic/rewards/mean", "S0-11"), ("response_length/mean", "S0-12"), ("perf/throughput", "S0-13"),
        ("actor/pg_loss", "S0-14"), ("actor/entropy", "S0-15"), ("critic/vf_loss", "S0-16"),
        ("actor/ppo_kl", "S0-17"), ("timing_s/gen", "S0-18"), ("timing_s/update_critic", "S0-19"),
        ("timing_s/update_actor", "S0-20"), ("timing_s/step", "S0-21"), ("actor/grad_norm", "S0-22"),
        ("critic/grad_norm", "S0-23"), ("perf/max_memory_allocated_gb", "S0-25"),
    ],
)  # fmt: skip
def test_each_metric_of_the_ppo_guide_is_explained_and_read_from_a_log(name: str, number: str, tmp_path: Path) -> None:
    (entry,) = as_json(name)
    assert entry["metric"] == name and entry["meaning"], number
    log = tmp_path / "train.log"
    log.write_text(f"step:5 - {name}:0.25\nstep:6 - {name}:np.float64(-1.5e-07)\n")
    ran = CliRunner().invoke(app, ["metrics", str(log), "--keys", name, "--csv"])
    assert ran.stdout.splitlines() == [f"step,{name}", "5,0.25", "6,-1.5e-07"]


def test_verls_older_name_of_a_held_out_score() -> None:  # S0-24
    (entry,) = as_json("val/test_score/openai/gsm8k")
    assert entry["metric"] == "val/test_score/openai/gsm8k" and entry["better"] == "up"


@pytest.mark.parametrize("pattern", ["no/such", "\x1b[2J", "[bold]x"])
def test_an_unknown_name_is_a_problem(pattern: str) -> None:
    ran = CliRunner().invoke(app, ["config", "metrics", pattern])
    assert ran.exit_code == 2 and "no metric of that name" in ran.output and "\x1b" not in ran.output


def test_a_name_of_a_terminals_controls_is_escaped() -> None:
    assert "\x1b" not in printed("val-core/\x1b[2J/reward/mean@1")
