"""Packed rows give every token the log-probability that it has when its sequence is read alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from launcher.engines.torch.model.attention import NAME, Call
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.model.packing import pack
from launcher.spec.algorithm import Batch
from launcher.text.tokenizer import character_tokenizer

LENGTHS = (9, 3, 5, 9, 4, 7, 2)  # unsorted, some equal, all but two longer than the sliding windows of 3


def test_by_hand() -> None:
    """Rows abc, de, fgh with `-` as padding; answers are bc, e, and the h that follows an unlooked-at g."""
    a, b, c, d, e, f, g, h = range(10, 18)
    batch = Batch(
        tokens=torch.tensor([[a, b, c], [d, e, 0], [f, g, h]]),
        length=torch.tensor([3, 2, 3]),
        mask=torch.tensor([[0, 1, 1], [0, 1, 0], [0, 0, 1]]),
    )
    packed = pack(batch)
    assert packed.ids.tolist() == [[a, b, c, f, g, h, d, e]]  # longest first, then in the batch's order
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1, 2, 0, 1]]
    assert packed.layout.calls == (Call(3, 3),)  # short ones are computed in one call
    assert (packed.layout.size, packed.layout.places.tolist()) == (9, [0, 1, 2, 3, 4, 5, 6, 7])  # de's third is empty
    assert packed.source.tolist() == [0, 1, 6, 4]  # the places of a, b, d, g: each before a predicted token
    assert packed.target.tolist() == [b, c, e, h]
    assert list(zip(packed.row.tolist(), packed.column.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 1), (2, 2)]
    assert packed.unpack(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [[0, 1, 2], [0, 3, 0], [0, 0, 4]]


def test_the_first_token_is_never_predicted() -> None:
    batch = Batch(torch.tensor([[5, 6]]), torch.tensor([2]), torch.tensor([[1, 1]]))
    packed = pack(batch)
    assert (packed.source.tolist(), packed.target.tolist(), packed.column.tolist()) == ([0], [6], [1])


def test_where_calls_must_be_of_equal_length_none_is_padded() -> None:
    batch = Batch(torch.ones(3, 3, dtype=torch.long), torch.tensor([3, 2, 3]), torch.tensor([[0, 1, 1]] * 3))
    batch.mask[1, 2] = 0
    packed = pack(batch, ragged=False)
    assert packed.layout.calls == (Call(2, 3), Call(1, 2))
    assert packed.layout.places is None


@pytest.mark.parametrize("lengths", [(200, 199, 160, 149, 70, 65, 64, 30, 3)])
def test_long_sequences_are_padded_little_and_short_ones_share_a_call(lengths: tuple[int, ...]) -> None:
    """A call's padding is at most a quarter where sequences are longer than 64 tokens."""
    places = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    packed = pack(Batch(torch.zeros_like(places).long(), torch.tensor(lengths), places.double()))
    assert packed.layout.calls == (Call(3, 200), Call(1, 149), Call(3, 70), Call(2, 30))
    assert sorted(packed.layout.places.tolist()) == packed.layout.places.tolist()
    assert len(packed.layout.places) == sum(lengths)


def test_rows_without_answer_are_left_out_and_predict_nothing(
    tiny: Callable[..., CausalLM], ids: Callable[..., list[list[int]]], batch_of: Callable[..., Batch]
) -> None:
    model = tiny()
    batch = batch_of(model, ids(4, 9, 2), prompt=4)  # only the second has an answer
    packed = model.pack(batch)
    assert packed.ids.tolist() == [batch.tokens[1].tolist()]
    found = model(packed, entropy=True)
    for values in found:
        assert values.shape == batch.tokens.shape
        assert (values[[0, 2]] == 0).all() and (values[1, 4:] != 0).all()
    found.logp.sum().backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize(
    ("name", "packs"),
    [
        ("llama", True),  # grouped heads: 4 share 2
        ("qwen2", True),
        ("qwen3", True),
        ("mistral", True),  # a window shorter than the sequences, in every layer
        ("gemma3_text", True),  # windows in some layers
        ("gpt2", True),  # positions are learnt, no rotation
        ("phi3", True),  # query, key and value from one matrix
        ("olmo2", True),
        ("mixtral", True),  # experts see tokens, not sequences
        ("qwen3_moe", True),
        ("gemma2", False),  # capped attention is not in torch's function
        ("nemotron", False),  # adds the mask to the scores itself
        ("llama4_text", False),  # attention in chunks of 6, which the attention function is not told
        ("mamba", False),  # a state that runs on from one sequence into the next
        ("lfm2", False),  # convolutions that reach over the border
        ("qwen3_5_text", False),  # linear attention
    ],
)
def test_packed_is_what_each_sequence_is_alone(
    name: str,
    packs: bool,
    family: Callable[..., Any],
    ids: Callable[..., list[list[int]]],
    batch_of: Callable[..., Batch],
    logp_alone: Callable[..., torch.Tensor],
) -> None:
    model, plain = family(name)
    assert model.supports_packing == packs
    sequences = ids(*LENGTHS)
    with torch.no_grad():
        found = model(model.pack(batch_of(model, sequences))).logp
    for row, sequence in zip(found, sequences, strict=True):
        assert row[0] == 0
        assert (row[1 : len(sequence)] - logp_alone(plain, sequence)).abs().max() <= NEAR.get(name, 1e-10)
        assert (row[len(sequence) :] == 0).all()


