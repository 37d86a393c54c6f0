"""Packed sequences and shared prompts: each token is what it is when its row is read alone; its scores are torch's."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import jobs
import pytest
import torch
from families import entering, family, ids, logp_alone, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import batch_of
from torch import Tensor

from launcher.engines.torch.model import head
from launcher.engines.torch.model.attention import Call
from launcher.engines.torch.model.head import TokenScores, token_scores
from launcher.engines.torch.model.packing import pack
from launcher.engines.torch.train.batching import Limits, best_fit, collate, micro_batches, split_to_count
from launcher.spec.algorithm import Batch

LENGTHS = (9, 3, 5, 9, 4, 7, 2)  # unsorted, some equal, all but two longer than the sliding windows of 3


def test_long_sequences_are_padded_little_and_short_ones_share_a_call() -> None:
    """A call's padding is at most a quarter where sequences are longer than 64 tokens."""
    lengths = (200, 199, 160, 149, 70, 65, 64, 30, 3)
    places = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    packed = pack(Batch(torch.zeros_like(places).long(), torch.tensor(lengths), places.double()))
    assert packed.layout.calls == (Call(3, 200), Call(1, 149), Call(3, 70), Call(2, 30))
    assert sorted(packed.layout.places.tolist()) == packed.layout.places.tolist()
    assert len(packed.layout.places) == sum(lengths)


@pytest.mark.parametrize(
    ("name", "packs"),
    [
        ("llama", True),  # grouped heads: 4 share 2
        ("mistral", True),  # a window shorter than the sequences, in every layer
        ("gpt2", True),  # positions are learnt, no rotation
        ("granite", True),  # scores are scaled by a setting
        ("mixtral", True),  # experts see tokens, not sequences
        ("gemma2", False),  # capped attention is not in torch's function
        ("nemotron", False),  # adds the mask to the scores itself
        ("llama4_text", False),  # attention in chunks of 6, which the attention function is not told
        ("mamba", False),  # a state that runs on from one sequence into the next
    ],
)
def test_packed_is_what_each_sequence_is_alone(name: str, packs: bool) -> None:
    """And padding never reaches the model: sequences stand in one row, or equal lengths together."""
    model, plain = family(name)
    assert model.supports_packing == packs
    sequences, shapes = ids(*LENGTHS), entering(model)
    batch = collate([jobs.written(row, [0] + [1] * (len(row) - 1)) for row in sequences], model)
    with torch.no_grad():
        found = model(model.pack(batch)).logp
    assert sorted(shapes) == ([(1, 39)] if packs else [(1, 2), (1, 3), (1, 4), (1, 5), (1, 7), (2, 9)])
    for row, sequence in zip(found, sequences, strict=True):
        assert row[0] == 0
        assert (row[1 : len(sequence)] - logp_alone(plain, sequence)).abs().max() <= NEAR.get(name, 1e-10)
        assert (row[len(sequence) :] == 0).all()


NEAR = {"mamba": 1e-5}  # transformers runs its state in float32, whatever the weights are


Ids = Callable[..., list[list[int]]]


def grouped(groups: Sequence[tuple[int, Sequence[int]]]) -> Batch:
    """Of each (prompt length, answer lengths) the answers to one prompt."""
    rows = list[tuple[int, list[int], int]]()
    for number, (prompt_length, answers) in enumerate(groups):
        prompt, *found = ids(prompt_length, *answers, seed=number)
        rows += [(number, prompt + answer, prompt_length) for answer in found]
    return batch_of(rows)


GROUPS = ((6, (3, 5, 1, 4)), (2, (7,)), (6, (2, 2)), (9, (1, 1, 6)))


def irregular(batch: Batch) -> Batch:
    """A tool's words inside an answer, and one answer whose first words are not looked at, so it opens later; rows of
    which nothing is predicted, one of a family, and the only one of its group; two rows of a group with another
    prompt."""
    batch.mask[0, 7] = batch.mask[9, 11] = batch.mask[5, 6] = batch.mask[1] = batch.mask[4] = 0
    batch.tokens[2:4, :6] = torch.tensor(ids(6, seed=99)[0])
    return batch


