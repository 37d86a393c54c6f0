"""Mistakes of all kinds in one command: each is named, whatever the others are."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.preflight.plan import plan

BASE = {"algorithm": "grpo", "model": "tiny", "data": "reverse", "sampler.n": "4"}
DRAWS = 6


@dataclass(frozen=True)
class Mistake:
    words: tuple[str, ...]
    named: str
    """What the line about it begins with."""
    slot: str
    """Of mistakes in one slot one is drawn: the others would be about the same setting or choice."""
    without: str = ""
    """An argument that is left out for it."""


MISTAKES = [
    # names of other projects, and with dashes
    Mistake(("num_train_epochs=3",), "num_train_epochs: is Hugging Face's name; use trainer.total_epochs=3", "epochs"),
    Mistake(("actor_rollout_ref.model.use_liger=true",), "actor_rollout_ref.model.use_liger: is verl's", "liger"),
    Mistake(("--learning_rate", "5e-6"), "--learning_rate: is Hugging Face's name; use optim.lr=5e-6", "lr"),
    Mistake(("algorithm.kl_ctrl.kl_coef=0.1",), "algorithm.kl_ctrl.kl_coef: is verl's name", "kl"),
    Mistake(("report_to=wandb",), "report_to: is Hugging Face's name", "report"),
    # names that are misspelt or have the wrong group
    Mistake(("trainer.sav_freq=1",), "trainer.sav_freq: Trainer has no setting", "save"),
    Mistake(("sampler.temprature=1",), "sampler.temprature: TorchSampler has no setting", "temp"),
    Mistake(("trainer.lr=1e-3",), "trainer.lr: Trainer has no setting 'lr'; use optim.lr=1e-3", "lr"),
    Mistake(("grouq=1",), "grouq: no group or setting", "group"),
    # what cannot be read
    Mistake(("trainer.project_name=[a",), "trainer.project_name: '[a' has a bracket that is not closed", "project"),
    Mistake(("nonsense",), "'nonsense': names no setting", "nonsense"),
    # bad values
    Mistake(("optim.lr=abc",), "optim.lr: got 'abc'; use a number", "lr"),
    Mistake(("optim.betas=[0.9,2]",), "optim.betas: got 2 as item 2", "betas"),
    Mistake(("trainer.keep_last=0",), "trainer.keep_last: got 0", "keep"),
    Mistake(("seed=1.5",), "seed: got 1.5; use a whole number", "seed"),
    Mistake(("sampler.n=four",), "sampler.n: got 'four'", "n", "sampler.n"),
    Mistake(("data.train_batch_size=0",), "data.train_batch_size: got 0", "batch"),
    Mistake(("sampler.top_k=0",), "sampler.top_k: 0 leaves", "top_k"),
    Mistake(("sampler.val_n=2",), "sampler.val_n: is 2, and sampler.val_temperature 0", "val_n"),
    Mistake(("model.hidden_size=65",), "model: hidden_size 65 does not split", "model"),
    # choices
    Mistake(("reward=exakt",), "reward: no choice 'exakt'; did you mean reward=exact?", "reward"),
    Mistake(("engine=fsdp",), "engine: no choice 'fsdp'; use engine=torch engine.strategy=fsdp2", "engine"),
    Mistake(("cluster=k8s",), "cluster: no choice 'k8s'", "cluster"),
    Mistake(("algorithm=gropo",), "algorithm: no choice 'gropo'; did you mean algor", "algorithm", "algorithm"),
    Mistake(("reward=code", "reward=math"), "reward: chosen twice", "reward"),
    # missing
    Mistake((), "model: not chosen", "model", "model"),
    Mistake(("reward=length",), "reward.high: has no value", "reward"),
    Mistake(("sampler.n=1",), "sampler.n: GRPO compares at least 2 answers", "n", "sampler.n"),
    # conflicts
    Mistake(("trainer.critic_warmup=3",), "trainer.critic_warmup: GRPO has no critic", "critic"),
    Mistake(("hardware.nnodes=2",), "hardware.nnodes: cluster local is one machine", "cluster"),
    Mistake(("data.max_response_length=5000",), "data.max_response_length: prompt and answer may take", "model"),
    Mistake(("trainer.best_metric=foo",), "trainer.best_metric: 'foo' is not of held-out data", "best"),
    Mistake(("trainer.ppo_mini_batch_size=5",), "trainer.ppo_mini_batch_size: 5 prompts do not divide", "batch"),
    # sweeps, and what is for config files
    Mistake(("trainer.ppo_epochs=1,2",), "trainer.ppo_epochs: 'trainer.ppo_epochs=1,2' is a sweep", "ppo_epochs"),
    Mistake(("optim.weight_decay=${nope}",), "optim.weight_decay: '${nope}' refers to what", "decay"),
    Mistake(("trainer.experiment_name=${oc.env:HOME}",), "trainer.experiment_name: ${...:...} is for config", "name"),
    Mistake(("hydra.run.dir=x",), "hydra.run.dir: Hydra's own settings", "hydra"),
    Mistake(("~optim.clip_grad",), "optim.clip_grad: is set by no file", "clip"),
    # what a plan finds
    Mistake(("trainer.run_root=note.txt",), "trainer.run_root: '", "root"),
    Mistake(("data=files", "data.train_files=gone.jsonl"), "data.train_files: gone.jsonl is not there", "data", "data"),
    Mistake(("model=hf", "model.path=empty"), "model.path: 'empty' holds no config.json", "model", "model"),
    Mistake(("reward=python", "reward.path=gone.py"), "reward.path: ", "reward"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("note.txt").write_text("")
    Path("empty").mkdir()


def lines(mistakes: list[Mistake]) -> list[str]:
    """What a plan says is wrong."""
    without = {mistake.without for mistake in mistakes}
    words = [f"{key}={value}" for key, value in BASE.items() if key not in without]
    found = plan([*words, *(word for mistake in mistakes for word in mistake.words)])
    return [result.line for result in found.results if result.level == "FAIL"]


def drawn(seed: int, count: int) -> list[Mistake]:
    mistakes: dict[str, Mistake] = {}
    for mistake in random.Random(seed).sample(MISTAKES, len(MISTAKES)):
        mistakes.setdefault(mistake.slot, mistake)
    return list(mistakes.values())[:count]


@pytest.mark.parametrize("seed", range(DRAWS))
def test_five_mistakes_are_five_lines(seed: int) -> None:
    mistakes = drawn(seed, 5)
    found = lines(mistakes)
    for mistake in mistakes:
        assert any(line.startswith(mistake.named) for line in found), (mistake.named, found)
    assert len(found) == 5, found


def test_all_at_once() -> None:
    mistakes = drawn(1, len(MISTAKES))
    found = lines(mistakes)
    assert [mistake.named for mistake in mistakes if not any(line.startswith(mistake.named) for line in found)] == []


def test_what_is_fitted_is_no_second_mistake() -> None:
    """A batch that nobody gave fits few rows beside a wrong value, too."""
    rows = [{"prompt": f"{number}+1=?", "ground_truth": str(number + 1)} for number in range(16)]
    Path("few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = plan(["algorithm=grpo", "model=tiny", "data=few.jsonl", "reward=exact", "optim.lr=0"])
    assert [result.subject for result in found.results if result.level == "FAIL"] == ["optim.lr"]


def test_values_below_a_misspelt_choice_are_not_missed() -> None:
    found = plan(["algorithm=grpo", "model=tiny", "data=reverse", "sampler=vlm", "sampler.n=4"])
    assert not [result.line for result in found.results if result.subject == "sampler.n"]
