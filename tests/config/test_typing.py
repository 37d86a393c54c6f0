"""Odd but clear ways of typing: taken as they are meant, or answered with what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.config import compose
from launcher.config.arguments import read_arguments
from launcher.config.compose import choices
from launcher.config.request import SourcedOverride
from launcher.config.resolve import try_resolve
from launcher.data.formats import required
from launcher.data.rows import UnfitRow

GRPO = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"]


def lines(*words: str) -> list[str]:
    typed = {word.partition("=")[0] for word in words}
    return [
        str(each)
        for each in try_resolve([*(word for word in GRPO if word.split("=")[0] not in typed), *words]).problems
    ]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["optim[lr]=1e-4"], "use optim.lr=1e-4"),
        (["[optim.lr=1e-4]"], "use optim.lr=1e-4"),
        (["optim.lr==1e-4"], "use optim.lr=1e-4"),
        (["optim.lr:=1e-4"], "use optim.lr=1e-4"),
        (["lr:", "1e-4"], "use optim.lr=1e-4"),
        (["optim:", "{lr:", "1e-4}"], "use 'optim={lr: 1e-4}'"),
        (['optim={"lr": 1e-4}'], "use 'optim={lr: 1e-4}'"),
        (["--no-data.shuffle"], "use data.shuffle=false"),
        (["cluster.stall_grace_s=10min"], "use cluster.stall_grace_s=600"),
        (["hardware.memory_gb=24GiB"], "use hardware.memory_gb=24"),
        (["trainer.total_training_steps=all"], "use a whole number or null"),
        (["optim.betas=[0.9,2]"], "got 2 as item 2; use a number < 1.0"),
        (["model.dtype=bf16"], "use model.dtype=bfloat16"),
    ],
)
def test_the_one_line_says_what_to_type(words: list[str], fix: str) -> None:
    (line,) = lines(*words)
    assert line.endswith(fix)


@pytest.mark.parametrize(
    ("word", "taken"),
    [
        ("model=https://huggingface.co/org/x/tree/main", ["model.path=org/x"]),
        ("model=org/x@v2", ["model.path=org/x", "model.revision=v2"]),
        ("model=file:///models/x", ["model.path=/models/x"]),
        ("data=hf://datasets/org/x", ["data.repo=org/x"]),
        (
            "data=https://huggingface.co/datasets/org/x/blob/v2/a/train.parquet",
            ["data.repo=org/x", "data.revision=v2", "data.train_files=a/train.parquet"],
        ),
        ("data.train_files=file:///rows/a.jsonl", ["data.train_files=/rows/a.jsonl"]),
        ("trainer.total_training_steps=None", ["trainer.total_training_steps=null"]),
    ],
)
def test_addresses_are_what_they_name(word: str, taken: list[str]) -> None:
    arguments = read_arguments([SourcedOverride(word, word)], choices())
    assert [each.input_line for each in arguments.values] == taken and not arguments.problems


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("optim.rl=1e-4", "did you mean optim.lr=1e-4?"),
        ("optim.beta=[0.9,0.95]", "did you mean 'optim.betas=[0.9,0.95]'?"),
        ("sampler.temp=0.9", "did you mean sampler.temperature=0.9?"),
        ("model=qwen2.5-7b", "did you mean model=qwen2.5-7b-instruct?"),
        ("sampler.kv_cache_gb=much", "sampler.kv_cache_gb is a setting of sampler=vllm, and takes a number"),
    ],
)
def test_a_misspelt_name_leads_to_the_nearest(word: str, fix: str) -> None:
    assert lines(word)[0].endswith(fix)


def test_a_file_beside_is_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models/small").mkdir(parents=True)
    (line,) = try_resolve(["algorithm=sft", "model=hf", "model.path=models/smal", "data=reverse"]).run.model.problems()  # type: ignore[union-attr]
    assert str(line).endswith("did you mean model.path=models/small?")


def test_a_name_too_long_for_a_file_is_no_traceback() -> None:
    for word in ("x" * 5_000, f"model={'x' * 5_000}", f"data={'x' * 5_000}"):
        assert lines(word)


def test_one_word_at_fault_among_many_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    count, composed = 0, compose._composed

    def counted(*run: Any) -> compose.Composed:
        nonlocal count
        count += 1
        return composed(*run)

    monkeypatch.setattr(compose, "_composed", counted)
    found = lines(*(f"reward.kwargs.a{number}=1" for number in range(64)), "~optim.clip_grad", "reward=python")
    assert any(line.startswith("optim.clip_grad: is set by no file") for line in found) and count < 32


def test_a_key_that_rows_do_not_have_is_not_suggested_again() -> None:
    with pytest.raises(UnfitRow, match=r"promt is missing; it has prompt; did you mean data.prompt_key=prompt\?"):
        required({"prompt": "1+1?"}, "promt", prompt_key="promt")
