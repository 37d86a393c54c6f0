"""Runs in files: a recipe, which is read by bash, where it can do nothing; and YAML, by hand and as `plan --yaml` and
spec.yaml have it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.config.recipe import commands, known, one, run_request
from launcher.config.resolve import resolve
from launcher.config.yaml_lines import leaves
from launcher.core.problems import Problems
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node, to_yaml

HAND = """\
algorithm: grpo
model: tiny
data: reverse
sampler: {n: 4}
optim.lr: 1e-4
optim: {betas: [0.9, 0.95]}
trainer.experiment_name: "007"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # a recipe is read in a copy of the working folder
    Path("run.yaml").write_text(HAND)
    return tmp_path


def of(*words: str, recipe: str | None = None) -> RunSpec:
    by = run_request(words, None, recipe)
    return resolve(by.texts, by.config_dir)


def test_what_only_a_shell_knows_is_said() -> None:
    Path("x.sh").write_text('day=$(date +%m%d)\nrlrun train --resume first a="x-$day" \\\n  b=1\n')
    (command,) = commands(Path("x.sh"), {})
    assert command.request.texts == ["a=x-unknown", "b=1"]
    assert list(command.request.notes) == [
        "x.sh:2: a=x-{date +%m%d} stands here as a=x-unknown; only a running shell knows it",
        "x.sh: --resume is left out; it is not an override",
    ]


def test_options_of_a_recipe_take_no_override_with_them() -> None:
    Path("x.sh").write_text("rlrun train --dry-run ~reward.x -d --hf-token=hunter22 -- algorithm=grpo\n")
    (command,) = commands(Path("x.sh"), {})
    assert command.request.texts == ["~reward.x", "algorithm=grpo"]
    omitted = [note.removeprefix("x.sh: ").partition(" is left out")[0] for note in command.request.notes]
    assert omitted == ["--dry-run", "-d", "--hf-token"]


def test_a_folder_of_ones_own_is_taken_from_the_recipe() -> None:
    Path("x.sh").write_text('rlrun train --config-dir mine a=1 "$@"\n')
    found = run_request(["b=2"], None, "x.sh")
    assert (found.config_dir, found.texts) == (Path("mine"), ["a=1", "b=2"])
    assert run_request(["b=2"], Path("other"), "x.sh").config_dir == Path("other")


NO_RUN = [
    ("quickstart", None, "quickstart: has 2 runs; use recipes/quickstart.sh#1 to #2"),
    ("quickstart#x", None, "quickstart#x: has no run #x; use recipes/quickstart.sh#1 to #2"),
    ("quickstart#" + "9" * 5000, None, f"quickstart#{'9' * 66}...: has no run #99"),
    ("grpo-gsm8k#2", None, "grpo-gsm8k#2: has no run #2; use recipes/grpo-gsm8k.sh"),
    ("grpo-gsm9k.sh", None, "grpo-gsm9k.sh: no such recipe; did you mean grpo-gsm8k?"),
    ("x.sh", b"echo\n", "x.sh: has no rlrun train; use a script with one"),
    ("x.sh", b"\xff", "x.sh: cannot be read ('utf-8' codec can't decode byte 0xff in position 0:"
                      " invalid start byte); use a shell script"),
    ("x.sh", b"set -u\nrlrun train x=$ABSENT", "x.sh:2: ABSENT is not set, and set -u ends the script there"),
    ("x.sh", b"#" * (2**20 + 1), "x.sh: cannot be read (has more than 1,048,576 bytes)"),
    ("x.sh", b"rlrun train a=1\n", "x.sh: passes no overrides on, got 'seed=1'; add \"$@\" at its end"),
    ("x.yaml", None, "x.yaml: no such file; did you mean run.yaml?"),
    ("x.yaml", b"[1]", "x.yaml: holds no settings"),
    ("x.yaml", b"a: [", "x.yaml:2: cannot be read: while parsing a flow node"),
    ("x.yaml", b"a:\n\tb: 1", "x.yaml:2: cannot be read: while scanning for the next token found character that cannot"
                              " start any token; indent with spaces, as YAML takes no tabs"),
    ("x.yaml", b"optim:\n  lr: 1\nseed: 2\noptim:\n  lr: 2",
     "x.yaml:4: optim is set twice, first in line 1; set it once"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "line"), NO_RUN, ids=[line[:60] for *_, line in NO_RUN])
def test_a_file_that_holds_no_run_is_named(name: str, text: bytes | None, line: str) -> None:
    if text is not None:
        Path(name).write_bytes(text)
    with pytest.raises(Problems) as problems:
        run_request(["seed=1"], None, name)
    (found,) = problems.value.lines
    assert found.startswith(line)


