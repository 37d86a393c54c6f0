"""Two runs side by side, as their folders hold them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.diff import Side, rows, side_of_run
from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.spec.stored import to_yaml

BASE = "algorithm=grpo model=tiny data=reverse sampler.n=4"
RUNS = Path("runs")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_of(words: str, name: str = "first") -> Path:
    """A run's folder, made of words as `rlrun train` makes it."""
    folder = RUNS / "rlrun" / name
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("spec.yaml").write_text(to_yaml(resolve(words.split())))
    folder.joinpath("words.txt").write_text(f"rlrun train {words}\n")
    return folder


def side(folder: Path) -> Side:
    return side_of_run(folder.name, folder / "spec.yaml", folder / "words.txt")


def compared(a: Path, b: Path) -> list[tuple]:
    return [(row.name, *(cell and cell.value for cell in row.cells)) for row in rows(side(a), side(b))]


def printed(*words: str) -> str:
    return CliRunner().invoke(app, ["config", "diff", *words]).stdout


def test_a_group_whose_class_differs_comes_first_and_whole():
    a, b = run_of(BASE, "a"), run_of(BASE.replace("grpo", "gspo") + " data.shuffle=false", "b")
    assert compared(a, b) == [
        ("algorithm", "GRPO", "GSPO"),
        ("algorithm.clip_ratio_low", 0.2, 3e-4),
        ("algorithm.clip_ratio_high", 0.2, 4e-4),
        ("data.shuffle", True, False),
    ]
    assert [row.name for row in rows(side(a), side(b)) if row.whole] == ["algorithm"]


def test_what_nobody_gave_is_marked_and_comes_last():
    base = BASE.replace("data=reverse", "data=files data.train_files=rows.jsonl")
    one, other = side(run_of(base, "one")), side(run_of(f"{base} data.max_length=64", "other"))
    derived = dict.fromkeys(("data.max_prompt_length", "data.max_response_length"), True)
    assert {row.name: row.derived for row in rows(one, other)} == {"data.max_length": False, **derived}
    given = f"{base} data.max_length=64 data.max_prompt_length=60 data.max_response_length=4"
    assert not any(row.derived for row in rows(one, side(run_of(given, "given")))), "it is given on one side"
    shown = printed("one", "rlrun/other").splitlines()
    assert shown[3].split() == ["data.max_length", "null", "64"]
    assert "derived, fitted to model or data.max_length" in shown[4]


def test_where_a_runs_values_come_from():
    """The word that it was started or resumed with; the line of spec.yaml where there is none."""
    run = run_of(f"{BASE} optim.lr=1e-3 trainer.keep_last=2")
    with (run / "words.txt").open("a") as words:
        words.write("rlrun train --resume rlrun/first trainer.keep_last=7\n")
    cells = side(run).cells
    assert cells["optim.lr"].origin.where == f"{run}/words.txt: optim.lr=1e-3"
    assert cells["trainer.keep_last"].origin.where == f"{run}/words.txt: trainer.keep_last=7"
    assert cells["algorithm"].origin.where == f"{run}/spec.yaml:2"
    (run / "words.txt").unlink()
    assert side(run).cells["optim.lr"].origin.where.startswith(f"{run}/spec.yaml:")


def test_a_run_of_another_version_can_be_compared():
    """Settings that this version does not know, or no longer has, are settings that one side has not; null is one."""
    run = run_of(f"{BASE} trainer.keep_last=2")
    (run / "spec.yaml").write_text((run / "spec.yaml").read_text().replace("keep_last: 2", "keep_first: 2"))
    assert compared(run, run_of(BASE, "other")) == [("trainer.keep_first", 2, None), ("trainer.keep_last", None, 3)]
    left = side(run_of(BASE.replace("grpo", "dpo"), "dpo"))
    (cells,) = (row.cells for row in rows(left, side(run)) if row.name == "algorithm.clip_ratio_c")
    assert cells[0] is None and cells[1].value is None


def test_a_spec_that_is_no_settings_is_named():
    run = run_of(BASE)
    (run / "spec.yaml").write_text("a: [")
    with pytest.raises(Problems, match=rf"{run}/spec\.yaml:.*cannot be read"):
        side(run)


def test_json_says_which_side_has_a_setting_and_where_from():
    run_of(BASE), run_of(BASE.replace("grpo", "gspo_selfplay"), "other")
    ran = CliRunner().invoke(app, ["config", "diff", "--source", "--json", "first", "other"])
    node = json.loads(ran.stdout)
    assert ran.exit_code == 1 and not node["equal"]
    found = {row["setting"]: row for row in node["differs"] if not row["group"]}
    assert set(found["algorithm.beta"]) == {"setting", "group", "b", "b_from"}  # GRPO has none
    assert found["algorithm.beta"]["b_from"].startswith("runs/rlrun/other/spec.yaml:")
    run_of(f"{BASE} seed=1", "other")
    assert json.loads(printed("--json", "first", "other"))["differs"] == [
        {"setting": "seed", "group": False, "a": 0, "b": 1}
    ]


def test_what_is_equal_needs_no_words():
    run_of(BASE)
    equal = CliRunner().invoke(app, ["config", "diff", "first", "first"])
    assert (equal.exit_code, equal.stdout) == (0, "")
    assert CliRunner().invoke(app, ["config", "diff", "first", "nothing"]).exit_code == 2
