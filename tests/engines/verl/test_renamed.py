"""Keys of older versions of verl, of its forks, and misspelt ones: what is said of each."""

from __future__ import annotations

import pytest

from launcher.engines.verl.config.compose import compose

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
CORRECTION = "algorithm.rollout_correction"
OUT = "leave it out"
CACHE = f"use +{ROLLOUT}.engine_kwargs.vllm.mm_processor_cache_gb=0 to switch the cache off"
VETO = f"use {CORRECTION}.rollout_rs=seq_max_k2 with its rollout_rs_threshold"
PPO = {
    f"{ACTOR}.use_token_level_loss": f"use {ACTOR}.loss_agg_mode=token-mean",
    f"{ACTOR}.fsdp_config.grad_offload": OUT,
    f"{ACTOR}.megatron.grad_offload": OUT,
    "critic.megatron.grad_offload": OUT,
    "critic.model.fsdp_config.grad_offload": OUT,
    f"{ACTOR}.kl_loss.type": f"use {ACTOR}.kl_loss_type",
    "algorithm.in_reward_kl.type": "use algorithm.kl_penalty",
    f"{REF}.param_offload": f"did you mean {REF}.fsdp_config.param_offload?",
    "custom_reward_function.overlong_buffer.len": "use +reward.reward_kwargs.overlong_buffer_cfg.len",
    "reward_model.use_reward_loop": OUT,
    "reward_model.micro_batch_size_per_gpu": OUT,
    "reward_model.launch_reward_fn_async": OUT,
    "reward_model.param_offload": OUT,
    "reward_model.model.use_remove_padding": OUT,
    "reward_model.model.fsdp_config.param_offload": OUT,
    "reward_model.megatron.tensor_model_parallel_size": OUT,
    f"{ROLLOUT}.n_agent": f"use {ROLLOUT}.n",
    "retriever.url": "use +retriever.url= where code of yours reads it",
    "retriever.topk": "use +retriever.topk= where code of yours reads it",
    f"{ACTOR}.checkpoint.contents": f"use {ACTOR}.checkpoint.save_contents",
    f"{ACTOR}.behav_imp_weight_cap": f"use {CORRECTION}.rollout_is_threshold",
    f"{ROLLOUT}.update_weights_bucket_megabytes": f"use {ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
    f"{ROLLOUT}.swap_space": OUT,
    f"{ROLLOUT}.limit_images": f"use +{ROLLOUT}.limit_images=",
    f"{ROLLOUT}.val_temperature": f"use {ROLLOUT}.val_kwargs.temperature",
    "actor_rollout_ref.model.use_rmpad": "use actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.model.tokenizer": "did you mean actor_rollout_ref.model.tokenizer_path?",
    "algorithm.rollout_token_veto_threshold": VETO,
    "algorithm.bypass_old_logprob_for_rollout": f"use {CORRECTION}.bypass_mode",
    "critic.kl_ctrl.kl_coef": "use algorithm.kl_ctrl.kl_coef",
    "data.max_start_length": "use data.max_prompt_length",
    "data.shuffle_train_dataloader": "use data.shuffle",
    "max_turns": f"use {ROLLOUT}.multi_turn.max_assistant_turns",
    "trainer.remove_previous_ckpt_in_save": "use trainer.max_actor_ckpt_to_keep=1",
    "reward_model.enabel": "did you mean reward.reward_model.enable?",
}
MISSPELT = {
    f"{ROLLOUT}.temprature": f"{ROLLOUT}.temperature",
    "actor_rollout_ref.rolout.temperature": f"{ROLLOUT}.temperature",
    f"{ACTOR}.ppo_mini_bach_size": f"{ACTOR}.ppo_mini_batch_size",
    f"{ROLLOUT}.nn": f"{ROLLOUT}.nnodes",
    "critic.lr": "critic.optim.lr",
}
VAGUE = (
    "retriever.enable", "data.foo.type", "global.stacks", "processor.path", "my.url",
    f"{ROLLOUT}.speculative_decoding.enable",
)  # fmt: skip


def fix_of(key: str, *more: str, program: str = "ppo") -> str:
    (problem,) = compose([*more, f"{key}=1"], program).problems  # type: ignore[arg-type]
    return problem.fix


@pytest.mark.parametrize(("key", "fix"), PPO.items(), ids=PPO)
def test_a_key_of_others_has_its_answer(key: str, fix: str) -> None:
    assert fix_of(key) == fix


@pytest.mark.parametrize(("key", "meant"), MISSPELT.items(), ids=MISSPELT)
def test_a_misspelt_key_is_found(key: str, meant: str) -> None:
    assert fix_of(key) == f"did you mean {meant}?"


@pytest.mark.parametrize("key", VAGUE)
def test_nothing_is_guessed_from_a_name_that_tells_nothing(key: str) -> None:
    assert fix_of(key) == f"use +{key}= where code of yours reads it"


def test_what_is_meant_depends_on_the_backend() -> None:
    assert fix_of(f"{REF}.param_offload", "model_engine=megatron") == f"did you mean {REF}.megatron.param_offload?"


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("model.fsdp_config.cpu_offload", "use engine.param_offload"),
        ("trainer.checkpoint.save_contents", "use checkpoint.save_contents"),
        ("data.val_batch_size", OUT),
        ("lr", "did you mean optim.lr?"),
    ],
)
def test_a_key_of_sft_has_its_answer(key: str, fix: str) -> None:
    assert fix_of(key, program="sft") == fix
