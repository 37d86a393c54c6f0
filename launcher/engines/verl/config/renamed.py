"""Keys that verl had, never had, or composes without reading them, and what is used in 0.9.1 instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

ROLES = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref", "critic")
"""Sections of verl's workers: each has a profiler."""
_PROFILES = {
    **{f"{role}.{word}": role for role in ROLES for word in ("profile", "profiler")},
    **{f"actor_rollout_ref.{word}": "actor_rollout_ref.actor" for word in ("profile", "profiler")},
    "trainer.npu_profile": "actor_rollout_ref.actor",
}
"""Where the options of NPU's profiler stood -> the role whose profiler has them."""
PPO = {
    **{f"{place}.options": f"{role}.profiler.tool_config.npu" for place, role in _PROFILES.items()},
    **{f"{place}.options.save_path": f"{role}.profiler.save_path" for place, role in _PROFILES.items()},
    "model": "actor_rollout_ref.model",
    "optim": "actor_rollout_ref.actor.optim",
    "actor": "actor_rollout_ref.actor",
    "rollout": "actor_rollout_ref.rollout",
    "ref": "actor_rollout_ref.ref",
    "critic.model.fsdp_config": "critic.fsdp",
    "critic.forward_micro_batch_size": "critic.forward_micro_batch_size_per_gpu",
    "critic.checkpoint.contents": "critic.checkpoint.save_contents",
    "critic.kl_ctrl": "algorithm.kl_ctrl",
    "reward_manager": "reward.reward_manager",
    "reward_kwargs": "reward.reward_kwargs",
    "ray_init": "ray_kwargs.ray_init",
    "ray_init.timeline_json_file": "ray_kwargs.timeline_json_file",
    "algorithm.in_reward_kl.enable": "algorithm.use_kl_in_reward",
    "algorithm.in_reward_kl.type": "algorithm.kl_penalty",
    "algorithm.in_reward_kl.coef": "algorithm.kl_ctrl.kl_coef",
    "algorithm.kl_coef": "algorithm.kl_ctrl.kl_coef",
    "algorithm.pf_ppo_reweight_method": "algorithm.pf_ppo.reweight_method",
    "algorithm.pf_ppo_weight_pow": "algorithm.pf_ppo.weight_pow",
    "algorithm.bypass_old_logprob_for_rollout": "algorithm.rollout_correction.bypass_mode",
    "algorithm.rollout_correction.bypass_old_logprob_for_rollout": "algorithm.rollout_correction.bypass_mode",
    "algorithm.rollout_is": "algorithm.rollout_correction.rollout_is",
    "algorithm.rollout_is_threshold": "algorithm.rollout_correction.rollout_is_threshold",
    "algorithm.rollout_rs": "algorithm.rollout_correction.rollout_rs",
    "algorithm.rollout_rs_threshold": "algorithm.rollout_correction.rollout_rs_threshold",
    "actor_rollout_ref.actor.tis_imp_ratio_cap": "algorithm.rollout_correction.rollout_is_threshold",
    "actor_rollout_ref.actor.kl_loss.enable": "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.kl_loss.type": "actor_rollout_ref.actor.kl_loss_type",
    "actor_rollout_ref.actor.kl_loss.coef": "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.checkpoint.contents": "actor_rollout_ref.actor.checkpoint.save_contents",
    "actor_rollout_ref.actor.ppo_kl_coef": "actor_rollout_ref.actor.policy_loss.ppo_kl_coef",
    "actor_rollout_ref.model.use_rmpad": "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.model.attn_implementation": "+actor_rollout_ref.model.override_config.attn_implementation",
    "actor_rollout_ref.rollout.n_agent": "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.val_temperature": "actor_rollout_ref.rollout.val_kwargs.temperature",
    "actor_rollout_ref.rollout.kv_cache_dtype": "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype",
    "actor_rollout_ref.rollout.update_weights_bucket_megabytes": (
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
    ),
    "actor_rollout_ref.actor.lr": "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.rollout.tensor_parallel_size": "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.actor.router_replay": "actor_rollout_ref.actor.megatron.router_replay",
    "actor_rollout_ref.actor.fsdp_config.grad_clip": "actor_rollout_ref.actor.optim.clip_grad",
    "actor_rollout_ref.rollout.skip_rollout": "skip.rollout_tq.enable",
    "actor_rollout_ref.rollout.skip_dump_dir": "skip.rollout_tq.dump_dir",
    "actor_rollout_ref.rollout.multi_turn.max_turns": "actor_rollout_ref.rollout.multi_turn.max_assistant_turns",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
    "trainer.val_generations_to_log": "trainer.log_val_generations",
    "trainer.generations_to_log_to_wandb": "trainer.log_val_generations",
    "trainer.profile_continuous_steps": "global_profiler.profile_continuous_steps",
    "trainer.gpus_per_node": "trainer.n_gpus_per_node",
    "trainer.total_episodes": "trainer.total_epochs",
    "trainer.profile_steps": "global_profiler.steps",
    "trainer.controller_nsight_options": "global_profiler.global_tool_config.nsys.controller_nsight_options",
    "trainer.worker_nsight_options": "global_profiler.global_tool_config.nsys.worker_nsight_options",
}
"""Of each old key, or section, today's."""
SFT = {
    "model.partial_pretrain": "model.path",
    "model.fsdp_config": "engine",
    "model.strategy": "engine.strategy",
    "model.fsdp_config.cpu_offload": "engine.param_offload",
    "model.fsdp_config.offload_params": "engine.param_offload",
    "trainer.checkpoint": "checkpoint",
    "use_liger": "model.use_liger",
    "data.micro_batch_size": "data.micro_batch_size_per_gpu",
    "data.multiturn.messages_key": "data.messages_key",
    "data.multiturn.tools_key": "data.tools_key",
    "data.multiturn.enable_thinking_key": "data.enable_thinking_key",
    "data.chat_template": "model.custom_chat_template",
    "ulysses_sequence_parallel_size": "engine.ulysses_sequence_parallel_size",
    "use_remove_padding": "model.use_remove_padding",
    "optim.warmup_steps_ratio": "optim.lr_warmup_steps_ratio",
    "optim.lr_scheduler": "optim.lr_scheduler_type",
    "actor_rollout_ref.model": "model",
    "actor_rollout_ref.actor.optim": "optim",
    "actor_rollout_ref.actor.fsdp_config": "engine",
}
_TEMPLATE = "use actor_rollout_ref.model.custom_chat_template"
_REMOVED = "leave it out"
_VETO = "use algorithm.rollout_correction.rollout_rs=seq_max_k2 with its rollout_rs_threshold"
_ASYNC = "use trainer.v1.trainer_mode=separate_async with trainer.v1.separate_async and trainer.v1.sampler"
_VLLM = "actor_rollout_ref.rollout.engine_kwargs.vllm"
DEPRECATED = {f"{_VLLM}.disable_mm_preprocessor_cache": f"use +{_VLLM}.mm_processor_cache_gb=0 to switch the cache off"}
"""Arguments of vLLM that its later versions do not have."""
_CONTENTS = {
    "with_memory": "memory", "record_shapes": "shapes", "with_npu": "npu", "with_cpu": "cpu", "with_module": "module",
    "with_stack": "stack",
}  # fmt: skip
_MESSAGES = "it reads only data.messages_key; write rows with a column of messages"
GONE = {
    "ppo": {
        "algorithm.beta": "verl has no DPO; use engine=torch for it",
        "algorithm.loss_type": "verl has no DPO; use engine=torch for it",
        "trainer.use_legacy_worker_impl": "leave it out: there is one implementation",
        **{
            f"{role}.profiler.discrete": f"use {role}.profiler.tool_config.TOOL.discrete, with TOOL npu, nsys or torch"
            for role in ROLES
        },
        "actor_rollout_ref.rollout.profiler.discrete": (
            "use actor_rollout_ref.rollout.profiler.tool_config.TOOL.discrete, with TOOL npu or torch"
        ),
        **{
            f"{place}.options.{name}": f"use {role}.profiler.tool_config.npu.contents=[{contents}]"
            for place, role in _PROFILES.items()
            for name, contents in _CONTENTS.items()
        },
        **{f"{place}.options.roles": "use ROLE.profiler.enable=True for each role" for place in _PROFILES},
        **{
            f"{place}.grad_offload": _REMOVED
            for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic", "critic.model")
            for place in (role, f"{role}.fsdp_config", f"{role}.megatron", f"{role}.fsdp")
        },
        **{f"{role}.load_weight": _REMOVED for role in ROLES},
        "actor_rollout_ref.actor.use_token_level_loss": "use actor_rollout_ref.actor.loss_agg_mode=token-mean",
        "actor_rollout_ref.actor.use_entropy_loss": "use actor_rollout_ref.actor.entropy_coeff",
        "actor_rollout_ref.actor.state_masking": "leave it out: an agent loop gives the mask of what it did not sample",
        "actor_rollout_ref.actor.use_rollout_log_probs": "use algorithm.rollout_correction.bypass_mode=True",
        "actor_rollout_ref.actor.recompute_old_log_prob": "use algorithm.rollout_correction.bypass_mode=True without",
        "actor_rollout_ref.actor.behav_imp_weight_cap": "use algorithm.rollout_correction.rollout_is_threshold",
        "actor_rollout_ref.actor.gradient_checkpointing": "use actor_rollout_ref.model.enable_gradient_checkpointing",
        "actor_rollout_ref.actor.megatron.gradient_checkpointing_kwargs": (
            "use actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity"
        ),
        "actor_rollout_ref.actor.megatron.num_layers_per_virtual_pipeline_model_parallel_size": (
            "use actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size"
        ),
        "actor_rollout_ref.rollout.micro_batch_size": _REMOVED,
        "actor_rollout_ref.rollout.swap_space": _REMOVED,
        "actor_rollout_ref.rollout.engine_kwargs.swap_space": _REMOVED,
        "actor_rollout_ref.rollout.layer_name_map": _REMOVED,
        "actor_rollout_ref.rollout.val_kwargs.max_new_tokens": "use data.max_response_length",
        "actor_rollout_ref.rollout.multi_turn.enable_tokenization_sanity_check": (
            "use actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode=strict or disable"
        ),
        **DEPRECATED,
        "actor_rollout_ref.model.moe_config": _REMOVED,
        "data.need_tools_kwargs": _REMOVED,
        "data.chat_template": _TEMPLATE,
        "data.train_data_num": "use data.train_max_samples",
        "data.val_data_num": "use data.val_max_samples",
        "data.shuffle_train_dataloader": "use data.shuffle",
        "data.max_start_length": "use data.max_prompt_length",
        "data.max_obs_length": "use actor_rollout_ref.rollout.multi_turn.max_tool_response_length",
        "max_turns": "use actor_rollout_ref.rollout.multi_turn.max_assistant_turns",
        "algorithm.state_masking": "leave it out: an agent loop gives the mask of what it did not sample",
        "algorithm.no_think_rl": _REMOVED,
        "algorithm.rollout_is_level": "use algorithm.rollout_correction.rollout_is=token or sequence",
        "algorithm.rollout_is_mode": "use algorithm.rollout_correction.rollout_is, or rollout_rs to reject answers",
        "algorithm.rollout_is_threshold_lower": "use algorithm.rollout_correction.rollout_rs_threshold=LOWER_UPPER",
        "algorithm.rollout_is_veto_threshold": _VETO,
        "algorithm.rollout_token_veto_threshold": _VETO,
        "algorithm.rollout_correction.rollout_token_veto_threshold": _VETO,
        "algorithm.rollout_correction.use_policy_gradient": "use algorithm.rollout_correction.loss_type=reinforce",
        "trainer.rejection_sample": "use algorithm.filter_groups.enable",
        "trainer.rejection_sample_multiplier": "leave it out: it samples until the batch is full",
        "trainer.remove_previous_ckpt_in_save": "use trainer.max_actor_ckpt_to_keep=1",
        "trainer.remove_previous_ckpt": "use trainer.max_actor_ckpt_to_keep=1",
        "reward.reward_loop_source": "use reward.reward_manager.source",
        "async_training": _ASYNC,
        "actor_rollout_ref.rollout.skip_use_default_dir": "leave it out",
        "actor_rollout_ref.rollout.chat_scheduler": "use actor_rollout_ref.rollout.agent.default_agent_loop",
        "actor_rollout_ref.rollout.use_fire_sampling": "leave it out",
        "actor_rollout_ref.rollout.multi_turn.interaction_config_path": "use a custom agent loop",
        "actor_rollout_ref.rollout.multi_turn.completion_callback": "use a custom agent loop",
        "data.sampler": "leave it out",
        "data.datagen": "leave it out",
        "reward_model.path": "use reward.reward_model.model_path with reward.reward_model.enable=True",
    },
    "sft": {
        "data.prompt_key": _MESSAGES,
        "data.response_key": _MESSAGES,
        "data.prompt_dict_keys": _MESSAGES,
        "data.response_dict_keys": _MESSAGES,
        "data.val_batch_size": _REMOVED,
        "data.multiturn.enable": "leave it out: every row is a chat",
    },
}
"""What to do where there is no key of today."""
IGNORED = {
    "reward_model.overlong_buffer": "+reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_kwargs": "+reward.reward_kwargs",
    "reward_model.sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.name",
    "reward_model.model.trust_remote_code": "",
    "reward_model.model.external_lib": "",
    **{
        f"reward_model.{name}": ""
        for name in (
            "use_reward_loop",
            "launch_reward_fn_async",
            "micro_batch_size",
            "micro_batch_size_per_gpu",
            "max_length",
            "use_dynamic_bsz",
            "forward_max_token_len_per_gpu",
            "ulysses_sequence_parallel_size",
            "strategy",
            "param_offload",
            "load_weight",
            "nccl_timeout",
            "megatron",
            "profiler",
            "model.fsdp_config",
            "model.use_remove_padding",
            "model.use_fused_kernels",
            "model.use_shm",
            "model.override_config",
            "model.input_tokenizer",
            "model.tokenizer_path",
        )
    },
    "custom_reward_function.overlong_buffer": "+reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model": "reward.reward_model",
    "custom_reward_function": "reward.custom_reward_function",
    "sandbox_fusion": "reward.sandbox_fusion",
}
"""Sections that main_ppo of 0.9.1 composes and never reads (only fully_async_main does): today's key, empty where
there is none."""


def today(program: Literal["ppo", "sft"], key: str) -> str | None:
    """Today's name of an old key; None where it is not known as one."""
    return _by_section(PPO if program == "ppo" else SFT, key)


def gone(program: Literal["ppo", "sft"], key: str) -> str | None:
    """What to do about a key that has no successor."""
    return next((GONE[program][place] for place in _sections(key) if place in GONE[program]), None)


def deprecated(key: str) -> str | None:
    """What to use for an argument of vLLM that later versions do not have; None where none is known as such."""
    return DEPRECATED.get(key)


def ignored(key: str) -> str | None:
    """Today's name of a key that is composed and not read; None where verl reads it."""
    return _by_section(IGNORED, key)


def _by_section(table: Mapping[str, str], key: str) -> str | None:
    for place in _sections(key):
        if place in table:
            rest = key.removeprefix(place)
            return table[place] + rest if table[place] else ""
    return None


def _sections(key: str) -> list[str]:
    """The key and the sections that it is in, the longest first."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