NEAR = {"qwen3_5_text": 1e-5, "mamba": 1e-5}  # transformers runs their state in float32, whatever the weights are


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3_moe", "mamba"])
def test_the_gradient_too(
    name: str,
    family: Callable[..., Any],
    ids: Callable[..., list[list[int]]],
    batch_of: Callable[..., Batch],
) -> None:
    model, plain = family(name)
    sequences = ids(*LENGTHS)
    model(model.pack(batch_of(model, sequences, prompt=2))).logp.sum().backward()
    for sequence in sequences:
        tokens = torch.tensor([sequence])
        logp = plain(input_ids=tokens, use_cache=False).logits[0, :-1].log_softmax(-1)
        logp.gather(1, tokens[0, 1:, None])[1:].sum().backward()  # token 1 belongs to the prompt of 2
    ours, theirs = dict(model.module.named_parameters()), dict(plain.named_parameters())
    for weight in ours:
        assert torch.allclose(ours[weight].grad, theirs[weight].grad, rtol=1e-8, atol=NEAR.get(name, 1e-10)), weight


def test_the_value_at_column_t_is_that_of_token_t_given_those_before_it(
    family: Callable[..., Any], ids: Callable[..., list[list[int]]], batch_of: Callable[..., Batch]
) -> None:
    """Each prefix is read by itself, so that no shift of a whole row can hide."""
    model, plain = family("llama")
    sequences = ids(6, 4)
    with torch.no_grad():
        found = model(model.pack(batch_of(model, sequences, prompt=2))).logp
        for row, sequence in zip(found, sequences, strict=True):
            for t in range(2, len(sequence)):
                next_token = plain(input_ids=torch.tensor([sequence[:t]])).logits[0, -1].log_softmax(-1)
                assert row[t].item() == pytest.approx(next_token[sequence[t]].item(), abs=1e-12)
            assert row[:2].tolist() == [0, 0]


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_padding_never_reaches_the_model(
    name: str,
    family: Callable[..., Any],
    ids: Callable[..., list[list[int]]],
    batch_of: Callable[..., Batch],
    entering: Callable[..., list[tuple[int, int]]],
) -> None:
    model, _ = family(name)
    batch = batch_of(model, ids(*LENGTHS))
    shapes = entering(model)
    with torch.no_grad():
        model(model.pack(batch))
    assert sum(rows * tokens for rows, tokens in shapes) == sum(LENGTHS)  # of 7 x 9 = 63 places, 39
    if model.supports_packing:
        assert shapes == [(1, sum(LENGTHS))]
    else:
        assert sorted(shapes) == [(1, 2), (1, 3), (1, 4), (1, 5), (1, 7), (2, 9)]  # equal lengths together


def test_what_stands_in_the_padding_does_not_matter(
    tiny: Callable[..., CausalLM], ids: Callable[..., list[list[int]]], batch_of: Callable[..., Batch]
) -> None:
    model = tiny()
    batch = batch_of(model, ids(*LENGTHS))
    other = Batch(batch.tokens.clone(), batch.length, batch.mask)
    other.tokens[torch.arange(9) >= batch.length[:, None]] = 17
    with torch.no_grad():
        assert torch.equal(model(model.pack(batch)).logp, model(model.pack(other)).logp)


def test_only_predicted_tokens_take_part_in_the_vocabulary(
    tiny: Callable[..., CausalLM], ids: Callable[..., list[list[int]]], batch_of: Callable[..., Batch]
) -> None:
    """The widest tensor of a step has one row for each answer token and none for prompts."""
    model = tiny()
    with torch.no_grad():
        packed = model.pack(batch_of(model, ids(9, 5), prompt=4))
        assert model.hidden(packed).shape == (5 + 1, 32)
        assert model.logits(packed).shape == (5 + 1, 48)


def test_temperature_divides_the_logits(
    family: Callable[..., Any], ids: Callable[..., list[list[int]]], batch_of: Callable[..., Batch]
) -> None:
    model, plain = family("llama")
    (sequence,) = ids(6)
    with torch.no_grad():
        found = model(model.pack(batch_of(model, [sequence])), 0.7).logp
        logits = plain(input_ids=torch.tensor([sequence])).logits[0, :-1]
    expected = (logits / 0.7).log_softmax(-1).gather(1, torch.tensor(sequence)[1:, None])[:, 0]
    assert torch.allclose(found[0, 1:], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_probabilities_are_float32_where_weights_are_coarser(
    dtype: torch.dtype, family: Callable[..., Any], ids: Callable[..., list[list[int]]], batch_of: Callable[..., Batch]
) -> None:
    model, _ = family("llama", dtype)
    assert model.supports_packing
    with torch.no_grad():
        found = model(model.pack(batch_of(model, ids(*LENGTHS)))).logp
    assert found.dtype == torch.float32


def test_a_model_without_our_attention_takes_the_other_way(ids: Callable[..., list[list[int]]]) -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4
    )
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    assert not CausalLM(module, character_tokenizer("abc")).supports_packing
    module.set_attn_implementation(NAME)
    assert CausalLM(module, character_tokenizer("abc")).supports_packing
