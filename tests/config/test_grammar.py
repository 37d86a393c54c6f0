"""Words that stand for several values, and words that set one."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.config.grammar import points, setting
from launcher.core.problems import Problems


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (["optim.lr=1e-6,5e-7", "seed=0,1"],  # the last word's values in turn first
         ["optim.lr=1e-06 seed=0", "optim.lr=1e-06 seed=1", "optim.lr=5e-07 seed=0", "optim.lr=5e-07 seed=1"]),
        (["seed=5", "seed=0,1"], ["seed=0", "seed=1"]),  # a recipe's own value is swept over by words after it
        (["seed=range(0,3)"], ["seed=0", "seed=1", "seed=2"]),  # the end is left out, as in Python
        (["optim.lr=range(0.1,0.3,0.1)"], ["optim.lr=0.1", "optim.lr=0.2"]),
        (["seed=sort(3,1,2,reverse=true)"], ["seed=3", "seed=2", "seed=1"]),
        (["+sampler.n=2,4"], ["sampler.n=2", "sampler.n=4"]),
        (["trainer.max_tokens_per_gpu=null,64"],
         ["trainer.max_tokens_per_gpu=null", "trainer.max_tokens_per_gpu=64"]),
        (["data.train_files=[a.jsonl],[b.jsonl,c.jsonl]"],
         ["data.train_files=[a.jsonl]", "data.train_files=[b.jsonl,c.jsonl]"]),
        (["data.instruction='a, b','c'"], ["data.instruction='a, b'", "data.instruction='c'"]),  # quotes stay
        (["seed=1", "data.instruction='a,b'", "reward.parts={exact:1.0,format:0.2}", "x"], [""]),  # no sweep
    ],
)  # fmt: skip
def test_each_combination_is_a_point(words: list[str], labels: list[str]) -> None:
    found = points(["model=tiny", *words])
    assert [point.label for point in found] == labels
    assert all(point.overrides[0] == "model=tiny" and len(point.overrides) == len(words) + 1 for point in found)
    assert all(" ".join(point.overrides).replace("+", "").endswith(point.label) for point in found)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["seed=0,0"], "seed: 'seed=0,0' has 0 twice; give it once"),
        (["seed=0,1", "seed=2"], "seed: is swept, and given again after that; give it once"),
        (["seed=range(0,10,0)"], "'seed=range(0,10,0)': is not a range; use range(first,end,step)"),
        (["seed=range(0,inf)"], "seed: 'seed=range(0,inf)' is more than 1,000 values; use fewer"),
        (["seed=range(3,1)"], "seed: 'seed=range(3,1)' has no values; use a range that holds a value"),
        (["seed=shuffle(range(0,1e15))"],  # said before it is made a list
         "seed: 'seed=shuffle(range(0,1e15))' has another order each time; leave shuffle out"),
        (["optim.lr=interval(0,1)"],
         "optim.lr: 'optim.lr=interval(0,1)' is no list of values; use a,b or range(a,b,step)"),
        (["algorithm=glob(*)"], "algorithm: 'algorithm=glob(*)' is no list of values; use a,b or range(a,b,step)"),
        (["seed=range(0,40)", "sampler.n=range(2,40)"],
         "-m: 1,520 points are more than 1,000; use fewer values, or several sweeps"),
        (["trainer.experiment_name=a,b"],
         "trainer.experiment_name: its runs stand side by side; use one for all"),
    ],
)  # fmt: skip
def test_a_sweep_that_cannot_be_made_is_refused(words: list[str], line: str) -> None:
    with pytest.raises(Problems) as found:
        points(words)
    assert len(found.value.lines) == 1 and found.value.lines[0].startswith(line)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(Problems) as found:
        points(["seed=0,0", "optim.lr=interval(0,1)"])
    assert len(found.value.lines) == 2


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("optim.lr=1e-6", "optim.lr", 1e-6),  # which YAML would take for text
        ("+sampler.n=8", "sampler.n", 8),
        ("trainer.max_tokens_per_gpu=null", "trainer.max_tokens_per_gpu", None),
        ("data.train_files=[a.jsonl,b.jsonl]", "data.train_files", ["a.jsonl", "b.jsonl"]),
    ],
)
def test_a_word_that_sets_a_value(word: str, key: str, value: Any) -> None:
    assert setting(word) == (key, value)


@pytest.mark.parametrize(
    "word",
    ["x", f"optim.betas={'[' * 700}{']' * 700}", "~optim.lr", "seed=0,1", "reward@x=exact",
     "sampler.n=${oc.env:HOME}", "\ud800=1", "algorithm._target_=os.system", "reward.parts.x={_target_: os.system}"],
)  # fmt: skip
def test_a_word_that_does_anything_else_is_refused(word: str) -> None:
    with pytest.raises(Problems):
        setting(word)
