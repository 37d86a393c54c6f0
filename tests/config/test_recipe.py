"""A recipe is read by bash, where it can do nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.config.recipe import commands, known, one, run_request
from launcher.config.resolve import resolve
from launcher.core.problems import Problems

ENVIRONMENT = {"HOME": "/nowhere"}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # a recipe is read in a copy of the working folder


def test_what_only_a_shell_knows_is_said():
    Path("x.sh").write_text('day=$(date +%m%d)\nrlrun train --resume first a="x-$day" \\\n  b=1\n')
    (command,) = commands(Path("x.sh"), ENVIRONMENT)
    assert command.request.texts == ["a=x-unknown", "b=1"]
    assert list(command.request.notes) == [
        "x.sh:2: a=x-{date +%m%d} stands here as a=x-unknown; only a running shell knows it",
        "x.sh: --resume is left out; it is not an override",
    ]


def test_options_of_a_recipe_take_no_override_with_them():
    Path("x.sh").write_text("rlrun train --dry-run ~reward.x -d --hf-token=hunter22 -- algorithm=grpo\n")
    (command,) = commands(Path("x.sh"), ENVIRONMENT)
    assert command.request.texts == ["~reward.x", "algorithm=grpo"]
    omitted = [note.removeprefix("x.sh: ").partition(" is left out")[0] for note in command.request.notes]
    assert omitted == ["--dry-run", "-d", "--hf-token"]


def test_a_folder_of_ones_own_is_taken_from_the_recipe():
    Path("x.sh").write_text('rlrun train --config-dir mine a=1 "$@"\n')
    found = run_request(["b=2"], None, "x.sh")
    assert (found.config_dir, found.texts) == (Path("mine"), ["a=1", "b=2"])
    assert run_request(["b=2"], Path("other"), "x.sh").config_dir == Path("other")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("quickstart", "quickstart: has 2 runs; use recipes/quickstart.sh#1 to #2"),
        ("quickstart#x", "quickstart#x: has no run #x; use recipes/quickstart.sh#1 to #2"),
        ("grpo-gsm8k#2", "grpo-gsm8k#2: has no run #2; use recipes/grpo-gsm8k.sh"),
        ("grpo-gsm9k.sh", "grpo-gsm9k.sh: no such recipe; did you mean grpo-gsm8k?"),
        ("empty.sh", "empty.sh: has no rlrun train; use a script with one"),
        ("bytes.sh", "bytes.sh: cannot be read ('utf-8' codec can't decode byte 0xff in position 0:"
                     " invalid start byte); use a shell script"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be_meant_is_named(name, line):
    Path("empty.sh").write_text("echo\n")
    Path("bytes.sh").write_bytes(b"\xff")
    with pytest.raises(Problems) as caught:
        one(name)
    assert caught.value.lines == [line]


def test_words_that_a_recipe_would_drop_are_refused():
    Path("x.sh").write_text("rlrun train a=1\n")
    with pytest.raises(Problems) as caught:
        run_request(["seed=1"], None, "x.sh")
    assert caught.value.lines == ["x.sh: passes no overrides on, got 'seed=1'; add \"$@\" at its end"]


def test_the_second_run_of_the_quickstart():
    found = one("quickstart#2")
    assert found.name == "recipes/quickstart.sh#2"
    assert type(resolve(found.request.texts).algorithm).__name__ == "GRPO"
    assert "quickstart" in known()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("set -u\nrlrun train x=$ABSENT", "x.sh:2: ABSENT is not set, and set -u ends the script there"),
        ("#" * (2**20 + 1), "has more than 1,048,576 bytes"),
    ],
    ids=["unset", "long"],
)
def test_a_script_that_cannot_be_read_is_named(text: str, reason: str) -> None:
    Path("x.sh").write_text(text)
    with pytest.raises(Problems) as caught:
        commands(Path("x.sh"), {})
    assert reason in caught.value.lines[0]


def test_what_is_no_script_is_named(tmp_path: Path) -> None:
    """Reading a pipe would wait without end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(Problems, match="not a file"):
            commands(path)
    with pytest.raises(Problems, match=r"has no run #999.*use recipes"):
        one("quickstart#" + "9" * 5000)
