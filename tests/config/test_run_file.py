"""A run in a YAML file: by hand, and as `plan --yaml` and spec.yaml have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config.recipe import run_request
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


def of(*words: str, recipe: str | None = None) -> RunSpec:
    by = run_request(words, None, recipe)
    return resolve(by.texts, by.config_dir)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(HAND)
    return tmp_path


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


@pytest.mark.parametrize(
    ("text", "line"),
    [(None, "run.yaml: no such file; there is none yet"), ("[1]", "run.yaml: holds no settings"),
     ("a: [", "run.yaml:2: cannot be read: while parsing a flow node"),
     ("a:\n\tb: 1", "run.yaml:2: cannot be read: while scanning for the next token found character that cannot start"
      " any token; indent with spaces, as YAML takes no tabs"),
     ("optim:\n  lr: 1\nseed: 2\noptim:\n  lr: 2", "run.yaml:4: optim is set twice, first in line 1; set it once")],
)  # fmt: skip
def test_a_file_that_holds_no_run(text: str | None, line: str) -> None:
    Path("run.yaml").unlink() if text is None else Path("run.yaml").write_text(text)
    with pytest.raises(Problems) as problems:
        run_request(["run.yaml"])
    assert problems.value.lines[0].startswith(line)


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
