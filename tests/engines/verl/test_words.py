"""verl's arguments of a run, by hand: each value with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config.resolve import resolve
from launcher.core.overrides import key_of
from launcher.engines.verl import words
from launcher.engines.verl.config.compose import compose

BASE = ["model=Qwen/Qwen3-0.6B", "data=gsm8k", "engine=verl", "hardware.n_gpus_per_node=2"]
ACTOR, ROLLOUT, LORA = words.ACTOR, words.ROLLOUT, "actor_rollout_ref.model.lora"
MEGATRON_LORA = ("engine.strategy=megatron", "model.lora_rank=8", "model.lora_alpha=16")


def emitted(*typed: str) -> dict[str, str]:
    run = resolve([*BASE, *typed])
    made = words.arguments(run, run.engine, Path("/runs/a"))  # type: ignore[arg-type]
    return {key_of(word): word.partition("=")[2] for word in made}


VALUES: list[tuple[list[str], dict[str, str | None]]] = [
    (["algorithm=grpo"], {
        "algorithm.adv_estimator": "grpo",
        f"{ACTOR}.clip_ratio_c": "1000000000.0",  # the paper has no dual clip
        f"{ACTOR}.use_kl_loss": "false",  # no reference model without a coefficient
        "trainer.save_freq": str(words.AT_THE_END),  # for verl, -1 is never
        "trainer.resume_mode": "disable",
    }),
    (["algorithm=grpo", "algorithm.kl_loss_coef=0.01", "trainer.total_training_steps=7", "reward=auto",
      "trainer.max_tokens_per_gpu=9000", "sampler.val_temperature=0.6", f'engine.extra=["{ACTOR}.clip_ratio_c=3.0"]'], {
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        "trainer.total_epochs": "7",  # it ends with these, too
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": "9000",
        f"{ROLLOUT}.val_kwargs.do_sample": "true",
        "reward.custom_reward_function.path": None,  # verl's own choice
        f"{ACTOR}.clip_ratio_c": "3.0",
    }),
    (["algorithm=dr_grpo", "reward=math"],
     {"algorithm.norm_adv_by_std_in_grpo": "false", "reward.custom_reward_function.path": str(words.BRIDGE)}),
    (["algorithm=dapo", "reward=model", "reward.path=a/b"],
     {"algorithm.filter_groups.metric": "reward", "reward.reward_model.model_path": "a/b"}),
    (["algorithm=dapo", "algorithm.overlong_buffer_len=64"], {"algorithm.filter_groups.metric": "acc"}),
    (["algorithm=ppo", "algorithm.kl_penalty=k2", "model.lora_rank=8", "trainer.max_tokens_per_gpu=4096"], {
        "algorithm.use_kl_in_reward": "true",
        "algorithm.kl_penalty": "mse",
        "critic.model.lora_rank": None,  # all of the critic is trained
        "critic.ppo_infer_max_token_len_per_gpu": "4096",
    }),
    (["algorithm=grpo", *MEGATRON_LORA], {
        "model_engine": "megatron",
        f"{LORA}.rank": "8",  # it reads no lora_rank
        f"{LORA}.target_modules": None,  # its own default
        "actor_rollout_ref.model.lora_rank": None,
    }),
    (["algorithm=grpo", *MEGATRON_LORA, "model.target_modules=[a]"], {f"{LORA}.target_modules": "[a]"}),
    (["algorithm=sft", *MEGATRON_LORA], {"model.lora.rank": "8", "data.max_length": "1536", f"{ROLLOUT}.name": None}),
    # PEFT takes a text for a regular expression of whole names
    (["algorithm=sft", "model.lora_rank=8", "model.target_modules=q_proj"], {"model.target_modules": "[q_proj]"}),
    (["algorithm=sft", "model.lora_rank=8"], {"model.target_modules": "all-linear"}),
    (["algorithm=sft", "model.lora_rank=8", "model.target_modules=['.*q_proj']"],
     {"model.target_modules": '".*q_proj"'}),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "values"), VALUES, ids=[" ".join(typed)[:60] for typed, _ in VALUES])
def test_values(typed: list[str], values: dict[str, str | None]) -> None:
    found = emitted(*typed)
    assert {key: found.get(key) for key in values} == values


@pytest.mark.parametrize(
    ("algorithm", "strategy"),
    [("sft", "fsdp"), ("dapo", "fsdp"), ("gspo", "fsdp"), ("ppo", "fsdp2"), ("ppo", "megatron"), ("sft", "megatron")],
)
def test_verl_composes_what_is_emitted(algorithm: str, strategy: str) -> None:
    run = resolve([*BASE, f"algorithm={algorithm}", f"engine.strategy={strategy}"])
    made = words.arguments(run, run.engine, Path("/runs/a"))  # type: ignore[arg-type]
    found = compose(made, "ppo" if run.algorithm.sampled else "sft")
    assert not found.problems and not found.notes
