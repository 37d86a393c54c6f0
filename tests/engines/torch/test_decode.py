"""Sampling: the answers of transformers, whatever they are computed together with, by random streams of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from families import entering, family, generated, ids, tiny

from launcher.core.problems import Problems
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.decode import Decoder, _keep_top_k_top_p, sample_tokens
from launcher.engines.torch.rollout.generator import Request, make_requests
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.spec.episode import Turn

Ids = Callable[..., list[list[int]]]
Entering = Callable[[CausalLM], list[tuple[int, int]]]

LENGTHS = (9, 3, 5, 9, 4, 7, 1, 2, 6, 8)
ENDS = list(range(1, 9))  # tokens that end an answer: many, so that answers end early and at different lengths


def decoder(model: CausalLM, max_new: int = 12, **values: Any) -> Decoder:
    """Samples from `model`, which ends an answer at each of ENDS."""
    model.module.generation_config.eos_token_id = ENDS
    return Decoder(model, TorchSampler(**values), max_new)


def answered(decoder: Decoder, prompts: Sequence[list[int]], keys: np.ndarray, temperature: float) -> list[Turn]:
    return [episode.turns[0] for episode in decoder.answer(make_requests(prompts, keys), temperature)]


# ---- greedy


# the cache of mistral forgets what is outside the window, gpt2 learns positions, which padding on the left must not
# shift, and the linear attention of qwen3.5 keeps a state
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "mixtral", "qwen3_5_text"])
def test_greedy_is_transformers_own(name: str) -> None:
    model, plain = family(name)
    prompts = ids(*LENGTHS)
    expected = [generated(plain, prompt, 12, ENDS) for prompt in prompts]
    found = answered(decoder(model, max_num_seqs=4), prompts, np.zeros(len(prompts), np.uint64), 0.0)
    assert [answer.tokens for answer in found] == expected
    assert [answer.stop for answer in found] == ["end" if answer[-1] in ENDS else "length" for answer in expected]
    assert len({len(answer) for answer in expected}) > 1  # they end at different lengths, so rows leave the batch


def test_a_cache_that_it_would_ignore_is_refused() -> None:
    """Mamba calls its cache by another name, and takes `past_key_values` without a word."""
    model, _ = family("mamba")
    with pytest.raises(Problems, match="MambaForCausalLM keeps a cache of its own kind"):
        answered(Decoder(model, TorchSampler(), 4), ids(3), np.zeros(1, np.uint64), 0.0)


# ---- earlier turns


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "qwen3_5_text"])
def test_a_later_turn_is_the_one_of_the_whole_prompt_and_earlier_turns_are_computed_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns of several lengths, in batches of their own, with an observation after each."""
    model, _ = family(name)
    kept = name in ("llama", "gpt2")  # a window and a recurrent state cannot be cut
    prompts, seen = ids(*LENGTHS), ids(*(length % 4 + 1 for length in LENGTHS))
    keys = random_streams.stream_keys(0, 1, range(len(prompts)), 1)
    asking, whole = decoder(model, 50, max_num_seqs=4), decoder(model, 50)
    asking.prefixes.most = len(prompts)
    sizes = list[int]()
    forward = asking._forward
    monkeypatch.setattr(asking, "_forward", lambda ids, *more: (sizes.append(ids.shape[1]), forward(ids, *more))[1])
    going = [Request(prompt, key, goes_on=True) for prompt, key in zip(prompts, keys[:, None], strict=True)]
    for turn in range(3):
        sizes.clear()
        found = [episode.turns[0].tokens for episode in asking.answer(going, 1.0)]
        plain = whole.answer([replace(request, goes_on=False) for request in going], 1.0)
        assert found == [episode.turns[0].tokens for episode in plain]
        new = max(map(len, seen)) + 1 if kept and turn else max(len(request.prompt) for request in going)
        assert max(sizes) == new
        assert len(asking.prefixes.kept) >= kept * len(going)
        texts = [request.prompt + answer + more for request, answer, more in zip(going, found, seen, strict=False)]
        going = [
            replace(request, prompt=text, answered=request.answered + len(text) - len(request.prompt))
            for request, text in zip(going, texts, strict=True)
        ]
        going = [request for request in going if request.answered < 50]
    for key in keys:
        asking.forget(key)
    assert not asking.prefixes.kept and not asking.prefixes.held
    asking.prefixes.most_bytes = 1
    assert len(asking.answer([Request(prompts[0], keys[:1], goes_on=True)], 1.0)) == 1
    assert not asking.prefixes.kept  # there is no room


