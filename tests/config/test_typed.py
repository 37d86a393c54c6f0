"""What people type beside Hydra's grammar: what is clear works, a slip is answered with what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

from launcher.config.explain import build
from launcher.config.nodes import flat
from launcher.config.origins import origins
from launcher.config.request import RunRequest, SourcedOverride
from launcher.config.resolve import resolve, resolve_request, try_resolve
from launcher.config.slips import number_meant
from launcher.core.overrides import literal
from launcher.spec.stored import to_node

BASE = {"algorithm": "sft", "model": "tiny", "data": "reverse"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("train.jsonl", "rows/train-0.jsonl", "rows/train-1.jsonl", "rows/valid.jsonl", "models/m/config.json",
                 "runs/p/first/spec.yaml"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "my.py").write_text("def grade(answers):\n    return 1\n")
    return tmp_path


def words_of(*typed: str) -> list[str]:
    given = {word.partition("=")[0] for word in typed}
    return [*(f"{key}={value}" for key, value in BASE.items() if key not in given), *typed]


def found(*typed: str) -> list[str]:
    return [str(problem) for problem in try_resolve(words_of(*typed)).problems]


MEANT = [
    (["model=Qwen/Qwen3-0.6B"], {"model.path": "Qwen/Qwen3-0.6B", "model.architecture.hidden_size": 1024}),
    (["model=some/model"], {"model.path": "some/model"}),
    (["model=./models/m"], {"model.path": "./models/m"}),
    (["model=first"], {"model.path": "runs/p/first"}),
    (["data=train.jsonl"], {"data.train_files": ["train.jsonl"]}),
    (["data=rows/*.jsonl"], {"data.train_files": ["rows/*.jsonl"]}),
    (["data=[train.jsonl,rows/valid.jsonl]"], {"data.train_files": ["train.jsonl", "rows/valid.jsonl"]}),
    (["data=rows"], {"data.train_files": ["rows/train-0.jsonl", "rows/train-1.jsonl"],
                     "data.val_files": ["rows/valid.jsonl"]}),
    (["data=some/rows"], {"data.repo": "some/rows"}),
    (["reward=my.py"], {"reward.path": "my.py", "reward.name": "grade"}),
    (["reward=http://127.0.0.1:1/score"], {"reward.url": "http://127.0.0.1:1/score"}),
    (["algorithm=SFT", "model=TINY"], {"model.hidden_size": 64}),
    (["trainer.save_freq=5e2", "seed=2.0"], {"trainer.save_freq": 500, "seed": 2}),
    (["data.shuffle=off", "engine.mixed_precision=no", "model.enable_gradient_checkpointing=1"],
     {"data.shuffle": False, "engine.mixed_precision": False, "model.enable_gradient_checkpointing": True}),
    (["trainer.experiment_name=007"], {"trainer.experiment_name": "007"}),
    (["trainer.run_root=~/x"], {"trainer.run_root": "~/x"}),
    (["trainer.run_root=数据 (1)#2"], {"trainer.run_root": "数据 (1)#2"}),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "means"), MEANT, ids=[" ".join(typed) for typed, _ in MEANT])
def test_what_is_clear_works(typed: list[str], means: dict[str, object]) -> None:
    asked = RunRequest([SourcedOverride(word, word) for word in words_of(*typed)])
    found = resolve_request(asked, {"first": "runs/p/first"}.get)
    assert found.run and not found.problems
    run = flat(to_node(found.run))
    assert {name: run.get(name) for name in means} == means


SLIPS = [
    (["trainer.save_freq=–1"],
     "trainer.save_freq: got '–1', with non-ASCII characters; use trainer.save_freq=-1"),
    (["seed=８"], "seed: got '８', with non-ASCII characters; use seed=8"),
    (["model=hf", "model.path=“models/m”"],
     "model.path: got '“models/m”', with non-ASCII characters; use model.path=models/m"),
    (["optim.lr=0,001"], "optim.lr: got '0,001', with a comma in a number; use optim.lr=0.001"),
    (["optim.betas=(0.9,0.95)"],
     "optim.betas: got '(0.9,0.95)'; a list has square brackets; use 'optim.betas=[0.9,0.95]'"),
    (["seed:4"], "seed: 'seed:4' has a colon; use seed=4"),
    (["seed", "4"], "seed: 'seed 4' has a space in it; use seed=4"),
    (["data=[reverse,gsm8k]"], "data: ['reverse', 'gsm8k'] is not a choice; use one choice: data=reverse"),
    (["grpo"], "algorithm: got 'grpo' alone; use algorithm=grpo"),
    (["seed=${sampler.nope}"], "seed: '${sampler.nope}' refers to what has no value; write the value itself"),
    (["data=files", "data.train_files=rows\\valid.jsonl"],
     "data.train_files: got 'rows\\\\valid.jsonl', a path of Windows; use data.train_files=rows/valid.jsonl"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "line"), SLIPS, ids=[ascii(" ".join(typed)) for typed, _ in SLIPS])
def test_a_slip_is_one_line_with_what_to_type(typed: list[str], line: str) -> None:
    assert found(*typed) == [line]


@pytest.mark.parametrize(
    ("text", "number"),
    [("0,001", "0.001"), ("1,024", "1024"), ("1 000", "1000"), ("10k", "10000"), ("5%", "0.05"), ("10^-5", "1e-5"),
     ("2*10**-5", "2e-5"), ("−1", "-1"), ("1e-4;", "1e-4"), ("abc", ""), ("1.2.3", ""), ("1,2,3", ""), ("", "")],
)  # fmt: skip
def test_numbers_that_are_meant(text: str, number: str) -> None:
    assert number_meant(text) == number


def test_a_number_that_is_not_whole_is_not_converted() -> None:
    node = to_node(resolve(words_of()))
    node["seed"], node["trainer"]["val_before_train"] = 2.0, "yes"
    assert build(node).seed == 2
    assert found("seed=2.5", "data.shuffle=maybe") == [
        "data.shuffle: got 'maybe'; use true or false", "seed: got 2.5; use a whole number",
    ]  # fmt: skip


def test_an_argument_is_the_origin_of_all_that_it_stands_for() -> None:
    found = origins(words_of("model=some/model", "trainer.run_root=~/x"))
    assert str(found["model"]) == str(found["model.path"]) == "command line: model=some/model"
    assert str(found["trainer.run_root"]) == "command line: trainer.run_root=~/x"


@pytest.mark.parametrize(
    "value",
    [
        r"\d+ it's",
        "back\\",
        "\\'",
        '\\"',
        'say "x"',
        "before the end\\\n",
        "",
        "a=b, c",
        "null",
        "{x}",
        "${HOME}",
        None,
        True,
        3,
        1e-6,
        [0.9, 0.95],
        {"a": ["x"]},
    ],
)
def test_values_come_back_as_they_were_given(value: object) -> None:
    parsed = OverridesParser.create().parse_override(f"x={literal(value)}")
    assert parsed.value() == value or _plain(parsed.value()) == value


def _plain(value: Any) -> Any:
    """Without Hydra's quoted strings."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def test_numbers_of_numpy_are_typed_as_numbers() -> None:
    assert literal(np.float64(1e-4)) == "0.0001"
