"""A recipe is read as the shell would read it, without a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config.recipe import commands, folder, known, one, run_request
from launcher.config.resolve import resolve
from launcher.core.problems import Problems

NOTE = f"#!{sys.executable}\nimport sys, json\nprint(json.dumps(sys.argv[1:]), file=open('words', 'a'))\n"
ENVIRONMENT = {"NAME": "first", "HOME": "/nowhere", "TWO": "seed=1 sampler.n=3"}


def by_bash(script: Path, where: Path) -> list[list[str]]:
    """What bash gives to `rlrun train`, command by command."""
    program = where / "bin" / "rlrun"
    program.parent.mkdir()
    program.write_text(NOTE)
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", script], cwd=where, env={**ENVIRONMENT, "PATH": path}, check=True, stdout=subprocess.DEVNULL
    )
    return [json.loads(line)[1:] for line in (where / "words").read_text().splitlines()]


SCRIPTS = {
    "continued": "rlrun train a=1 \\\n  b=2 \\\n  c=3\n",
    "quotes": "rlrun train 'a=[1,2]' \"b=x y\" c='$NAME' d=\"e\"'f'g \"h=\\$NAME\" i=\\$NAME\n",
    "variables": 'x=1\ny="${x}2"\nexport z=$y\nrlrun train a=$x b="$y" c=${z} d=$NAME-${NAME}\n',
    "defaults": 'x=${NAME:-no}\ny=${ABSENT:-a b}\nz=${ABSENT-${x}}\nrlrun train a=$x b="$y" c=$z d=${NAME:-no}\n',
    "split": 'rlrun train $TWO "a=$TWO"\n',  # unquoted, a variable with a blank is two words
    "comments": "# rlrun train no=1\nrlrun train a=b#c d=1 # e=1\n",
    "several": "rlrun train a=1 && rlrun train a=2; rlrun train a=3 | cat\n",
    "more than words": "A=1 rlrun train a=1 > log 2>&1\nexec rlrun train b=2\n",
    "other programs": "echo rlrun; rlrun train a=1\n",
    "single quote in double": "rlrun train \"a='b'\" 'c=\"d\"'\n",
    "array of none": "set -euo pipefail\nif true; then\n  rlrun train a=1\nfi\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_that_bash_gives(name, tmp_path):
    script = tmp_path / "x.sh"
    script.write_text(SCRIPTS[name])
    assert [command.request.texts for command in commands(script, ENVIRONMENT)] == by_bash(script, tmp_path)


@pytest.mark.parametrize("path", sorted(folder().glob("*.sh")), ids=lambda path: path.stem)
def test_our_recipes_are_read_as_bash_reads_them(path, tmp_path):
    found = commands(path, ENVIRONMENT)
    assert [command.request.texts for command in found] == by_bash(path, tmp_path)
    assert all(command.passes_on for command in found)


def test_each_word_has_its_line():
    lines = (folder() / "grpo-gsm8k.sh").read_text().splitlines()
    (command,) = commands(folder() / "grpo-gsm8k.sh")
    for word in command.request.overrides:
        path, _, number = word.where.rpartition(":")
        assert path == "recipes/grpo-gsm8k.sh"
        assert word.text in lines[int(number) - 1]


@pytest.mark.parametrize(
    ("text", "words", "notes"),
    [
        # a value that only the shell knows keeps a place, by its name
        ('day=$(date +%m%d)\nrlrun train a="x-$day"\n', ["a=x-day"],
         ["x.sh:2: a=x-$day stands here as a=x-day; only a running shell knows $(date +%m%d)"]),
        ("rlrun train a=$NOBODY\n", ["a=NOBODY"],
         ["x.sh:1: a=$NOBODY stands here as a=NOBODY; only a running shell knows $NOBODY"]),
        ("rlrun train a=`date`\n", ["a=unknown"],
         ["x.sh:1: a=`date` stands here as a=unknown; only a running shell knows `date`"]),
        ("rlrun train a=${NAME%%x} b=1\n", ["a=unknown", "b=1"],
         ["x.sh:1: a=${NAME%%x} stands here as a=unknown; only a running shell knows ${NAME%%x}"]),
        # whole words that only the shell knows are left out
        ('rlrun train a=1 "${more[@]}"\n', ["a=1"],
         ["x.sh:1: ${more[@]} is left out; only a running shell knows ${more[@]}"]),
        ("for seed in 0 1; do\n  rlrun train seed=$seed\ndone\n", ["seed=seed"],
         ["x.sh:2: stands in a loop or a condition",
          "x.sh:2: seed=$seed stands here as seed=seed; only a running shell knows what a loop goes through"]),
        ("rlrun train --resume first seed=1\n", ["seed=1"],
         ["x.sh: --resume first is left out; it is not an override"]),
    ],
)  # fmt: skip
def test_what_only_a_shell_knows_is_said(text, words, notes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.sh").write_text(text)
    (command,) = commands(Path("x.sh"), ENVIRONMENT)
    assert command.request.texts == words
    assert list(command.request.notes) == notes


def test_the_environment_is_named_where_a_word_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.sh").write_text("rlrun train a=${NAME:-no}\n")
    (command,) = commands(Path("x.sh"), ENVIRONMENT)
    assert command.request.overrides[0].where == "x.sh:1, environment NAME"


def test_a_folder_of_ones_own_is_taken_from_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.sh").write_text('rlrun train --config-dir mine a=1 "$@"\n')
    assert run_request(["b=2"], None, "x.sh").config_dir == Path("mine")
    assert run_request(["b=2"], Path("other"), "x.sh").config_dir == Path("other")
    assert run_request(["b=2"], None, "x.sh").texts == ["a=1", "b=2"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("quickstart", "quickstart: has 2 runs; use recipes/quickstart.sh#1 to #2"),
        ("quickstart#3", "quickstart#3: has no run #3; use recipes/quickstart.sh#1 to #2"),
        ("quickstart#x", "quickstart#x: has no run #x; use recipes/quickstart.sh#1 to #2"),
        ("grpo-gsm8k#2", "grpo-gsm8k#2: has no run #2; use recipes/grpo-gsm8k.sh"),
        ("grpo-gsm9k.sh", "grpo-gsm9k.sh: no such recipe; did you mean grpo-gsm8k?"),
        ("empty.sh", "empty.sh: has no rlrun train; use a script with one"),
        ("bytes.sh", "bytes.sh: cannot be read ('utf-8' codec can't decode byte 0xff in position 0:"
                     " invalid start byte); use a shell script"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be_meant_is_named(name, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty.sh").write_text("echo\n")
    Path("bytes.sh").write_bytes(b"\xff")
    with pytest.raises(Problems) as caught:
        one(name)
    assert caught.value.lines == [line]


def test_words_that_a_recipe_would_drop_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.sh").write_text("rlrun train a=1\n")
    with pytest.raises(Problems) as caught:
        run_request(["seed=1"], None, "x.sh")
    assert caught.value.lines == ["x.sh: passes no overrides on, got 'seed=1'; add \"$@\" at its end"]


@pytest.mark.parametrize(
    "text", ["rlrun train 'a", 'rlrun train "a', "rlrun train $(", "rlrun train ${", "\\", "$", "`"]
)
def test_a_script_that_breaks_off_is_read_to_its_end(text, tmp_path):
    """Nothing here may hang or fall over: bash is the one to complain."""
    script = tmp_path / "x.sh"
    script.write_text(text)
    assert len(commands(script)) <= 1


def test_the_second_run_of_the_quickstart():
    found = one("quickstart#2")
    assert found.name == "recipes/quickstart.sh#2"
    assert type(resolve(found.request.texts).algorithm).__name__ == "GRPO"
    assert "quickstart" in known()


DOUBLED = "a0=xx\n" + "".join(f"a{n}=$a{n - 1}$a{n - 1}\n" for n in range(1, 40)) + "rlrun train x=$a39\n"
UNKNOWN = "a0=$X\na1=$Y\n" + "".join(f"a{n}=$a{n - 1}$a{n - 2}\n" for n in range(2, 40))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DOUBLED, "x.sh:15: a value has more than 16,384 characters"),
        (UNKNOWN, "a value has more than 16,384 characters"),  # what stays unknown adds up, too
        ("rlrun train x=" + "${a:-" * 5000, "x.sh:1: defaults stand more than 64 deep"),
        ("#" * (2**20 + 1), "has more than 1,048,576 bytes"),
    ],
    ids=["doubled", "unknown", "deep", "long"],
)
def test_a_script_beyond_bounds_is_named(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text(text)
    with pytest.raises(Problems) as caught:
        commands(tmp_path / "x.sh", {})
    assert reason in caught.value.lines[0]


def test_what_is_no_script_is_named(tmp_path: Path) -> None:
    """Reading a pipe would wait without end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(Problems, match="not a file"):
            commands(path)
    with pytest.raises(Problems, match=r"has no run #999.*use recipes"):
        one("quickstart#" + "9" * 5000)
