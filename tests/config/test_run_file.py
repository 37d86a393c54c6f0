"""Arguments of a run in a YAML file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.config.recipe import run_request
from launcher.config.resolve import resolve
from launcher.config.yaml_lines import leaves
from launcher.core.problems import Problems
from launcher.spec.run import RunSpec

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


def test_a_choice_typed_again_takes_the_place_of_the_file_s() -> None:
    Path("run.yaml").write_text(f"{HAND}data.train_batch_size: 32\nreward: gsm8k\n")
    run = of("run.yaml", "algorithm=dapo", "data=rows.jsonl")
    assert (type(run.algorithm).__name__, run.data.train_batch_size, run.sampler.n) == ("DAPO", 32, 4)


def test_texts_of_a_file_are_taken_as_they_are() -> None:
    kwargs = {"a": {"b": 'x {y} "z', "c": "a, b"}}
    Path("run.yaml").write_text(f"{HAND}reward: python\nreward.path: my.py\nreward.kwargs: {json.dumps(kwargs)}\n")
    assert of("run.yaml").reward.kwargs == kwargs  # type: ignore[attr-defined]


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
     ("algorithm: {_target_: my.Own}\nmodel: tiny", "run.yaml:1: is a run as it was resolved; use rlrun rerun RUN"),
     ("optim:\n  lr: 1\nseed: 2\noptim:\n  lr: 2", "run.yaml:4: optim is set twice, first in line 1; set it once")],
)  # fmt: skip
def test_a_file_that_holds_no_run(text: str | None, line: str) -> None:
    Path("run.yaml").unlink() if text is None else Path("run.yaml").write_text(text)
    with pytest.raises(Problems) as problems:
        run_request(["run.yaml"])
    assert problems.value.lines[0].startswith(line)
