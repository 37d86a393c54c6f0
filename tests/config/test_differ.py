"""Two runs side by side: words, recipes and runs on disk."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.diff import Side, rows, side
from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.runs import store
from launcher.spec.stored import to_yaml

BASE = "algorithm=grpo model=tiny data=reverse sampler.n=4"
RUNS = Path("runs")


def of(text: str) -> Side:
    return side(text, partial(store.find, root=RUNS))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # a recipe is read in a copy of the working folder


@pytest.fixture
def run() -> Path:
    """A run's folder, made of words as `rlrun train` makes it."""
    folder = RUNS / "rlrun" / "first"
    folder.mkdir(parents=True)
    words = [*BASE.split(), "optim.lr=1e-3", "trainer.keep_last=2"]
    folder.joinpath("spec.yaml").write_text(to_yaml(resolve(words)))
    folder.joinpath("words.txt").write_text(f"rlrun train {' '.join(words)}\n")
    return folder


def compared(a: str, b: str) -> list[tuple]:
    found = rows(of(a), of(b))
    return [(row.name, *(cell and cell.value for cell in row.cells), row.whole) for row in found]


def test_a_group_whose_class_differs_comes_first_and_whole():
    assert compared(BASE, BASE.replace("grpo", "gspo") + " data.shuffle=false") == [
        ("algorithm", "GRPO", "GSPO", True),
        ("algorithm.clip_ratio_low", 0.2, 3e-4, False),
        ("algorithm.clip_ratio_high", 0.2, 4e-4, False),
        ("data.shuffle", True, False, False),
    ]


def test_what_nobody_gave_is_marked_and_comes_last():
    """Of arguments and of runs: of a run what was typed for it is known."""
    base = BASE.replace("data=reverse", "data=files data.train_files=rows.jsonl")
    for name, more in (("one", []), ("other", ["data.max_length=64"])):
        words, folder = [*base.split(), *more], RUNS / "rlrun" / name
        folder.mkdir(parents=True)
        folder.joinpath("spec.yaml").write_text(to_yaml(resolve(words)))
        folder.joinpath("words.txt").write_text(f"rlrun train {' '.join(words)}\n")
    derived = {"data.max_prompt_length", "data.max_response_length"}
    for a, b in ((base, f"{base} data.max_length=64"), ("one", "other"), (base, "other")):
        found = {row.name: row.derived for row in rows(of(a), of(b))}
        assert found == {"data.max_length": False, **dict.fromkeys(derived, True)}
    given = f"{base} data.max_length=64 data.max_prompt_length=60 data.max_response_length=4"
    assert not any(row.derived for row in rows(of(base), of(given))), "it is given on one side"
    shown = CliRunner().invoke(app, ["config", "diff", base, "rlrun/other"]).stdout.splitlines()
    assert shown[3].split() == ["data.max_length", "null", "64"]
    assert "derived, fitted to model or data.max_length" in shown[4]


def test_a_setting_that_one_side_has_not_is_no_null():
    """DPO has no `clip_ratio_c`, whose default is null."""
    found = {row.name: row.cells for row in rows(of(BASE), of(BASE.replace("grpo", "dpo")))}
    left, right = found["algorithm.clip_ratio_c"]
    assert (left.value, right) == (None, None)


def test_spellings_of_one_run_are_equal():
    assert compared(BASE, f"rlrun train {BASE} optim.lr=0.0001 'optim.betas=[0.9, 0.999]' +seed=0") == []


def test_a_run_is_what_its_words_made(run):
    assert compared("first", f"{BASE} optim.lr=1e-3 trainer.keep_last=2") == []
    assert compared("runs/rlrun/first", BASE) == [("optim.lr", 1e-3, 1e-4, False), ("trainer.keep_last", 2, 3, False)]


def test_where_a_runs_values_come_from(run):
    """The word that it was started with; the line of spec.yaml where there is none, or where it holds no longer."""
    spec = run / "spec.yaml"
    spec.write_text(spec.read_text().replace("keep_last: 2", "keep_last: 7"))  # as words of --resume change it
    found = of("first").origins
    lines = spec.read_text().splitlines()
    place = [number for number, line in enumerate(lines, 1) if "keep_last" in line]
    assert found["optim.lr"].where == f"{run}/words.txt: optim.lr=1e-3"
    assert found["trainer.keep_last"].where == f"{run}/spec.yaml:{place[0]}"
    assert found["algorithm"].where == f"{run}/spec.yaml:2"
    (run / "words.txt").unlink()
    assert of("first").origins["optim.lr"].where.startswith(f"{run}/spec.yaml:")


