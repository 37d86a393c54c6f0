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


def emitted(*typed: str, start: int = 0) -> dict[str, str]:
    run = resolve([*BASE, *typed])
    made = words.arguments(run, run.engine, Path("/runs/a"), start)  # type: ignore[arg-type]
    return {key_of(word): word.partition("=")[2] for word in made}


@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        (["algorithm=grpo"], "algorithm.adv_estimator", "grpo"),
        (["algorithm=grpo"], f"{ACTOR}.clip_ratio_c", "1000000000.0"),  # the paper has no dual clip
        (["algorithm=grpo"], f"{ACTOR}.use_kl_loss", "false"),  # no reference model without a coefficient
        (["algorithm=grpo", "algorithm.kl_loss_coef=0.01"], f"{ACTOR}.kl_loss_type", "low_var_kl"),
        (["algorithm=dr_grpo"], "algorithm.norm_adv_by_std_in_grpo", "false"),
        (["algorithm=dapo"], "algorithm.filter_groups.metric", "reward"),
        (["algorithm=dapo", "algorithm.overlong_buffer_len=64"], "algorithm.filter_groups.metric", "acc"),
        (["algorithm=ppo"], "algorithm.use_kl_in_reward", "true"),
        (["algorithm=ppo", "algorithm.kl_penalty=k2"], "algorithm.kl_penalty", "mse"),
        (["algorithm=ppo", "model.lora_rank=8"], "critic.model.lora_rank", None),  # all of the critic is trained
        (["algorithm=grpo"], "trainer.save_freq", str(words.AT_THE_END)),  # for verl, -1 is never
        (["algorithm=grpo", "trainer.total_training_steps=7"], "trainer.total_epochs", "7"),  # it ends with these, too
        (["algorithm=grpo", "trainer.max_tokens_per_gpu=9000"], f"{ROLLOUT}.log_prob_max_token_len_per_gpu", "9000"),
        (["algorithm=grpo", "sampler.val_temperature=0.6"], f"{ROLLOUT}.val_kwargs.do_sample", "true"),
        (["algorithm=grpo", "reward=auto"], "reward.custom_reward_function.path", None),  # verl's own choice
        (["algorithm=grpo", "reward=math"], "reward.custom_reward_function.path", str(words.BRIDGE)),
        (["algorithm=grpo", "reward=model", "reward.path=a/b"], "reward.reward_model.model_path", "a/b"),
        (["algorithm=grpo", "engine.strategy=megatron"], "model_engine", "megatron"),
        (["algorithm=grpo", *MEGATRON_LORA], f"{LORA}.rank", "8"),  # it reads no lora_rank
        (["algorithm=grpo", *MEGATRON_LORA], f"{LORA}.target_modules", None),  # its own default
        (["algorithm=grpo", *MEGATRON_LORA], "actor_rollout_ref.model.lora_rank", None),
        (["algorithm=sft", *MEGATRON_LORA], "model.lora.rank", "8"),
        # PEFT takes a text for a regular expression of whole names
        (["algorithm=sft", "model.lora_rank=8", "model.target_modules=q_proj"], "model.target_modules", "[q_proj]"),
        (["algorithm=sft", "model.lora_rank=8"], "model.target_modules", "all-linear"),
        (["algorithm=grpo", f'engine.extra=["{ACTOR}.clip_ratio_c=3.0"]'], f"{ACTOR}.clip_ratio_c", "3.0"),
        (["algorithm=ppo", "trainer.max_tokens_per_gpu=4096"], "critic.ppo_infer_max_token_len_per_gpu", "4096"),
        (["algorithm=sft"], "data.max_length", "1536"),
        (["algorithm=sft"], f"{ROLLOUT}.name", None),
        (
            ["algorithm=sft", "model.lora_rank=8", "model.target_modules=['.*q_proj']"],
            "model.target_modules",
            '".*q_proj"',
        ),
        (["algorithm=grpo", *MEGATRON_LORA, "model.target_modules=[a]"], f"{LORA}.target_modules", "[a]"),
    ],
)
def test_a_value(typed: list[str], key: str, value: str | None) -> None:
    assert emitted(*typed).get(key) == value


@pytest.mark.parametrize(("asked", "batch"), [(16, 8), (16, 100), (5, 14)])
def test_a_micro_batch_divides_the_sequences_of_an_update(asked: int, batch: int) -> None:
    """8, 16, 100 or 14 prompts x 2 answers on 2 GPUs: 8, 16, 100 or 14 sequences in each process."""
    typed = ["algorithm=grpo", "sampler.n=2", f"data.train_batch_size={batch}"]
    found = int(emitted(*typed, f"trainer.micro_batch_size_per_gpu={asked}")[f"{ACTOR}.ppo_micro_batch_size_per_gpu"])
    assert batch % found == 0 and found <= asked
    assert found == max(size for size in range(1, asked + 1) if batch % size == 0)


def test_it_goes_on_from_its_own_checkpoint() -> None:
    made = emitted("algorithm=grpo", start=20)
    assert made["trainer.resume_mode"] == "resume_path"
    assert made["trainer.resume_from_path"] == "/runs/a/checkpoints/step_000020/state/global_step_20"
    assert emitted("algorithm=grpo")["trainer.resume_mode"] == "disable"


@pytest.mark.parametrize("algorithm", ["sft", "grpo", "dr_grpo", "dapo", "gspo", "ppo"])
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2", "megatron"])
def test_verl_composes_what_is_emitted(algorithm: str, strategy: str) -> None:
    run = resolve([*BASE, f"algorithm={algorithm}", f"engine.strategy={strategy}"])
    made = words.arguments(run, run.engine, Path("/runs/a"))  # type: ignore[arg-type]
    found = compose(made, "ppo" if run.algorithm.sampled else "sft")
    assert not found.problems and not found.notes
