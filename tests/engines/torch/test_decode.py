"""Sampling: the same answers as transformers' own, whatever they are computed together with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from launcher.core.problems import Problems
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.generator import Completion
from launcher.engines.torch.rollout.sampler import TorchSampler

Ids = Callable[..., list[list[int]]]
Entering = Callable[[CausalLM], list[tuple[int, int]]]

LENGTHS = (9, 3, 5, 9, 4, 7, 1, 2, 6, 8)
ENDS = list(range(1, 9))  # tokens that end an answer: many, so that answers end early and at different lengths


def decoder(model: CausalLM, max_new: int = 12, **values: Any) -> Decoder:
    """Samples from `model`, which ends an answer at each of ENDS."""
    model.module.generation_config.eos_token_id = ENDS
    return Decoder(model, TorchSampler(**values), max_new)


def greedy(decoder: Decoder, prompts: Sequence[list[int]], n: int = 1) -> list[Completion]:
    return decoder.sample(prompts, n, np.zeros(len(prompts) * n, np.uint64), 0.0)


def drawn(decoder: Decoder, prompts: Sequence[list[int]], n: int = 1, step: int = 1) -> list[Completion]:
    return decoder.sample(prompts, n, random_streams.stream_keys(0, step, range(len(prompts)), n), 1.0)


# ---- greedy


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "qwen3",
        "mistral",  # its cache forgets what is outside the window
        "gemma3_text",  # windows in some layers only
        "gpt2",  # positions are learnt: padding on the left must not shift them
        "mixtral",
        "lfm2",  # convolutions keep a state beside the cache
        "qwen3_5_text",  # linear attention keeps a state
    ],
)
def test_greedy_is_transformers_own(
    name: str, family: Callable[..., Any], ids: Ids, generated: Callable[..., list[int]]
) -> None:
    model, plain = family(name)
    prompts = ids(*LENGTHS)
    check_greedy(model, prompts, [generated(plain, prompt, 12, ENDS) for prompt in prompts])


def test_greedy_with_transformers_eager_attention(
    family: Callable[..., Any], ids: Ids, generated: Callable[..., list[int]]
) -> None:
    """In float32: transformers' eager attention makes NaN of left padding in float64."""
    model, plain = family("gemma2", torch.float32)
    prompts = ids(*LENGTHS)
    check_greedy(model, prompts, [generated(plain, prompt, 12, ENDS) for prompt in prompts])


def check_greedy(model: CausalLM, prompts: list[list[int]], expected: list[list[int]]) -> None:
    found = greedy(decoder(model, max_num_seqs=4), prompts)
    assert [answer.tokens for answer in found] == expected
    assert len({len(answer) for answer in expected}) > 1  # they end at different lengths, so rows leave the batch


def test_a_cache_that_it_would_ignore_is_refused(family: Callable[..., Any], ids: Ids) -> None:
    """Mamba calls its cache by another name, and takes `past_key_values` without a word."""
    model, _ = family("mamba")
    with pytest.raises(Problems, match="MambaForCausalLM keeps a cache of its own kind"):
        greedy(Decoder(model, TorchSampler(), 4), ids(3))


@pytest.mark.parametrize("n", [1, 3])
def test_siblings_of_a_greedy_answer_are_equal(n: int, tiny: Callable[..., CausalLM], ids: Ids) -> None:
    single = greedy(decoder(tiny()), ids(*LENGTHS))
    assert greedy(decoder(tiny()), ids(*LENGTHS), n) == [answer for answer in single for _ in range(n)]


# ---- what an answer may not depend on


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3_5_text"])
def test_an_answer_does_not_depend_on_its_company(name: str, family: Callable[..., Any], ids: Ids) -> None:
    model, _ = family(name)
    prompts, n = ids(*LENGTHS), 3
    keys = random_streams.stream_keys(7, 1, range(len(prompts)), n)
    whole = decoder(model).sample(prompts, n, keys, 1.0)
    assert len({len(answer.tokens) for answer in whole}) > 3

    order = np.random.RandomState(0).permutation(len(prompts))  # the batch in another order
    shuffled = decoder(model).sample(
        [prompts[i] for i in order], n, np.concatenate([keys[i * n : i * n + n] for i in order]), 1.0
    )
    assert [shuffled[place * n + k] for place in np.argsort(order) for k in range(n)] == whole

    for size in (1, 4, 7):  # fewer at a time; 1 is fewer than the answers to one prompt
        assert decoder(model, max_num_seqs=size).sample(prompts, n, keys, 1.0) == whole

    for count in (2, 3):  # spread over processes, every count-th prompt on each
        shares: dict[int, list[Completion]] = {}
        for rank in range(count):
            mine = list(range(len(prompts)))[rank::count]
            part = decoder(model).sample([prompts[i] for i in mine], n, random_streams.stream_keys(7, 1, mine, n), 1.0)
            shares |= {i: part[place * n : place * n + n] for place, i in enumerate(mine)}
        assert [answer for i in range(len(prompts)) for answer in shares[i]] == whole


