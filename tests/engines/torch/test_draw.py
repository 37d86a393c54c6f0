"""One token out of a distribution: which tail is cut, and what a number of the unit interval draws."""

from __future__ import annotations

import pytest
import torch

from launcher.engines.torch.rollout.decode import _keep_top_k_top_p, sample_tokens


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        # probabilities: 0: 1/16, 1: 1/2, 2: 1/4, 3: 1/16, 4: 1/8
        (-1, 1.0, [0, 1, 2, 3, 4]),  # all
        (1, 1.0, [1]),
        (3, 1.0, [1, 2, 4]),
        (4, 1.0, [0, 1, 2, 3, 4]),  # 0 and 3 are equally likely: neither is the fourth, both stay
        (5, 1.0, [0, 1, 2, 3, 4]),
        (99, 1.0, [0, 1, 2, 3, 4]),  # more than there are
        (-1, 0.01, [1]),  # the likeliest always stays
        (-1, 0.5, [1]),  # it holds one half, which is enough
        (-1, 0.5001, [1, 2]),
        (-1, 0.75, [1, 2]),
        (-1, 0.875, [1, 2, 4]),
        (-1, 0.9, [0, 1, 2, 4]),  # one of two equals is needed: the first
        (-1, 0.95, [0, 1, 2, 3, 4]),
        (2, 0.6, [1]),  # of the 3/4 that two tokens hold, 1/2 is more than six tenths
        (2, 0.7, [1, 2]),
        (3, 0.85, [1, 2]),  # (1/2 + 1/4) / (7/8) = 0.857
        (3, 0.86, [1, 2, 4]),
    ],
)
def test_tails(top_k: int, top_p: float, kept: list[int]) -> None:
    probability = torch.tensor([[1 / 16, 1 / 2, 1 / 4, 1 / 16, 1 / 8]] * 2, dtype=torch.float64)
    found = _keep_top_k_top_p(probability, top_k, top_p)
    assert [row.nonzero()[:, 0].tolist() for row in found] == [kept, kept]
    assert torch.equal(found[0, kept], probability[0, kept])  # what stays is not changed; the draw divides


def test_of_equals_at_the_edge_the_first_stay() -> None:
    probability = torch.full((3, 64), 1 / 64, dtype=torch.float64)
    assert _keep_top_k_top_p(probability, -1, 0.25)[1].nonzero()[:, 0].tolist() == list(range(16))
    assert _keep_top_k_top_p(probability, 5, 1.0)[1].count_nonzero() == 64  # none is likelier than another


def test_a_row_is_cut_by_its_own_probabilities() -> None:
    probability = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.125, 0.125, 0.25, 0.5]], dtype=torch.float64)
    assert (_keep_top_k_top_p(probability, 2, 1.0) > 0).int().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert (_keep_top_k_top_p(probability, -1, 0.6) > 0).int().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("vocabulary", [3, 511, 512, 513, 2000])
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
