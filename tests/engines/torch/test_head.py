"""Log-probability and entropy out of hidden states: torch's own, in parts or whole, kept or made again."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from launcher.engines.torch.model import head
from launcher.engines.torch.model.head import TokenScores, token_scores

M, H, V = 7, 5, 11
TARGET = torch.tensor([0, 3, 10, 3, 7, 1, 9])


def drawn(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Hidden states and an output layer whose logits are far from equal."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((M, H), (V, H)))
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()


def plain(hidden: Tensor, weight: Tensor, temperature: float) -> TokenScores:
    logp = (hidden @ weight.T / temperature).log_softmax(-1)
    return TokenScores(logp.gather(1, TARGET[:, None])[:, 0], -(logp.exp() * logp).sum(-1))


def grads(scores: TokenScores, *inputs: Tensor) -> list[Tensor]:
    """Of a sum in which every token's log-probability and entropy counts for something else."""
    factors = torch.linspace(0.5, 2, M, dtype=scores.logp.dtype)
    return list(torch.autograd.grad((scores.logp * factors + scores.entropy * factors.flip(0)).sum(), inputs))


Cut = Callable[[int, int], None]


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Cut:
    """So many rows of logits at a time, and so many logits kept for the backward pass."""

    def be(rows: int, kept: int) -> None:
        monkeypatch.setattr(head, "LOGITS", rows * V)
        monkeypatch.setattr(head, "KEPT", kept)

    return be


@pytest.mark.parametrize("kept", [0, M * V])
@pytest.mark.parametrize("rows", [1, 3, 7, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.5])
def test_values_and_gradients_are_torchs(temperature: float, rows: int, kept: int, cut: Cut) -> None:
    cut(rows, kept)
    hidden, weight = drawn()
    found, expected = token_scores(hidden, weight, TARGET, temperature), plain(hidden, weight, temperature)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() <= 1e-14
    for ours, theirs in zip(grads(found, hidden, weight), grads(expected, hidden, weight), strict=True):
        assert (ours - theirs).abs().max() <= 1e-13


@pytest.mark.parametrize("kept", [0, M * V])
def test_gradcheck(kept: int, cut: Cut) -> None:
    cut(3, kept)
    hidden, weight = drawn()
    assert torch.autograd.gradcheck(lambda h, w: tuple(token_scores(h, w, TARGET, 0.7)), (hidden, weight))
    logits = (hidden @ weight.T).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: tuple(token_scores(z, None, TARGET, 0.7)), (logits,))


def test_ready_logits_are_left_as_they_are() -> None:
    hidden, weight = drawn()
    logits = (hidden @ weight.T).detach()
    before = logits.clone()
    found = token_scores(logits, None, TARGET, 0.7)
    assert torch.equal(logits, before)
    assert (found.logp - plain(hidden, weight, 0.7).logp).abs().max() <= 1e-14


def test_what_is_kept_and_what_is_made_again_is_the_same_to_the_last_bit(cut: Cut) -> None:
    found = []
    for kept in (0, M * V):
        cut(2, kept)
        hidden, weight = drawn(torch.float32)
        scores = token_scores(hidden, weight, TARGET, 0.9)
        found.append([*scores, *grads(scores, hidden, weight)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_only_so_many_logits_are_made_at_a_time(cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(3, 0)
    shapes, made = [], head._logits
    monkeypatch.setattr(head, "_logits", lambda *given: shapes.append(len(given[0])) or made(*given))
    hidden, weight = drawn()
    grads(token_scores(hidden, weight, TARGET), hidden, weight)
    assert shapes == [3, 3, 1, 3, 3, 1]  # forwards, and again backwards


def test_a_second_backward_pass_finds_the_same(cut: Cut) -> None:
    cut(3, M * V)
    hidden, weight = drawn()
    summed = sum(x.sum() for x in token_scores(hidden, weight, TARGET))
    first = torch.autograd.grad(summed, (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(summed, (hidden, weight))
    assert all((a - b).abs().max() <= 1e-15 for a, b in zip(first, again, strict=True))


def test_frozen_weights_get_no_gradient() -> None:
    hidden, weight = drawn()
    found = token_scores(hidden, weight.detach(), TARGET)
    assert torch.allclose(grads(found, hidden)[0], grads(plain(hidden, weight, 1.0), hidden)[0], atol=1e-13)


def test_entropy_that_is_not_asked_for_is_nothing() -> None:
    hidden, weight = drawn()
    found = token_scores(hidden, weight, TARGET, entropy=False)
    assert (found.entropy == 0).all()
    assert torch.equal(found.logp, token_scores(hidden, weight, TARGET).logp)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0], math.log(4)),  # no preference
        ([0.0, math.log(3)], math.log(4) - 0.75 * math.log(3)),  # 1/4 and 3/4: (ln 4) / 4 + 3/4 (ln 4 - ln 3)
        ([7.0, 7.0 + math.log(3)], math.log(4) - 0.75 * math.log(3)),  # a constant changes nothing
        ([0.0, 1000.0], 0.0),  # certain
        ([0.0, -math.inf, 0.0], math.log(2)),  # what has no probability has no share
        ([5.0], 0.0),
    ],
)
def test_entropy_by_hand(logits: list[float], expected: float) -> None:
    given = torch.tensor([logits] * 3, dtype=torch.float64, requires_grad=True)
    found = token_scores(given, None, torch.zeros(3, dtype=torch.long))
    assert found.entropy.tolist() == pytest.approx([expected] * 3, abs=1e-14)
    (grad,) = torch.autograd.grad((found.entropy + found.logp).sum(), given)
    assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_coarse_numbers_are_added_up_in_float32(dtype: torch.dtype) -> None:
    hidden, weight = drawn(dtype)
    found = token_scores(hidden, weight, TARGET, 0.7)
    logits = (hidden @ weight.T).float() / 0.7
    expected = torch.distributions.Categorical(logits=logits)
    assert found.logp.dtype == found.entropy.dtype == torch.float32
    assert (found.logp - expected.log_prob(TARGET)).abs().max() <= 1e-6
    assert (found.entropy - expected.entropy()).abs().max() <= 1e-6
    exact = grads(plain(hidden.double(), weight.double(), 0.7), hidden, weight)
    for ours, theirs in zip(grads(found, hidden, weight), exact, strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs.double()).abs().max() <= 0.05 * theirs.abs().max()


def test_nothing_predicted_is_nothing() -> None:
    hidden, weight = drawn()
    found = token_scores(hidden[:0], weight, TARGET[:0])
    assert found.logp.shape == found.entropy.shape == (0,)
    assert (torch.autograd.grad(found.logp.sum(), weight)[0] == 0).all()


def test_only_the_matrix_product_is_computed_in_the_number_format_of_autocast() -> None:
    hidden, weight = drawn(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, logits = token_scores(hidden, weight, TARGET), torch.nn.functional.linear(hidden, weight).float()
    logp = logits.log_softmax(-1)
    assert found.entropy.dtype == found.logp.dtype == torch.float32
    torch.testing.assert_close(found.entropy, -(logp.exp() * logp).sum(-1))
    torch.testing.assert_close(found.logp, logp.gather(1, TARGET[:, None])[:, 0])
