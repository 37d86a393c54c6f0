"""Keys that verl had, never had, or composes without reading them, and what is used in 0.9.1 instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

PPO = {
    "model": "actor_rollout_ref.model",
    "optim": "actor_rollout_ref.actor.optim",
    "actor": "actor_rollout_ref.actor",
    "rollout": "actor_rollout_ref.rollout",
    "ref": "actor_rollout_ref.ref",
    "critic.model.fsdp_config": "critic.fsdp",
    "critic.forward_micro_batch_size": "critic.forward_micro_batch_size_per_gpu",
    "reward_manager": "reward.reward_manager",
    "reward_kwargs": "reward.reward_kwargs",
    "ray_init": "ray_kwargs.ray_init",
    "ray_init.timeline_json_file": "ray_kwargs.timeline_json_file",
    "algorithm.rollout_is": "algorithm.rollout_correction.rollout_is",
    "algorithm.rollout_is_threshold": "algorithm.rollout_correction.rollout_is_threshold",
    "algorithm.rollout_rs": "algorithm.rollout_correction.rollout_rs",
    "algorithm.rollout_rs_threshold": "algorithm.rollout_correction.rollout_rs_threshold",
    "actor_rollout_ref.actor.tis_imp_ratio_cap": "algorithm.rollout_correction.rollout_is_threshold",
    "actor_rollout_ref.actor.lr": "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.rollout.tensor_parallel_size": "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.actor.router_replay": "actor_rollout_ref.actor.megatron.router_replay",
    "actor_rollout_ref.actor.fsdp_config.grad_clip": "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.rollout.skip_rollout": "skip.rollout.enable",
    "actor_rollout_ref.rollout.skip_dump_dir": "skip.rollout.dump_dir",
    "actor_rollout_ref.rollout.multi_turn.max_turns": "actor_rollout_ref.rollout.multi_turn.max_assistant_turns",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
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
_MESSAGES = "it reads only data.messages_key; write rows with a column of messages"
GONE = {
    "ppo": {
        "algorithm.beta": "verl has no DPO; use engine=torch for it",
        "algorithm.loss_type": "verl has no DPO; use engine=torch for it",
        "trainer.use_legacy_worker_impl": "leave it out: there is one implementation",
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
