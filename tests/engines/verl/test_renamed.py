"""Keys of older versions of verl, of its forks, and misspelt ones: what is said of each."""

from __future__ import annotations

import pytest

from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.config.defaults import Program

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
OUT = "leave it out"
PPO = {
    f"{ACTOR}.use_token_level_loss": f"use {ACTOR}.loss_agg_mode=token-mean",
    "critic.model.fsdp_config.grad_offload": OUT,  # of a section that has another name today
    f"{REF}.param_offload": f"did you mean {REF}.fsdp_config.param_offload?",
    "custom_reward_function.overlong_buffer.len": "use +reward.reward_kwargs.overlong_buffer_cfg.len",
    "reward_model.model.fsdp_config.param_offload": OUT,
    f"{ROLLOUT}.limit_images": f"use +{ROLLOUT}.limit_images=",  # a field of its dataclass
    "algorithm.bypass_old_logprob_for_rollout": "use algorithm.rollout_correction.bypass_mode",
    # misspelt
    "reward_model.enabel": "did you mean reward.reward_model.enable?",
    f"{ACTOR}.ppo_mini_bach_size": f"did you mean {ACTOR}.ppo_mini_batch_size?",
    f"{ROLLOUT}.nn": f"did you mean {ROLLOUT}.nnodes?",
    "critic.lr": "did you mean critic.optim.lr?",
    # nothing is guessed from a name that tells nothing
    "retriever.enable": "use +retriever.enable= where code of yours reads it",
}
SFT = {
    "model.fsdp_config.cpu_offload": "use engine.param_offload",
    "data.val_batch_size": OUT,
    "lr": "did you mean optim.lr?",
}


@pytest.mark.parametrize(
    ("program", "more", "fixes"),
    [
        ("ppo", [], PPO),
        ("sft", [], SFT),
        ("ppo", ["model_engine=megatron"], {f"{REF}.param_offload": f"did you mean {REF}.megatron.param_offload?"}),
    ],
    ids=["ppo", "sft", "megatron"],
)
def test_a_key_that_verl_has_not_has_its_answer(program: Program, more: list[str], fixes: dict[str, str]) -> None:
    problems = compose([*more, *(f"{key}=1" for key in fixes)], program).problems
    assert {problem.where: problem.fix for problem in problems} == fixes and len(problems) == len(fixes)
