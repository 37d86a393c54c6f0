"""Attention over packed sequences, against softmax(q k / sqrt(d)) v written out for one token at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from launcher.engines.torch.model.attention import NO_MASK, Call, Layout, _mask, attention

D = 8  # of each head
Segments = tuple[tuple[int, int], ...]  # (count, length) of sequences that are computed together


def laid(segments: Segments) -> Layout:
    calls = tuple(Call(count, length) for count, length in segments)
    return Layout(calls, None, sum(count * length for count, length in segments))


def drawn(heads: int, shared: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    query = torch.randn(1, heads, tokens, D, dtype=torch.float64)
    key, value = torch.randn(2, 1, heads // shared, tokens, D, dtype=torch.float64)
    return query, key, value


def by_hand(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float, window: int | None
) -> Tensor:
    """[1, N, H, D], one head and one token at a time."""
    heads, shared = query.shape[1], query.shape[1] // key.shape[1]
    out = torch.zeros(1, query.shape[2], heads, D, dtype=torch.float64)
    begin = 0
    for count, length in segments:
        for _ in range(count):
            for head in range(heads):
                for place in range(begin, begin + length):
                    first = begin if window is None else max(begin, place + 1 - window)
                    keys, values = (
                        key[0, head // shared, first : place + 1],
                        value[0, head // shared, first : place + 1],
                    )
                    weight = (keys @ query[0, head, place] * scaling).softmax(0)
                    out[0, place, head] = weight @ values
            begin += length
    return out


@pytest.mark.parametrize("window", [None, 1, 2, 3, 5, 100])  # 1: a token sees itself only; 100: no limit in effect
@pytest.mark.parametrize("shared", [1, 2, 4])  # query heads that share a key head
@pytest.mark.parametrize(
    "segments",
    [
        ((1, 1),),  # a single token
        ((1, 5),),
        ((3, 4),),  # all of equal length
        ((2, 1), (1, 2), (3, 5)),
    ],
)
def test_each_sequence_sees_itself_only(segments: Segments, shared: int, window: int | None) -> None:
    query, key, value = drawn(4, shared, sum(count * length for count, length in segments))
    found, _ = attention(nn.Module(), query, key, value, NO_MASK, layout=laid(segments), sliding_window=window)
    expected = by_hand(query, key, value, segments, 1 / math.sqrt(D), window)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-13


def test_scaling_is_the_layers_own() -> None:
    query, key, value = drawn(4, 2, 7)
    segments = ((1, 3), (1, 4))
    found, _ = attention(nn.Module(), query, key, value, NO_MASK, layout=laid(segments), scaling=0.7)
    assert (found - by_hand(query, key, value, segments, 0.7, None)).abs().max() <= 1e-13


def test_another_sequences_tokens_change_nothing() -> None:
    query, key, value = drawn(4, 2, 7)
    whole, _ = attention(nn.Module(), query, key, value, NO_MASK, layout=laid(((1, 3), (1, 4))))
    key[:, :, :3], value[:, :, :3] = 9.0, -9.0
    other, _ = attention(nn.Module(), query, key, value, NO_MASK, layout=laid(((1, 3), (1, 4))))
    assert torch.equal(whole[:, 3:], other[:, 3:])
    assert not torch.equal(whole[:, :3], other[:, :3])


def test_what_is_not_packed_is_computed_under_its_mask() -> None:
    """A mask that leaves one key out is obeyed: this is the way that decoding takes."""
    query, key, value = drawn(4, 1, 4)
    query = query[:, :, -1:]
    mask = torch.tensor([[[[False, True, True, True]]]])  # the first is padding
    found, _ = attention(nn.Module(), query, key, value, mask, sliding_window=2)  # the mask says it all
    expected = by_hand(query=torch.cat([query] * 3, 2), key=key[:, :, 1:], value=value[:, :, 1:],
                       segments=((1, 3),), scaling=1 / math.sqrt(D), window=None)  # fmt: skip
    assert (found[:, 0] - expected[:, -1]).abs().max() <= 1e-13


@pytest.mark.parametrize(
    ("length", "seen", "window", "expected"),
    [
        (3, 3, None, None),  # no window: the causal kernel, without a mask
        (3, 3, 3, None),  # every earlier token is near enough
        (3, 3, 4, None),
        (3, 3, 1, [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        (4, 4, 2, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]),
        (2, 4, None, [[1, 1, 1, 0], [1, 1, 1, 1]]),  # two tokens behind a shared prompt of two
        (2, 4, 2, [[0, 1, 1, 0], [0, 0, 1, 1]]),
        (1, 4, 9, [[1, 1, 1, 1]]),
    ],
)
def test_mask(length: int, seen: int, window: int | None, expected: list[list[int]] | None) -> None:
    found = _mask(length, seen, window, torch.device("cpu"))
    assert (found if found is None else found.int().tolist()) == expected


@pytest.mark.parametrize("window", [None, 1, 2, 4])
@pytest.mark.parametrize("shared", [1, 2, 4])
def test_a_shared_prompt_is_what_a_prompt_of_ones_own_would_be(shared: int, window: int | None) -> None:
    """Two prompts of 3 tokens; of four answers the first, third and fourth stand behind the second prompt."""
    layout = Layout((Call(2, 3), Call(4, 2, 0, torch.tensor([1, 0, 1, 1]))), None, 14)
    query, key, value = drawn(4, shared, 14)
    found, _ = attention(nn.Module(), query, key, value, NO_MASK, layout=layout, sliding_window=window)
    for prompt, begin in ((3, 6), (0, 8), (3, 10), (3, 12)):
        places = [prompt, prompt + 1, prompt + 2, begin, begin + 1]
        single = by_hand(*(x[:, :, places] for x in (query, key, value)), ((1, 5),), 1 / math.sqrt(D), window)
        assert (found[0, places] - single[0]).abs().max() <= 1e-13


def test_empty_places_take_part_in_nothing() -> None:
    """Sequences of 3 and 2 tokens in a call of 3 places, whose last holds nothing."""
    layout = Layout((Call(2, 3),), torch.tensor([0, 1, 2, 3, 4]), 6)
    query, key, value = drawn(4, 2, 5)
    found, _ = attention(nn.Module(), query, key, value, NO_MASK, layout=layout)
    expected = by_hand(query, key, value, ((1, 3), (1, 2)), 1 / math.sqrt(D), None)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-13


def test_gradient() -> None:
    query, key, value = drawn(2, 2, 6)
    inputs = [x.requires_grad_() for x in (query, key, value)]
    layouts = (laid(((2, 1), (1, 4))), Layout((Call(1, 2), Call(2, 3, 0, torch.tensor([0, 0]))),
               torch.tensor([0, 1, 2, 3, 4, 5]), 8))  # fmt: skip  # the second's last answer has one token

    for layout in layouts:

        def packed(*given: Tensor, layout: Layout = layout) -> Tensor:
            return attention(nn.Module(), *given, NO_MASK, layout=layout, sliding_window=2)[0]

        assert torch.autograd.gradcheck(packed, inputs)
