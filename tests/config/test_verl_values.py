"""Values that verl takes, and that our settings do not have."""

from __future__ import annotations

import pytest

from launcher.config.resolve import try_resolve

MODEL, GROUPS = "actor_rollout_ref.model", "algorithm.filter_groups"
MOST = f"{GROUPS}.max_num_gen_batches"
RUNS = {
    "torch": ["engine=torch", "model=tiny", "data=reverse", "sampler.n=4"],
    "verl": ["engine=verl", "model=Qwen/Qwen3-0.6B", "data=gsm8k", "sampler.n=4"],
}


@pytest.mark.parametrize("engine", RUNS)
@pytest.mark.parametrize("words", [[f"{MODEL}.lora_rank=0", f"{MODEL}.lora_alpha=0"], [f"{MODEL}.lora_alpha=0"]])
def test_an_alpha_without_adapters_is_left_out(engine: str, words: list[str]) -> None:
    found = try_resolve([*RUNS[engine], "algorithm=grpo", *words])
    assert not found.problems and found.run and found.run.model.lora_rank == 0
    assert next(one for one in found.taken if one.key.endswith("alpha")).words == ()


def test_an_alpha_of_adapters_is_at_least_1() -> None:
    (problem,) = try_resolve(
        [*RUNS["torch"], "algorithm=grpo", f"{MODEL}.lora_rank=8", f"{MODEL}.lora_alpha=0"]
    ).problems
    assert problem.got == f"got 0 (typed as {MODEL}.lora_alpha=0)"


@pytest.mark.parametrize("value", ["0", "-1"])
@pytest.mark.parametrize("chosen", [["algorithm=dapo"], ["algorithm.adv_estimator=grpo", f"{GROUPS}.enable=True"]])
def test_sampling_without_a_limit_is_verls(chosen: list[str], value: str) -> None:
    found = try_resolve([*RUNS["verl"], *chosen, f"{MOST}={value}"])
    assert not found.problems and found.run
    assert f"{MOST}={value}" in found.run.engine.extra  # type: ignore[attr-defined]
    (problem,) = try_resolve([*RUNS["torch"], *chosen, f"{MOST}={value}"]).problems
    assert problem.where == MOST
    assert problem.fix == "sampling always has a limit here; use algorithm.max_num_gen_batches=100"


@pytest.mark.parametrize("chosen", [["algorithm=grpo"], ["algorithm.adv_estimator=grpo", f"{GROUPS}.enable=False"]])
def test_a_limit_that_is_not_read_is_left_out(chosen: list[str]) -> None:
    assert not try_resolve([*RUNS["torch"], *chosen, f"{MOST}=0"]).problems
