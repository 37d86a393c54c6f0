"""Values that verl takes, and that our settings do not have."""

from __future__ import annotations

import pytest

from launcher.config.resolve import try_resolve

MODEL, GROUPS = "actor_rollout_ref.model", "algorithm.filter_groups"
MOST = f"{GROUPS}.max_num_gen_batches"
VERL = ["engine=verl", "model=Qwen/Qwen3-0.6B", "data=gsm8k", "sampler.n=4"]


@pytest.mark.parametrize("words", [[f"{MODEL}.lora_rank=0", f"{MODEL}.lora_alpha=0"], [f"{MODEL}.lora_alpha=0"]])
def test_an_alpha_without_adapters_is_left_out(words: list[str]) -> None:
    found = try_resolve([*VERL, "algorithm=grpo", *words])
    assert not found.problems and found.run and found.run.model.lora_rank == 0
    assert next(one for one in found.taken if "alpha" in one.typed.text).words == ()


@pytest.mark.parametrize("value", ["0", "-1"])
@pytest.mark.parametrize("chosen", [["algorithm=dapo"], ["algorithm.adv_estimator=grpo", f"{GROUPS}.enable=True"]])
def test_sampling_without_a_limit_is_verls(chosen: list[str], value: str) -> None:
    found = try_resolve([*VERL, *chosen, f"{MOST}={value}"])
    assert not found.problems and found.run
    assert f"{MOST}={value}" in found.run.engine.extra  # type: ignore[attr-defined]


def extra(*typed: str) -> list[str]:
    found = try_resolve([*VERL, "algorithm.adv_estimator=grpo", *typed])
    assert not found.problems and found.run, found.problems
    return list(found.run.engine.extra)  # type: ignore[attr-defined]


def test_the_parts_of_a_length_penalty_stay_together() -> None:
    """verl reads `enable` of each mapping, also where only the other keys say that there is one."""
    buffer = "+reward.reward_kwargs.overlong_buffer_cfg"
    typed = [f"{buffer}.enable=true", f"{buffer}.len=64", f"{buffer}.penalty_factor=1.0", f"{buffer}.log=false"]
    manager = ["reward.reward_manager.name=dapo", "+reward.reward_kwargs.max_resp_len=256"]
    assert extra(*manager, *typed) == [*manager, *typed]
    found = try_resolve([*VERL, "algorithm=dapo", *typed])
    assert not found.problems and found.run and found.run.algorithm.overlong_buffer_len == 64  # type: ignore[attr-defined]


def test_a_limit_of_sampling_is_passed_on() -> None:
    assert extra(f"{GROUPS}.enable=true", f"{MOST}=5") == [f"{MOST}=5"]


def test_more_than_all_steps_is_no_share() -> None:
    """Neither 10 steps nor ten times all of them are known to be meant."""
    name = "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"
    assert extra(f"{name}=10") == [f"{name}=10"]


def test_answers_to_train_on_are_not_greedy() -> None:
    (problem,) = try_resolve([*VERL, "algorithm=grpo", "actor_rollout_ref.rollout.temperature=0"]).problems
    assert (problem.where, problem.fix) == ("sampler.temperature", "use a number > 0.0")


def test_advice_is_not_the_value_that_is_refused() -> None:
    (problem,) = try_resolve([*VERL, "algorithm=grpo", "optim.lr_scheduler_type=linear"]).problems
    assert (problem.where, problem.fix) == ("optim.lr_scheduler_type", "use constant or cosine")