def without_groups(batch: Batch) -> Batch:
    return Batch(batch.tokens, batch.length, batch.mask)


def one_group(batch: Batch) -> Batch:
    """All rows are called one group, though most prompts differ."""
    return Batch(batch.tokens, batch.length, batch.mask, torch.zeros(len(batch), dtype=torch.long))


@pytest.mark.parametrize(("name", "ragged"), [("mistral", True), ("qwen3", False)])  # a window of 3; norms of heads
@pytest.mark.parametrize("case", [irregular, without_groups, one_group], ids=lambda case: case.__name__)
def test_rows_are_what_they_are_alone(
    name: str, case: Callable[..., Batch], ragged: bool, exact: Callable[..., None]
) -> None:
    model, plain = family(name)
    exact(model, plain)
    batch = case(grouped(GROUPS))
    weight = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    packed = pack(batch, ragged=ragged)
    predicted = batch.mask.any(1)
    assert (packed.ids.shape[1] < batch.length[predicted].sum()) == (case is not without_groups)  # it does share
    found = model(packed).logp
    (found * weight).sum().backward()
    for row in predicted.nonzero()[:, 0].tolist():
        tokens, answer = batch.tokens[row, : batch.length[row]], batch.mask[row, : batch.length[row]]
        logp = plain(input_ids=tokens[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        logp = logp.gather(1, tokens[1:, None])[:, 0] * answer[1:]
        assert (found[row, 1 : len(tokens)] - logp).abs().max() <= 1e-12
        (logp * weight[row, 1 : len(tokens)]).sum().backward()
    theirs = dict(plain.named_parameters())
    for weight_name, ours in model.module.named_parameters():
        assert torch.allclose(ours.grad, theirs[weight_name].grad, rtol=1e-10, atol=1e-12), weight_name
    assert (found[batch.mask == 0] == 0).all()


@pytest.mark.parametrize(("dtype", "shares"), [("float64", False), ("float32", True), ("bfloat16", True)])
def test_a_model_shares_but_in_float64(dtype: str, shares: bool) -> None:
    batch = grouped(GROUPS)
    assert (tiny(dtype=dtype).pack(batch).ids.shape[1] < batch.length.sum()) == shares


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


@pytest.mark.parametrize(
    ("temperature", "rows", "kept"), [(0.7, 1, 0), (2.5, 3, 0), (0.7, 3, M * V), (2.5, 7, M * V), (1.0, 100, 0)]
)
def test_values_and_gradients_are_torchs(temperature: float, rows: int, kept: int, cut: Cut) -> None:
    cut(rows, kept)
    hidden, weight = drawn()
    found, expected = token_scores(hidden, weight, TARGET, temperature), plain(hidden, weight, temperature)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() <= 1e-14
    for ours, theirs in zip(grads(found, hidden, weight), grads(expected, hidden, weight), strict=True):
        assert (ours - theirs).abs().max() <= 1e-13


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([0.0, math.log(3)], math.log(4) - 0.75 * math.log(3)),  # 1/4 and 3/4: (ln 4) / 4 + 3/4 (ln 4 - ln 3)
        ([0.0, 1000.0], 0.0),  # certain
        ([0.0, -math.inf, 0.0], math.log(2)),  # what has no probability has no share
    ],
)
def test_entropy_by_hand(logits: list[float], expected: float) -> None:
    given = torch.tensor([logits] * 3, dtype=torch.float64, requires_grad=True)
    found = token_scores(given, None, torch.zeros(3, dtype=torch.long))
    assert found.entropy.tolist() == pytest.approx([expected] * 3, abs=1e-14)
    (grad,) = torch.autograd.grad((found.entropy + found.logp).sum(), given)
    assert grad.isfinite().all()