# ---- what an answer may not depend on


def test_an_answer_does_not_depend_on_its_company() -> None:
    model, _ = family("llama")
    prompts, n = ids(*LENGTHS), 3
    keys = random_streams.stream_keys(7, 1, range(len(prompts)), n)
    whole = answered(decoder(model), prompts, keys, 1.0)
    assert len({len(answer.tokens) for answer in whole}) > 3

    order = np.random.RandomState(0).permutation(len(prompts))  # the batch in another order
    shuffled = answered(
        decoder(model), [prompts[i] for i in order], np.concatenate([keys[i * n : i * n + n] for i in order]), 1.0
    )
    assert [shuffled[place * n + k] for place in np.argsort(order) for k in range(n)] == whole

    for size in (1, 7):  # fewer at a time; 1 is fewer than the answers to one prompt
        assert answered(decoder(model, max_num_seqs=size), prompts, keys, 1.0) == whole


# ---- the distribution


def test_a_token_is_drawn_from_what_the_tail_leaves_of_the_softmax() -> None:
    """By the number of its place in the answer's stream; each token in turn, as transformers reads what is before."""
    model, plain = family("llama")
    (prompt,), keys = ids(5), random_streams.stream_keys(3, 1, [0], 40)
    answers = answered(decoder(model, 4, top_k=12, top_p=0.8), [prompt], keys, 2.0)
    assert len({tuple(answer.tokens) for answer in answers}) > 20
    for key, answer in zip(keys, answers, strict=True):
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([prompt + answer.tokens[:-1]])).logits[0, len(prompt) - 1 :]
        left = _keep_top_k_top_p((logits.float() / 2.0).softmax(-1), 12, 0.8)  # [T, V]
        u = [random_streams.uniform(np.array([key]), t) for t in range(len(left))]
        assert sample_tokens(left, torch.tensor(np.array(u))).tolist() == answer.tokens


# ---- what it costs


def test_prompts_are_read_once_and_finished_answers_leave() -> None:
    model = tiny()
    shapes = entering(model)
    found = answered(decoder(model), ids(6, 6, 6), random_streams.stream_keys(0, 1, range(3), 4), 1.0)
    lengths = [len(answer.tokens) for answer in found]
    assert len(set(lengths)) > 2
    assert shapes[0] == (3, 6)  # 3 prompts, not 3 x 4 rows
    steps = [sum(length > t for length in lengths) for t in range(1, 12)]  # who still needs token t + 1
    assert shapes[1:] == [(going, 1) for going in steps if going]


def test_at_most_max_num_seqs_answers_at_a_time() -> None:
    model = tiny()
    shapes = entering(model)
    answered(decoder(model, max_num_seqs=6), ids(*LENGTHS), random_streams.stream_keys(0, 1, range(10), 2), 1.0)
    assert max(rows for rows, tokens in shapes if tokens == 1) <= 6
    assert [rows for rows, tokens in shapes if tokens > 1] == [3, 3, 3, 1]  # 10 prompts, 2 answers each
    widths = [tokens for rows, tokens in shapes if tokens > 1]
    assert widths == sorted(widths) == [3, 6, 9, 9]  # like lengths together


# ---- ends


