"""What people type beside Hydra's grammar: what is clear works, a slip is answered with what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hypothesis import given
from hypothesis import strategies as st

from launcher.config import compose
from launcher.config.explain import build
from launcher.config.nodes import flat
from launcher.config.origins import origins_of
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
    (["model=first"], {"model.path": "runs/p/first"}),
    (["data=train.jsonl"], {"data.train_files": ["train.jsonl"]}),
    (["data=rows/*.jsonl"], {"data.train_files": ["rows/*.jsonl"]}),
    (["data=[train.jsonl,rows/valid.jsonl]"], {"data.train_files": ["train.jsonl", "rows/valid.jsonl"]}),
    (["data=train.jsonl,rows/valid.jsonl"], {"data.train_files": ["train.jsonl", "rows/valid.jsonl"]}),
    (["data=rows"], {"data.train_files": ["rows"]}),  # preflight says that it is a folder
    (["data=some/rows"], {"data.repo": "some/rows"}),
    (["reward=my.py:grade"], {"reward.path": "my.py", "reward.name": "grade"}),
    (["reward=http://127.0.0.1:1/score"], {"reward.url": "http://127.0.0.1:1/score"}),
    (["reward=org/judge"], {"reward._target_": "launcher.rewards.model.RewardModel", "reward.path": "org/judge"}),
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
    (["model=hf", "model.path=“models/m”"],
     "model.path: got '“models/m”', with non-ASCII characters; use model.path=models/m"),
    (["optim.lr=0,001"], "optim.lr: got '0,001', with a comma in a number; use optim.lr=0.001"),
    (["optim.betas=(0.9,0.95)"],
     "optim.betas: '(0.9,0.95)' has round brackets, and a list has square ones; use 'optim.betas=[0.9,0.95]'"),
    (["seed:4"], "seed: 'seed:4' has a colon; use seed=4"),
    (["data=[reverse,gsm8k]"], "data: ['reverse', 'gsm8k'] is not a choice; use one choice: data=reverse"),
    (["grpo"], "algorithm: got 'grpo' alone; use algorithm=grpo"),
    (["seed=${sampler.nope}"], "seed: '${sampler.nope}' refers to what has no value; write the value itself,"
     " or use double quotes for a shell's variable"),
    (['optim={"lr": 1e-4}'], """optim: '{"lr": 1e-4}' has quotes around names; use 'optim={lr: 1e-4}'"""),
    (["data.train_files=[a,b"],
     "data.train_files: '[a,b' has a bracket that is not closed; use 'data.train_files=[a,b]'"),
    (["optim.lr:=1e-4"], "'optim.lr:=1e-4': cannot be read; use key=value"),
    (["trainer.total_training_steps=all"], "trainer.total_training_steps: got 'all'; use a whole number or null"),
    (["model.dtype=bf16"], "model.dtype: got 'bf16'; use model.dtype=bfloat16"),
    (["model=https://huggingface.co/org/x/tree/main"],
     "model: no choice 'https://huggingface.co/org/x/tree/main'; use model=org/x"),
    (["data=hf://datasets/org/x"], "data: no choice 'hf://datasets/org/x'; use data=org/x"),
    (["model=huggingface.co/org/x"], "model: no choice 'huggingface.co/org/x'; use model=org/x"),
    (["model=https://user:pw@hf.co/org/x"], "model: no choice 'https://[secret]@hf.co/org/x'; use model=org/x"),
    (["data=train.jsonl,gsm8k"],
     "data: 'data=train.jsonl,gsm8k' is a sweep; use -m, or one value"),
    (["data=https://host/rows.jsonl"],
     "data: no choice 'https://host/rows.jsonl'; it may be email_search, enron, files, full-hh-rlhf, gsm8k, hub,"
     " math, reverse, ultrafeedback, verifiers"),
    (["model=org/x,org/y"], "model: 'model=org/x,org/y' is a sweep; use -m, or one value"),
    (["optim.beta=[0.9,0.95]"],
     "optim.beta: Optim has no setting 'beta'; did you mean 'optim.betas=[0.9,0.95]'?"),
    (["model=qwen2.5-7b"], "model: no choice 'qwen2.5-7b'; did you mean model=qwen2.5-7b-instruct?"),
    (["sampler.seed=5"], "sampler.seed: TorchSampler has no setting 'seed'; use seed=5"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "line"), SLIPS, ids=[ascii(" ".join(typed)) for typed, _ in SLIPS])
def test_a_slip_is_one_line_with_what_to_type(typed: list[str], line: str) -> None:
    assert found(*typed) == [line]


@pytest.mark.parametrize(
    ("text", "number"),
    [("0,001", "0.001"), ("1,024", "1024"), ("1 000", "1000"), ("10k", "10000"), ("5%", "0.05"),
     ("−1", "-1"), ("1e-4;", "1e-4"), ("abc", ""), ("1.2.3", ""), ("1,2,3", ""), ("", "")],
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
    resolved = try_resolve(words_of("model=some/model", "trainer.run_root=~/x"))
    assert resolved.run
    found = origins_of(resolved.run, resolved)
    assert str(found["model"]) == str(found["model.path"]) == "command line: model=some/model"
    assert str(found["trainer.run_root"]) == "command line: trainer.run_root=~/x"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.from_regex(r"[a-z]+", fullmatch=True), inner),
    max_leaves=5,
)


@given(values)
def test_values_come_back_as_they_were_given(value: object) -> None:
    parsed = OverridesParser.create().parse_override(f"x={literal(value)}")
    assert _plain(parsed.value()) == value


def _plain(value: Any) -> Any:
    """Without Hydra's quoted strings."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def test_numbers_of_numpy_are_typed_as_numbers() -> None:
    assert literal(np.float64(1e-4)) == "0.0001"


def test_a_file_beside_is_an_argument() -> None:
    Path("models/small").mkdir(parents=True)
    (line,) = try_resolve(["algorithm=sft", "model=hf", "model.path=models/smal", "data=reverse"]).run.model.problems()  # type: ignore[union-attr]
    assert str(line).endswith("did you mean model.path=models/small?")


def test_a_name_too_long_for_a_file_is_no_traceback() -> None:
    for word in ("x" * 5_000, f"model={'x' * 5_000}", f"data={'x' * 5_000}"):
        assert found(word)


def test_one_word_at_fault_among_many_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    count, composed = 0, compose._composed

    def counted(*run: Any) -> compose.Composed:
        nonlocal count
        count += 1
        return composed(*run)

    monkeypatch.setattr(compose, "_composed", counted)
    lines = found(*(f"reward.kwargs.a{number}=1" for number in range(64)), "~optim.clip_grad", "reward=python")
    assert any(line.startswith("optim.clip_grad: is set by no file") for line in lines) and count < 32


def test_python_s_none_is_null() -> None:
    run = resolve(words_of("trainer.total_training_steps=None"))
    assert run.trainer.total_training_steps is None