def test_coarse_numbers_are_added_up_in_float32() -> None:
    dtype = torch.bfloat16
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


def test_only_the_matrix_product_is_computed_in_the_number_format_of_autocast() -> None:
    hidden, weight = drawn(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, logits = token_scores(hidden, weight, TARGET), torch.nn.functional.linear(hidden, weight).float()
    logp = logits.log_softmax(-1)
    assert found.entropy.dtype == found.logp.dtype == torch.float32
    torch.testing.assert_close(found.entropy, -(logp.exp() * logp).sum(-1))
    torch.testing.assert_close(found.logp, logp.gather(1, TARGET[:, None])[:, 0])


LONGEST = 12


def drawn_groups(seed: int, groups: int = 9) -> Batch:
    """Groups of 1 to 5 rows that share a prompt, in no order."""
    draw = random.Random(seed)
    rows: list[tuple[int, list[int], int]] = []
    for group in range(groups):
        prompt = draw.choices(range(3, 48), k=draw.randint(1, 6))
        for _ in range(draw.randint(1, 5)):
            rows.append((group, prompt + draw.choices(range(3, 48), k=draw.randint(1, 6)), len(prompt)))
    draw.shuffle(rows)
    return batch_of(rows)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    limits=st.sampled_from([Limits(1), Limits(3), Limits(100), Limits(1, LONGEST), Limits(16, 30), Limits(1, 1000)]),
    share=st.booleans(),
    whole=st.booleans(),
)
def test_every_row_once_within_the_limits_and_groups_whole(seed: int, limits: Limits, share: bool, whole: bool) -> None:
    batch = drawn_groups(seed)
    parts = micro_batches(batch, limits, whole=whole, share=share)
    assert sorted(row for part in parts for row in part) == list(range(len(batch)))
    assert all(parts)
    if whole:
        homes = [{batch.group[row].item() for row in part} for part in parts]
        assert sum(map(len, homes)) == len(batch.group.unique())
        return
    for part in parts:
        if limits.tokens is None:
            assert len(part) <= limits.rows
        else:  # a prompt is counted once, as it is laid down; saved too little, it is laid down again
            tokens = pack(batch.rows(part), share=share).ids.shape[1]
            assert tokens <= limits.tokens * (16 / 15 if share else 1)


def test_best_fit_is_nearly_full() -> None:
    """Lengths up to 4,096 into bins of 8,192: less than 99 % would be a first-come packing."""
    draw = random.Random(0)
    lengths = [draw.randint(1, 4096) for _ in range(10_000)]
    bins = best_fit([(length, [row]) for row, length in enumerate(lengths)], 8192)
    assert sorted(row for part in bins for row in part) == list(range(len(lengths)))
    assert max(sum(lengths[row] for row in part) for part in bins) <= 8192
    assert sum(lengths) / (8192 * len(bins)) >= 0.99


# ---- as many parts on each process


def test_evened_cuts_the_largest_in_the_middle_and_never_within_a_key() -> None:
    assert sorted(split_to_count([[0, 1, 2, 3], [4]], 3, range(5))) == [[0, 1], [2, 3], [4]]
    keys = [0, 0, 0, 1, 2, 2]
    assert sorted(split_to_count([[0, 1, 2, 3], [4, 5]], 3, keys)) == [[0, 1, 2], [3], [4, 5]]
    found = split_to_count([[0, 1, 2, 3], [4, 5]], 5, keys)
    assert sorted(found) == [[], [], [0, 1, 2], [3], [4, 5]]  # two processes more compute nothing


def test_sequences_of_a_row_share_only_equal_beginnings() -> None:
    """Turns of a conversation that are each a sequence: a group, whose rows begin their answers at other places."""
    batch = batch_of([(0, list(range(length)), length - 4) for length in (20, 30, 40, 50, 60)])
    parts = micro_batches(batch, Limits(1, 100), whole=False, share=True)
    assert all(pack(batch.rows(part)).ids.numel() <= 100 for part in parts) and len(parts) == 3