def test_what_is_no_script_is_named(tmp_path: Path) -> None:
    """Reading a pipe would wait without end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(Problems, match="not a file"):
            commands(path)


def test_the_second_run_of_the_quickstart() -> None:
    found = one("quickstart#2")
    assert found.name == "recipes/quickstart.sh#2" and "quickstart" in known()
    assert type(resolve(found.request.texts).algorithm).__name__ == "GRPO"


def test_a_file_by_hand_and_what_is_typed_after_it() -> None:
    run = of("run.yaml", "sampler.n=8")
    assert (run.sampler.n, run.optim.lr, run.optim.betas) == (8, 1e-4, (0.9, 0.95))
    assert run.trainer.experiment_name == "007"
    assert of(recipe="run.yaml") == of("run.yaml")
    assert [word.where for word in run_request(["run.yaml"]).overrides][3] == "run.yaml:4"


RUNS = [
    ["algorithm=sft", "model=tiny", "data=reverse"],
    ["algorithm=grpo", "model=qwen3-0.6b", "data=gsm8k", "reward=auto", "sampler.n=4", "hardware=h100x8"],
    ["algorithm=ppo", "model=Qwen/Qwen3-9B", "data=rows.jsonl", "critic.optim.lr=1e-3", "reward=python",
     "reward.path=my.py", "reward.kwargs={a: {b: 'x ${y} \"z\\''}}", "cluster=ray", "data.instruction='a\\nb'"],
    ["algorithm=dapo", "model=tiny", "data=reverse", "reward=weighted", "reward.parts={gsm8k: 0.5, format: 2.0}",
     "reward.parts.format.pattern='<x>'", "sampler.n=4"],
    ["algorithm=grpo", "model=tiny", "data=reverse", "reward=gsm8k_format", "sampler.n=4"],
    ["algorithm=grpo", "model=hf", "model.path=Qwen/Qwen3-0.6B", "data=gsm8k", "engine=verl",
     "hardware.n_gpus_per_node=4", "engine.extra=['trainer.balance_batch=false']"],
]  # fmt: skip


@pytest.mark.parametrize("words", RUNS, ids=lambda words: words[0])
def test_what_is_printed_is_taken_back(words: list[str]) -> None:
    run = resolve([word for word in words if "${" not in word])
    Path("spec.yaml").write_text(to_yaml(run))
    assert to_node(of("spec.yaml")) == to_node(run)
    assert of("spec.yaml", "seed=7").seed == 7


def test_a_choice_typed_again_takes_the_place_of_the_file_s() -> None:
    Path("spec.yaml").write_text(to_yaml(of("run.yaml", "data.train_batch_size=32")))
    run = of("spec.yaml", "algorithm=dapo", "data=rows.jsonl")
    assert (type(run.algorithm).__name__, run.data.train_batch_size, run.sampler.n) == ("DAPO", 32, 4)
    hardware = of("spec.yaml", "hardware=h100x8").hardware
    assert (hardware.device, hardware.n_gpus_per_node) == ("h100", 8)


def test_the_name_of_a_run_is_not_taken_from_its_folder() -> None:
    Path("spec.yaml").write_text(to_yaml(of("run.yaml")))
    assert of("spec.yaml").trainer.experiment_name == "007"
    Path("lock.json").write_text("{}")
    assert of("spec.yaml").trainer.experiment_name is None


def test_what_overrides_a_merged_key_is_no_second_one() -> None:
    first = "base: &b\n  lr: 1\nx: &x\n  <<: *b\n  lr: 2\ny: *x\n"
    Path("any.yaml").write_text(first)
    found = leaves(Path("any.yaml"))
    assert (found["base.lr"].value, found["x.lr"].value, found["y.lr"].value) == (1, 2, 2)
    Path("any.yaml").write_text(f"{first}base:\n  lr: 3\n")
    with pytest.raises(Problems, match=r"any\.yaml:7: base is set twice, first in line 1"):
        leaves(Path("any.yaml"))


UNKNOWN = [
    ("algorithm: {_target_: my.Own}\nmodel: tiny\n",
     "algorithm: no choice has the class my.Own; use --config-dir with the folder that has it"),
    ("algorithm: {eps: 1}\nmodel: {_target_: launcher.models.scratch.Scratch}\n",
     "algorithm: not chosen; it may be dapo"),
    ("algorithm: {lr: 1}\nreward: {_target_: launcher.rewards.exact.Exact, parts: {own: {_target_: my.Own}}}\n",
     "reward.parts: no choice 'own'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), UNKNOWN)
def test_a_class_that_is_unknown_or_missing_is_said_in_words(text: str, line: str) -> None:
    Path("run.yaml").write_text(f"{text}data: reverse\n")
    with pytest.raises(Problems) as problems:
        of("run.yaml")
    assert any(each.startswith(line) for each in problems.value.lines)
