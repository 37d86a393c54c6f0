"""Attention over packed sequences, packing, and shared prompts: each token is what it is when its row is read alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jobs
import pytest
import torch
from families import entering, family, ids, logp_alone, tiny
from jobs import batch_of

from launcher.engines.torch.model.attention import Call
from launcher.engines.torch.model.packing import pack
from launcher.engines.torch.train.batching import collate
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
