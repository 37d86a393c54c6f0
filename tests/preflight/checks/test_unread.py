"""Settings that a run does not read are warned of; each declares when it is read, where that is not always."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from launcher.config.descriptions import fields_of, own_fields
from launcher.config.nodes import TARGET, settings_class
from launcher.config.resolve import resolve
from launcher.core.classes import locate
from launcher.core.files import conf_dir
from launcher.core.settings import ReadOnlyWith
from launcher.preflight.checks import unread
from launcher.preflight.checks.context import Context
from launcher.spec.run import RunSpec

SOMETIMES = yaml.safe_load("""
Clipped: clip_ratio_c clip_ratio_high clip_ratio_low loss_scale_factor max_log_ratio
DAPO: clip_ratio_high overlong_penalty_factor
DPO: label_smoothing length_normalised
Dataset: loss_on template_args
EmailQuestions: noise repeats
Environment: concurrency max_result_characters max_turns memory_gb on_fault refills system_prompt timeout_s
  tool_timeout_s workers
Files: prompt_key response_key
FromHub: revision source
GRPO: kl_loss_type
GSPO: clip_ratio_high clip_ratio_low
Hardware: memory_gb
Local: master_port
Model: lora_alpha target_modules
Optim: lr_decay_steps lr_power min_lr_ratio
PPO: clip_ratio_c horizon kl_ctrl kl_penalty target_kl
Reverse: n_demos noise
RunSpec: critic
Sampler: n temperature top_k top_p
Torch: strategy
Trainer: best_metric log_groups log_groups_freq micro_batch_size_per_gpu ppo_epochs ppo_mini_batch_size total_epochs
VerlSampler: enforce_eager gpu_memory_utilization max_model_len name tensor_parallel_size
VllmSampler: gpu_memory_utilization
""")
"""Of each class, the settings that some runs with that class do not read."""
SFT, GRPO = ("algorithm=sft", "model=tiny", "data=reverse"), ("algorithm=grpo", "model=tiny", "data=reverse")


def declared(cls: type) -> Iterator[tuple[str, str]]:
    """(class, setting) of each setting of `cls` and of the settings inside it that declares a `ReadOnlyWith`."""
    for owner in cls.__mro__:
        for name in own_fields(owner):
            field = fields_of(owner)[name]
            if any(isinstance(rule, ReadOnlyWith) for rule in field.metadata):
                yield owner.__name__, name
            if inner := settings_class(field.annotation):
                yield from declared(inner)


def test_settings_that_are_not_always_read_declare_when_they_are() -> None:
    classes = {RunSpec}
    for group in fields_of(RunSpec):
        for file in (conf_dir() / group).glob("*.yaml"):
            target = (yaml.safe_load(file.read_text()) or {}).get(TARGET)
            classes |= {locate(target, object)} if target else set()
    found = {pair for cls in classes for pair in declared(cls)}
    assert found == {(owner, name) for owner, names in SOMETIMES.items() for name in names.split()}


@pytest.mark.parametrize(
    ("words", "subject", "fix"),
    [
        ((*GRPO, "critic.optim.lr=1e-3"), "critic.optim.lr", "algorithm=ppo"),
        ((*GRPO, "algorithm.kl_loss_type=k2"), "algorithm.kl_loss_type", "algorithm.kl_loss_coef=0.001"),
        ((*GRPO, "data.noise=0.1"), "data.noise", "algorithm=sft"),
        ((*SFT, "sampler.n=4"), "sampler.n", "algorithm=grpo"),
        ((*SFT, "model.lora_alpha=64"), "model.lora_alpha", "model.lora_rank=32"),
        ((*SFT, "trainer.total_epochs=2", "trainer.total_training_steps=9"), "trainer.total_epochs", "null"),
    ],
    ids=lambda found: found if isinstance(found, str) else found[-1],
)
def test_what_is_not_read_is_warned_of(words: tuple[str, ...], subject: str, fix: str) -> None:
    (found,) = unread.check(Context(resolve(words), here=True))
    assert (found.level, found.subject) == ("WARN", subject)
    assert fix in found.fix and "leave it out" in found.fix


@pytest.mark.parametrize(
    "words",
    [
        (*GRPO, "algorithm.kl_loss_coef=0.04", "algorithm.kl_loss_type=k2"),
        (*GRPO, "algorithm.clip_ratio_high=0.28", "trainer.ppo_mini_batch_size=8"),
        ("algorithm=ppo", *SFT[1:], "critic.optim.lr=1e-4", "algorithm.kl_ctrl=adaptive", "algorithm.target_kl=0.2"),
        (*SFT, "model.lora_rank=8", "model.lora_alpha=64", "engine.strategy=fsdp2", "hardware.nproc_per_node=2"),
    ],
    ids=lambda words: words[-1],
)
def test_what_is_read_is_not(words: tuple[str, ...]) -> None:
    assert not list(unread.check(Context(resolve(words), here=True)))
