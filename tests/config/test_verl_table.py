"""The table of verl's keys, read in both directions: what is written of a run is read as the same run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from launcher.config.names import verl
from launcher.config.names.conversions import RunContext, convert
from launcher.config.names.table import Translation, table
from launcher.config.resolve import resolve
from launcher.core.overrides import literal
from launcher.engines.verl import Verl, words
from launcher.engines.verl.config.defaults import load
from launcher.engines.verl.rules.settings import at
from launcher.spec.run import RunSpec

BASE = ["model=Qwen/Qwen3-0.6B", "data=gsm8k", "engine=verl", "hardware.n_gpus_per_node=2", "sampler.n=4"]
RUNS = {
    "grpo": ["algorithm.kl_loss_coef=0.02", "algorithm.kl_loss_type=k2", "sampler.val_temperature=0.7", "seed=3"],
    "dapo": ["algorithm.clip_ratio_c=10.0", "trainer.save_freq=5", "trainer.test_freq=7", "data.truncation=filter"],
    "dr_grpo": ["algorithm.loss_scale_factor=512", "optim.lr_scheduler_type=cosine", "optim.min_lr_ratio=0.1"],
    "gspo": ["sampler.top_k=20", "sampler.top_p=0.9", "optim.betas=[0.9,0.95]", "optim.lr_warmup_steps=4"],
    "ppo": ["algorithm.kl_ctrl=adaptive", "algorithm.kl_penalty=k3", "critic.optim.lr=2e-5", "algorithm.lam=0.9"],
    "sft": ["trainer.experiment_name=first", "optim.lr=3e-6", "optim.clip_grad=0.5", "data.template_args={a:1}"],
}
WRITTEN = [row for row in table().meanings if row.ppo or row.sft]


@cache
def run_of(algorithm: str) -> RunSpec:
    return resolve([*(BASE if algorithm != "sft" else BASE[:-1]), f"algorithm={algorithm}", *RUNS[algorithm]])


def test_every_row_is_of_a_setting_and_of_keys_that_there_are() -> None:
    """A setting of some algorithm, and keys of verl's config with the backend that the row is written for."""
    configs = {name: [load(name, verl_config, {}) for verl_config in names] for name, names in {
        "ppo": ("ppo_trainer", "ppo_megatron_trainer"), "sft": ("sft_trainer_engine",)}.items()}  # fmt: skip
    configs["sft"].append(load("sft", "sft_trainer_engine", {"engine": "megatron", "optim": "megatron"}))
    for row in WRITTEN:
        holders = [name for name in RUNS if not _is_missing(row.ours[0], run_of(name))]
        assert holders, row
        for name, keys in (("ppo", row.ppo), ("sft", row.sft)):
            for key in keys:
                groups = ("model_engine", "engine", "optim")
                assert key in groups or any(at(config, key, row) is not row for config in configs[name]), key


def _is_missing(setting: str, run: RunSpec) -> bool:
    try:
        words.value_of(run, setting)
    except KeyError:
        return True
    return False


@pytest.mark.parametrize("algorithm", RUNS)
def test_what_is_written_is_read_as_it_was(algorithm: str) -> None:
    run = run_of(algorithm)
    assert isinstance(run.engine, Verl)
    given = dict(word.lstrip("+").partition("=")[::2] for word in words.arguments(run, run.engine, Path("/run")))
    for row in WRITTEN:
        for key in row.ppo if run.algorithm.sampled else row.sft:
            is_read = key in row.names.get("verl", ()) and not row.unless and row.to not in ("is_on", "frequency")
            if key in given and is_read:
                value = words.value_of(run, row.ours[0])
                read = convert(row, given[key], RunContext())
                if (pattern := row.with_verl(given[key])) is not None:
                    read = pattern.replace("{}", given[key]).split()
                assert read is not None and (not read or _agrees(read, row, value)), (key, given[key], read, value)


def _agrees(read: list[str], row: Translation, value: object) -> bool:
    """Whether one of the words is the value."""
    own = next(word.partition("=")[2] for word in read if word.partition("=")[0] in row.ours).strip("'\"")
    if value is None:
        return own == "null"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(own) == value
    return own.replace(" ", "") in (str(value), literal(value).strip("'\"").replace(" ", ""))


def test_older_keys_have_an_answer_each() -> None:
    """Today's keys are none of the older ones, so that no answer leads to another answer."""
    read = verl.read()
    for program, known in read["renamed"].items():
        assert not {*known.values()} & {*known}
        assert not {*known} & {*read["gone"][program]}
    assert not {*read["unread"].values()} & {*read["unread"]}
