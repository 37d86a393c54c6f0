"""vLLM's answers are those of our own decode loop, and its log-probabilities the trainer's, however the weights lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")
import torch

from launcher.core.problems import Problems
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.decode import Decoder, _keep_top_k_top_p
from launcher.engines.torch.rollout.generator import Generator, make_requests
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.spec.episode import Turn

Ids = Callable[..., list[list[int]]]
Made = Callable[..., Any]
NEAR = 1e-4
ENDS = [1, 5, 6]  # tokens that end an answer, of which the model's config names only the first
LENGTHS = [1 + place * 7 % 40 for place in range(200)]


def answered(generator: Generator, prompts: list[list[int]], keys: np.ndarray, temperature: float) -> list[Turn]:
    return [episode.turns[0] for episode in generator.answer(make_requests(prompts, keys), temperature)]


def test_200_greedy_answers_are_our_own_decode_loops(colocated: Made, tiny: list[str], ids: Ids) -> None:
    made, prompts = colocated(*tiny), ids(*LENGTHS)
    made.model.base.generation_config.eos_token_id = ENDS
    own = Decoder(made.model, TorchSampler(), made.generator.max_new)
    expected = answered(own, prompts, np.zeros(200, np.uint64), 0.0)
    found = made.answers(prompts)
    assert [(answer.tokens, answer.stop) for answer in found] == [(answer.tokens, answer.stop) for answer in expected]
    assert 20 < sum(answer.stop == "length" for answer in found) < 180  # both ways to end are seen
    assert {answer.tokens[-1] for answer in found if answer.stop == "end"} == set(ENDS)
    assert made.apart(prompts, found) <= NEAR


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_the_trainers_at_the_same_temperature(
    temperature: float, colocated: Made, tiny: list[str], ids: Ids
) -> None:
    made, prompts = colocated(*tiny), ids(*LENGTHS[:60])
    made.policy.temperature = temperature
    found = made.answers(prompts, temperature=temperature)
    assert made.apart(prompts, found) <= NEAR
    made.policy.temperature = 1.0


def test_an_answer_does_not_depend_on_its_company_and_siblings_differ(
    colocated: Made, tiny: list[str], ids: Ids
) -> None:
    made, prompts, n = colocated(*tiny), ids(9, 3, 30, 9, 4), 3
    keys = random_streams.stream_keys(7, 1, range(len(prompts)), n)
    with made.generator.current_weights():
        whole = answered(made.generator, prompts, keys, 1.0)
        for row in (4, 1):
            single = answered(made.generator, [prompts[row]], keys[row * n : row * n + n], 1.0)
            assert [answer.tokens for answer in single] == [answer.tokens for answer in whole[row * n : row * n + n]]
        other = answered(made.generator, prompts, random_streams.stream_keys(7, 2, range(len(prompts)), n), 1.0)
    assert len({tuple(answer.tokens) for answer in whole}) == len(whole)
    assert [answer.tokens for answer in other] != [answer.tokens for answer in whole]


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("sampler.top_k=3",), 3),  # one of the three likeliest
        (("sampler.top_p=0.4",), 48),  # one of those that hold 0.4 together
        (("sampler.top_k=5", "sampler.top_p=0.5"), 5),  # 0.5 of what the five hold
    ],
)
def test_the_tail_is_cut_where_our_own_loop_cuts_it(
    words: tuple[str, ...], most: int, colocated: Made, tiny: list[str], ids: Ids
) -> None:
    """By the set of first tokens that many draws hit, against the probabilities that our loop would leave."""
    made = colocated(*tiny, *words)
    with torch.no_grad():
        each = {
            tuple(prompt): made.model.base(torch.tensor([prompt])).logits[:, -1].softmax(-1)
            for prompt in ids(*[12] * 9)
        }
    prompt, probability = min(each.items(), key=lambda item: item[1].max().item())  # where many tokens are likely
    sampler = made.run.sampler
    left = _keep_top_k_top_p(probability, sampler.top_k, sampler.top_p)[0]
    found = made.answers([list(prompt)], n=400, temperature=1.0)
    drawn = {answer.tokens[0] for answer in found}
    likely = {token for token, p in enumerate((left / left.sum()).tolist()) if p > 0.02}  # missed in 400: 1 in 3000
    assert likely <= drawn <= {token for token, p in enumerate(left.tolist()) if p > 0}
    assert 1 < len(drawn) <= most


def test_new_weights_come_over_and_the_cache_of_prompts_goes(colocated: Made, tiny: list[str], ids: Ids) -> None:
    """The prompt fills two blocks of vLLM's cache, which would speak of the old weights."""
    made, prompts = colocated(*tiny), ids(300, 260)
    before = made.answers(prompts)
    made.move(1)
    made.model.version += 1
    assert made.apart(prompts) <= NEAR
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
    assert made.apart(prompts) <= near
    made.move(1)
    made.model.version += 1
    assert made.apart(prompts) <= near


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
    assert 1e-4 < made.apart(prompts) < 0.5


def test_a_weight_that_the_policy_lacks_is_told(colocated: Made, tiny: list[str], ids: Ids) -> None:
    made = colocated(*tiny)
    made.generator.exported = [(name, value) for name, value in made.generator.exported if "layers.1.mlp" not in name]
    made.model.version += 1
    with pytest.raises(Problems, match=r"LlamaForCausalLM has not all weights of vLLM's, such as model.layers.1.mlp"):
        made.answers(ids(5))