def test_another_step_draws_other_answers(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    model = tiny()
    assert drawn(decoder(model), ids(5, 6), 4, step=1) == drawn(decoder(model), ids(5, 6), 4, step=1)
    assert drawn(decoder(model), ids(5, 6), 4, step=1) != drawn(decoder(model), ids(5, 6), 4, step=2)


def test_siblings_differ(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    found = drawn(decoder(tiny()), ids(5), 16)
    assert len({tuple(answer.tokens) for answer in found}) > 8


# ---- the distribution


def chi_square(count: Counter[int], probability: Tensor) -> tuple[float, int]:
    """Statistic and degrees of freedom; tokens expected less than 5 times are put together."""
    total = sum(count.values())
    seen = torch.tensor([count[token] for token in range(len(probability))], dtype=torch.float64)
    expected, rare = probability * total, probability * total < 5
    seen = torch.cat([seen[~rare], seen[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]]).clamp(min=1e-9)
    return ((seen - expected) ** 2 / expected).sum().item(), len(seen) - 1


@pytest.mark.parametrize(
    ("temperature", "tail"),
    [
        (1.0, {}),
        (0.5, {}),
        (2.0, {}),
        (1.0, {"top_k": 5}),
        (1.0, {"top_p": 0.6}),
        (2.0, {"top_k": 12, "top_p": 0.8}),
    ],
)
def test_sampled_tokens_follow_the_softmax(
    temperature: float, tail: dict[str, Any], family: Callable[..., Any], ids: Ids
) -> None:
    model, plain = family("llama")
    (prompt,), n = ids(5), 8000
    found = decoder(model, 1, max_num_seqs=n, **tail).sample(
        [prompt], n, random_streams.stream_keys(3, 1, [0], n), temperature
    )
    with torch.no_grad():
        logits = plain(input_ids=torch.tensor([prompt])).logits[0, -1]
    expected = kept_by_hand((logits / temperature).softmax(-1), **tail)
    count = Counter(answer.tokens[0] for answer in found)
    assert set(count) <= set(expected.nonzero()[:, 0].tolist())  # nothing from the tail
    statistic, freedom = chi_square(count, expected)
    assert freedom >= 3
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def kept_by_hand(probability: Tensor, top_k: int = -1, top_p: float = 1.0) -> Tensor:
    """Softmax without its tail, one token after the other."""
    ranked = sorted(range(len(probability)), key=lambda token: -probability[token])
    if top_k > 0:
        ranked = ranked[:top_k]
    whole, held, kept = sum(probability[token] for token in ranked), 0.0, []
    for token in ranked:
        if held >= top_p * whole:
            break
        kept.append(token)
        held += probability[token]
    out = torch.zeros_like(probability)
    out[kept] = probability[kept] / held
    return out


def test_the_second_token_follows_the_first(family: Callable[..., Any], ids: Ids) -> None:
    """Conditional on the commonest first token, so that numbers of one stream are not used twice."""
    model, plain = family("llama")
    (prompt,), n = ids(5), 8000
    found = decoder(model, 2, max_num_seqs=n).sample([prompt], n, random_streams.stream_keys(3, 1, [0], n), 1.0)
    first = next(token for token, _ in Counter(a.tokens[0] for a in found).most_common() if token not in ENDS)
    count = Counter(answer.tokens[1] for answer in found if answer.tokens[0] == first)
    with torch.no_grad():
        expected = plain(input_ids=torch.tensor([[*prompt, first]])).logits[0, -1].softmax(-1)
    statistic, freedom = chi_square(count, expected)
    assert freedom >= 3
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_top_k_one_is_greedy(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    model = tiny()
    assert drawn(decoder(model, top_k=1), ids(*LENGTHS)) == greedy(decoder(model), ids(*LENGTHS))


# ---- what it costs


def test_prompts_are_read_once_and_finished_answers_leave(
    tiny: Callable[..., CausalLM], ids: Ids, entering: Entering
) -> None:
    model = tiny()
    shapes = entering(model)
    found = drawn(decoder(model, max_new=12), ids(6, 6, 6), 4)
    lengths = [len(answer.tokens) for answer in found]
    assert len(set(lengths)) > 2
    assert shapes[0] == (3, 6)  # 3 prompts, not 3 x 4 rows
    steps = [sum(length > t for length in lengths) for t in range(1, 12)]  # who still needs token t + 1
    assert shapes[1:] == [(going, 1) for going in steps if going]


def test_at_most_max_num_seqs_answers_at_a_time(tiny: Callable[..., CausalLM], ids: Ids, entering: Entering) -> None:
    model = tiny()
    shapes = entering(model)
    drawn(decoder(model, max_num_seqs=6), ids(*LENGTHS), 2)
    assert max(rows for rows, tokens in shapes if tokens == 1) <= 6
    assert [rows for rows, tokens in shapes if tokens > 1] == [3, 3, 3, 1]  # 10 prompts, 2 answers each
    widths = [tokens for rows, tokens in shapes if tokens > 1]
    assert widths == sorted(widths) == [3, 6, 9, 9]  # like lengths together


def test_no_call_is_made_after_the_last_token(tiny: Callable[..., CausalLM], ids: Ids, entering: Entering) -> None:
    model = tiny()
    shapes = entering(model)
    greedy(decoder(model, max_new=1), ids(4, 5))
    assert shapes == [(2, 5)]


# ---- ends


def test_an_answer_ends_with_its_end_token_or_is_cut(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    found = drawn(decoder(tiny(), max_new=4), ids(*LENGTHS), 8)
    assert {answer.truncated for answer in found} == {True, False}
    for answer in found:
        assert not set(answer.tokens[:-1]) & set(ENDS)  # nothing after an end
        assert answer.truncated == (answer.tokens[-1] not in ENDS)
        assert len(answer.tokens) == 4 if answer.truncated else 1 <= len(answer.tokens) <= 4
    assert any(len(answer.tokens) == 4 and not answer.truncated for answer in found)  # ended just in time


def test_longer_limits_only_go_on_where_an_answer_was_cut(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    model = tiny()
    short, long = (drawn(decoder(model, max_new=limit), ids(*LENGTHS), 4) for limit in (3, 9))
    for a, b in zip(short, long, strict=True):
        assert b.tokens[: len(a.tokens)] == a.tokens
        assert a.truncated or a == b


def test_the_tokens_that_end_an_answer(tiny: Callable[..., CausalLM]) -> None:
    """The tokenizer's, and all that the model's generation settings name: Llama 3 and Qwen have several."""
    model = tiny()
    for named, expected in ((None, [1]), (1, [1]), (5, [1, 5]), ([7, 1, 9], [1, 7, 9]), ([5, 10**30], [1, 5])):
        model.module.generation_config.eos_token_id = named
        assert model.eos == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_that_the_tokenizer_does_not_have_are_never_sampled(
    temperature: float, tiny: Callable[..., CausalLM], ids: Ids
) -> None:
    """An output layer may have more rows."""
    model = tiny()
    keys = random_streams.stream_keys(0, 1, range(len(LENGTHS)), 4)
    largest = []
    for known in (model.vocabulary, 12):
        model.vocabulary = known
        found = decoder(model).sample(ids(*LENGTHS), 4, keys, temperature)
        largest.append(max(token for answer in found for token in answer.tokens))
    assert largest[0] > largest[1]
    assert largest[1] < 12


def test_texts_leave_out_the_end(tiny: Callable[..., CausalLM]) -> None:
    model = tiny()
    letters = model.tokenizer.convert_tokens_to_ids(list("ba, c"))
    found = decoder(model).texts(
        [Completion([*letters, 1], False), Completion(letters[:2], True), Completion([1], False)]
    )
    assert found == ["ba, c", "ba", ""]


def test_texts_show_special_tokens_that_end_nothing(tiny: Callable[..., CausalLM]) -> None:
    """A hidden one would let a wrong answer pass for right."""
    model = tiny()
    a, b = model.tokenizer.convert_tokens_to_ids(["a", "b"])
    assert decoder(model).texts([Completion([a, 0, b, 1], False), Completion([a, 2], True)]) == ["a<pad>b", "a<unk>"]


def test_sampling_leaves_the_model_without_gradient_and_dropout(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    model = tiny()
    model.module.train()
    greedy(decoder(model), ids(4))
    assert not model.module.training
    assert all(weight.grad is None for weight in model.module.parameters())


def test_no_prompts_no_answers(tiny: Callable[..., CausalLM]) -> None:
    assert drawn(decoder(tiny()), [], 4) == []