def test_the_tokens_that_end_an_answer() -> None:
    """The tokenizer's, and all that the model's generation settings name: Llama 3 and Qwen have several."""
    model = tiny()
    for named, expected in ((None, [1]), (1, [1]), (5, [1, 5]), ([7, 1, 9], [1, 7, 9]), ([5, 10**30], [1, 5])):
        model.module.generation_config.eos_token_id = named
        assert model.eos == expected


def test_ids_that_the_tokenizer_does_not_have_are_never_sampled() -> None:
    """An output layer may have more rows."""
    model = tiny()
    keys = random_streams.stream_keys(0, 1, range(len(LENGTHS)), 4)
    largest = []
    for known in (model.vocabulary, 12):
        model.vocabulary = known
        found = answered(decoder(model), ids(*LENGTHS), keys, 1.0)
        largest.append(max(token for answer in found for token in answer.tokens))
    assert largest[0] > largest[1]
    assert largest[1] < 12


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        # probabilities: 0: 1/16, 1: 1/2, 2: 1/4, 3: 1/16, 4: 1/8
        (-1, 1.0, [0, 1, 2, 3, 4]),  # all
        (3, 1.0, [1, 2, 4]),
        (4, 1.0, [0, 1, 2, 3, 4]),  # 0 and 3 are equally likely: neither is the fourth, both stay
        (-1, 0.01, [1]),  # the likeliest always stays
        (-1, 0.5, [1]),  # it holds one half, which is enough
        (-1, 0.5001, [1, 2]),
        (-1, 0.9, [0, 1, 2, 4]),  # one of two equals is needed: the first
        (2, 0.6, [1]),  # of the 3/4 that two tokens hold, 1/2 is more than six tenths
        (3, 0.86, [1, 2, 4]),
    ],
)
def test_tails(top_k: int, top_p: float, kept: list[int]) -> None:
    """Each row by its own probabilities."""
    certain = [0.0, 0.0, 0.0, 0.0, 1.0]
    probability = torch.tensor([[1 / 16, 1 / 2, 1 / 4, 1 / 16, 1 / 8], certain], dtype=torch.float64)
    found = _keep_top_k_top_p(probability, top_k, top_p)
    assert [row.nonzero()[:, 0].tolist() for row in found] == [kept, [4]]
    assert torch.equal(found[0, kept], probability[0, kept])  # what stays is not changed; the draw divides


@pytest.mark.parametrize("vocabulary", [3, 512, 513])
def test_drawn_is_the_inverse_of_the_cumulative_probability(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    probability = torch.rand(64, vocabulary, generator=generator)
    probability[:, 1::3] = 0  # never drawn
    u = torch.rand(64, 1, generator=generator, dtype=torch.double)
    below = probability.double().cumsum(-1)
    expected = torch.searchsorted(below, u * below[:, -1:], right=True)[:, 0]
    assert torch.equal(sample_tokens(probability, u), expected)


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_unit_interval_draw_tokens_that_have_a_probability(u: float) -> None:
    probability = torch.zeros(3, 1300)
    probability[0, 700], probability[1, [5, 1024]], probability[2, :9] = 1e-30, 0.1, 0.3
    ends = [700, 5 if u == 0 else 1024, 0 if u == 0 else 8]
    assert sample_tokens(probability, torch.full((3, 1), u, dtype=torch.double)).tolist() == ends


def test_values_that_must_never_change() -> None:
    """A run that is taken up again, on another version or machine, goes on with the same numbers."""
    keys = [10414705469639538944, 7321041570023861665, 8835303392297807559, 739540530424548021]
    numbers = [0.9882325828543107, 0.7328555069214936, 0.30054358586781604, 0.3435523631675492]
    assert random_streams.stream_keys(0, 1, [0, 1], 2).tolist() == keys
    assert random_streams.uniform(np.array(keys, dtype=np.uint64), 5).tolist() == numbers
    assert random_streams.row_order(0, 0, 8).tolist() == [2, 6, 0, 4, 1, 3, 5, 7]
    assert random_streams.dropout_seed(0, 1, 0) == 303818263549333747
