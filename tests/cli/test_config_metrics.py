"""`rlrun config metrics`: by our names, by parts of them, and by those of other projects."""

from __future__ import annotations

import json
from typing import Any

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


def test_another_projects_name_finds_ours_before_those_that_it_is_a_part_of() -> None:
    """S4-04; `clip_ratio` is what TRL calls actor/pg_clipfrac, and a part of response_length/clip_ratio."""
    (entry,) = as_json("mean_ratio")
    assert entry["metric"] == "actor/ratio_mean" and "mean_ratio" in entry["also"]
    names = [entry["metric"] for entry in as_json("clip_ratio")]
    assert names[0] == "actor/pg_clipfrac" and "response_length/clip_ratio" in names


def test_an_unknown_name_is_a_problem_and_controls_of_a_terminal_are_escaped() -> None:
    ran = CliRunner().invoke(app, ["config", "metrics", "\x1b[2J"])
    assert ran.exit_code == 2 and "no metric of that name" in ran.output and "\x1b" not in ran.output
    assert "\x1b" not in printed("val-core/\x1b[2J/reward/mean@1")