def test_a_run_of_another_version_can_be_compared(run):
    """Settings that this version does not know, or no longer has, are settings that one side has not."""
    spec = run / "spec.yaml"
    spec.write_text(spec.read_text().replace("keep_last: 2", "keep_first: 2"))
    assert compared("first", f"{BASE} optim.lr=1e-3") == [
        ("trainer.keep_first", 2, None, False), ("trainer.keep_last", None, 3, False),
    ]  # fmt: skip


def test_recipes_by_name_and_by_path():
    found = compared("grpo-gsm8k", "dapo-gsm8k.sh".removesuffix(".sh"))
    assert found[0] == ("algorithm", "GRPO", "DAPO", True)
    assert ("sampler.n", 8, 16, False) in found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("algorithm=grop model=tiny data=reverse",
         ["algorithm: no choice 'grop'; did you mean algorithm=grpo? (of 'algorithm=grop model=tiny data=reverse')"]),
        ("frist", ["'frist': no run of that name in runs; it may be rlrun/first",
                   "'frist': is not a recipe either; a recipe may be dapo-gsm8k, dpo, email-agent, grpo-gsm8k, "
                   "quickstart, sft, "
                   "verl-grpo-2-nodes, verl-grpo-gsm8k, verl-ppo-gsm8k, verl-sft"]),
        ("algorithm='grpo", ["\"algorithm='grpo\": cannot be read (no closing quotation);"
                             " use overrides such as algorithm=grpo"]),
        ("--resume first seed=1", ["--resume first: is not an override; leave it out"]),
        ("quickstart", ["quickstart: has 2 runs; use recipes/quickstart.sh#1 to #2"]),
        ("  ", ["algorithm: not chosen; it may be dapo, dpo, dr_grpo, gigpo, grpo, gspo, gspo_selfplay, ppo, sft,"
                " turn_grpo (of '  ')"]),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_named(run, text, lines):
    with pytest.raises(Problems) as caught:
        of(text)
    assert caught.value.lines[: len(lines)] == lines


def test_a_name_that_means_two_things_is_refused(run):
    (RUNS / "rlrun" / "dpo").mkdir()
    (RUNS / "rlrun" / "dpo" / "spec.yaml").write_text("seed: 1\n")
    with pytest.raises(Problems) as caught:
        of("dpo")
    assert caught.value.lines == ["dpo: is a run and a recipe; use rlrun/dpo or recipes/dpo.sh"]
    assert of("rlrun/dpo").values == {"seed": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "cannot be read"),
        ("a: " + "y" * 1_100_000, "spec.yaml:1: has 1,048,577 bytes"),
        ("a: " + "[" * 5000, "stand more than 64 deep"),
    ],
)  # fmt: skip
def test_a_spec_that_is_no_settings_is_named(run, text, reason):
    (run / "spec.yaml").write_text(text)
    with pytest.raises(Problems) as caught:
        of("first")
    assert reason in caught.value.lines[0]
    assert caught.value.lines[0].startswith(f"{run}/spec.yaml:")


def test_json_says_which_side_has_a_setting_and_where_from():
    ran = CliRunner().invoke(app, ["config", "diff", "--source", "--json", BASE, BASE.replace("grpo", "gspo_selfplay")])
    node = json.loads(ran.stdout)
    assert ran.exit_code == 1
    found = {row["setting"]: row for row in node["differs"] if not row["group"]}
    assert not node["equal"]
    assert set(found["algorithm.beta"]) == {"setting", "group", "b", "b_from"}  # GRPO has none
    assert found["algorithm.beta"]["b_from"].startswith("launcher/algorithms/gspo_selfplay.py:")
    plain = json.loads(CliRunner().invoke(app, ["config", "diff", "--json", BASE, f"{BASE} seed=1"]).stdout)
    assert plain["differs"] == [{"setting": "seed", "group": False, "a": 0, "b": 1}]


def test_what_is_equal_needs_no_words():
    equal = CliRunner().invoke(app, ["config", "diff", BASE, BASE])
    assert (equal.exit_code, equal.stdout) == (0, "")
    assert CliRunner().invoke(app, ["config", "diff", BASE, "nothing"]).exit_code == 2


def test_notes_of_recipes_are_told_apart_from_the_answer(monkeypatch):
    monkeypatch.delenv("NAME", raising=False)
    ran = CliRunner().invoke(app, ["config", "diff", "quickstart#1", "quickstart#2"])
    assert re.search(r"sft-\{date .*; only a running shell knows it", ran.stderr)
    assert "only a running shell" not in ran.stdout
