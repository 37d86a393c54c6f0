"""Whatever the policy's weights are and however they lie, vLLM computes with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm")
from launcher.core.problems import Problems

Ids = Callable[..., list[list[int]]]
Made = Callable[..., Any]
NEAR = 1e-4


def apart(made: Any, prompts: list[list[int]]) -> float:
    """The largest difference of a log-probability between vLLM and the trainer."""
    found = made.answers(prompts)
    trainer = made.trainer(prompts, found)
    pairs = [(x, y) for answer, row in zip(found, trainer, strict=True) for x, y in zip(answer.logp, row, strict=True)]
    return max(abs(x - y) for x, y in pairs)


def test_new_weights_come_over_and_the_cache_of_prompts_goes(colocated: Made, tiny: list[str], ids: Ids) -> None:
    """The prompt fills two blocks of vLLM's cache, which would speak of the old weights."""
    made, prompts = colocated(*tiny), ids(300, 260)
    before = made.answers(prompts)
    made.move(1)
    made.model.version += 1
    assert apart(made, prompts) <= NEAR
    assert [answer.tokens for answer in made.answers(prompts)] != [answer.tokens for answer in before]
    made.move(0)
    made.model.version += 1
    assert [answer.tokens for answer in made.answers(prompts)] == [answer.tokens for answer in before]


@pytest.mark.parametrize(
    ("name", "values", "near"),
    [
        ("qwen2", {"tie_word_embeddings": True}, NEAR),  # one matrix under two names; biases
        ("qwen3", {}, NEAR),  # norms of queries and keys
        ("gemma2", {"query_pre_attn_scalar": 32, "sliding_window": 64}, 10 * NEAR),  # large scores, capped by a tanh
    ],
)
def test_families(name: str, values: dict[str, Any], near: float, colocated: Made, family: Made, ids: Ids) -> None:
    made = colocated(*family(name, **values))
    prompts = ids(5, 40, 17)
    assert apart(made, prompts) <= near
    made.move(1)
    made.model.version += 1
    assert apart(made, prompts) <= near


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),  # a plan knows it
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),  # known when it is loaded
    ],
)
def test_experts_on_a_cpu_are_refused_as_new_weights_would_not_reach_them(
    name: str, values: dict[str, Any], colocated: Made, family: Made
) -> None:
    with pytest.raises(Problems, match="packed copy of experts"):
        colocated(*family(name, **values))


def test_bfloat16_is_near_and_its_distance_is_seen(colocated: Made, tiny: list[str], ids: Ids) -> None:
    made, prompts = colocated(*tiny, "engine.mixed_precision=true"), ids(5, 40)
    assert 1e-4 < apart(made, prompts) < 0.5


def test_a_weight_that_the_policy_lacks_is_told(colocated: Made, tiny: list[str], ids: Ids) -> None:
    made = colocated(*tiny)
    made.generator.exported = [(name, value) for name, value in made.generator.exported if "layers.1.mlp" not in name]
    made.model.version += 1
    with pytest.raises(Problems, match=r"LlamaForCausalLM has not all weights of vLLM's, such as model.layers.1.mlp"):
        made.answers(ids(5))
