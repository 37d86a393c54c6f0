"""What <TAB> offers, asked as the shells ask: bash cuts words at `=`, zsh hands them over whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.compose import groups
from launcher.config.reference import completion


def bash(*words: str) -> list[str]:
    """The words of a line as COMP_WORDBREAKS cuts them; the last one is being typed."""
    cut = [part for word in words for part in _cut(word)] if words[-1] else [*words]
    told = {"COMP_WORDS": "\n".join(["rlrun", *cut]), "COMP_CWORD": str(len(cut)), "_RLRUN_COMPLETE": "complete_bash"}
    return CliRunner().invoke(app, [], env=told, prog_name="rlrun").stdout.split()


def _cut(word: str) -> list[str]:
    before, equals, after = word.partition("=")
    return [part for part in (before, equals, after) if part]


def zsh(line: str) -> list[str]:
    told = {"_TYPER_COMPLETE_ARGS": line, "_RLRUN_COMPLETE": "complete_zsh"}
    output = CliRunner().invoke(app, [], env=told, prog_name="rlrun").stdout
    return output.partition("((")[2].partition("))")[0].replace('"', "").split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["train", "al"], ["algorithm=", "algorithm."]),  # choose, or set something of it
        (["train", "algorithm=gr"], ["grpo"]),
        (["train", "algorithm="], groups()["algorithm"]),
        (["train", "trainer.sa"], ["trainer.save_freq="]),
        (["train", "optim.lr="], []),  # any number
        (["train", "nothing.of"], []),
        (["config", "show", "algorithm.clip_ratio_l"], ["algorithm.clip_ratio_low"]),
        (["data", "prepare", "x", "reward=gs"], ["gsm8k", "gsm8k_format"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].islower() else None,
)  # fmt: skip
def test_bash(words, offered):
    assert bash(*words) == offered


def test_every_group_is_offered_where_nothing_is_typed():
    assert {f"{name}=" for name in groups()} < set(bash("train", ""))


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rlrun train algorithm=gs", ["algorithm=gspo", "algorithm=gspo_selfplay"]),
        ("rlrun train algorithm=grpo trainer.sa", ["trainer.save_freq="]),
        ("rlrun config show algorithm=d", ["algorithm=dapo", "algorithm=dpo", "algorithm=dr_grpo"]),
    ],
)
def test_zsh(line, offered):
    assert zsh(line) == offered


def test_a_folder_of_ones_own_is_offered(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rose.yaml").write_text("_target_: launcher.data.reverse.Reverse\n")
    assert bash("train", "--config-dir", str(tmp_path), "data=ro") == ["rose"]
    (tmp_path / "data" / "rose.yaml").write_text("[")
    assert bash("train", "--config-dir", str(tmp_path), "data.n_val") == ["data.n_val="]  # plan names the error


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("maths/first", "maths/second", "words/first"):
        path = tmp_path / "runs" / name
        path.mkdir(parents=True)
        (path / "spec.yaml").touch()
    (tmp_path / "runs" / "maths" / "no-run").mkdir()
    return tmp_path / "runs"


@pytest.mark.parametrize(
    "before", [["show"], ["logs"], ["stop"], ["checkpoints"], ["train", "--resume"], ["config", "diff"]], ids=" ".join
)
def test_runs(before, runs):
    assert bash(*before, "ma") == ["maths/first", "maths/second"]
    assert bash(*before, "sec") == ["second"]


def test_runs_of_another_folder(runs, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    assert bash("show", "--root", os.fspath(runs), "words") == ["words/first"]


def test_words_are_made_whole_again():
    assert completion.completions("", ["algorithm", "=", "grpo", "model"]) == groups()["model"]
    assert completion.completions("ti", ["algorithm=grpo", "model", "="]) == ["tiny", "tiny-email"]
