"""Which rows a step takes, and how they become a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from launcher.algorithms.grpo import GRPO
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.generator import Completion
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train.batching import mini_batches
from launcher.engines.torch.train.measure import Clock
from launcher.engines.torch.train.sources import (
    Demonstrations,
    Order,
    Rollouts,
    Rows,
    collate,
    collate_rows,
    join_completion,
)
from launcher.spec.data import Row
from launcher.spec.reward import Answer, Reward
from launcher.text.encoder import Tokens

Share = Callable[[int, int], None]


# ---- order


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("rows", "batch"), [(12, 4), (12, 12), (12, 1), (7, 7)])
def test_an_epoch_takes_every_row_once(rows: int, batch: int, shuffle: bool) -> None:
    order = Order(rows, batch, 0, shuffle)
    steps = rows // batch
    assert order.steps_per_epoch == steps
    for epoch in range(3):
        taken = [order.step_rows(epoch * steps + step) for step in range(1, steps + 1)]
        assert all(len(part) == batch for part in taken)
        assert sorted(row for part in taken for row in part) == list(range(rows))


def test_without_shuffling_rows_come_as_they_are() -> None:
    order = Order(6, 2, 0, False)
    assert [order.step_rows(step) for step in (1, 2, 3, 4)] == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_only_whole_batches_are_taken_and_the_rest_changes_with_the_epoch() -> None:
    order = Order(11, 4, 0, True)
    assert order.steps_per_epoch == 2
    assert [order.epoch(step) for step in range(1, 7)] == [0, 0, 1, 1, 2, 2]
    left = []
    for epoch in range(6):
        taken = order.step_rows(epoch * 2 + 1) + order.step_rows(epoch * 2 + 2)
        assert len(set(taken)) == 8
        left.append(frozenset(range(11)) - set(taken))
    assert len(set(left)) > 1  # no row is left out for good


def test_epochs_and_seeds_differ_and_a_restart_finds_the_same() -> None:
    steps = range(1, 7)
    found = [Order(12, 4, 3, True).step_rows(step) for step in steps]
    assert [Order(12, 4, 3, True).step_rows(step) for step in reversed(steps)] == found[::-1]
    assert found[:3] != found[3:]
    assert [Order(12, 4, 4, True).step_rows(step) for step in steps] != found


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12])
def test_processes_share_a_step_without_gap_or_overlap(size: int, shuffle: bool, share: Share) -> None:
    order = Order(40, 12, 0, shuffle)
    for step in range(1, 6):
        share(0, 1)
        whole = order.step_rows(step)
        shares = []
        for rank in range(size):
            share(rank, size)
            shares.append(order.step_rows(step))
        assert {len(part) for part in shares} == {12 // size}
        assert [row for rows in zip(*shares, strict=True) for row in rows] == whole  # dealt like cards


# ---- collate


def test_collate_by_hand(tiny: Callable[..., CausalLM]) -> None:
    found = collate([([5, 6, 7], [0, 1, 1]), ([8], [0]), ([9, 10], [0, 1])], tiny())
    assert found.tokens.tolist() == [[5, 6, 7], [8, 0, 0], [9, 10, 0]]  # <pad> is 0
    assert found.length.tolist() == [3, 1, 2]
    assert found.mask.tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]
    assert (found.tokens.dtype, found.length.dtype) == (torch.int64, torch.int64)
    assert found.mask.dtype.is_floating_point


def test_a_pad_token_inside_a_sequence_is_a_token(tiny: Callable[..., CausalLM]) -> None:
    """Where a model has no pad token, its end token pads: lengths and masks say what is real, not ids."""
    found = collate([([5, 0, 0], [0, 1, 1]), ([5, 6, 7, 8], [0, 1, 1, 1])], tiny())
    assert found.length.tolist() == [3, 4]
    assert found.mask[0].tolist() == [0, 1, 1, 0]


def test_joined() -> None:
    assert join_completion(Tokens(0, [5, 6], []), Completion([7, 1], False)) == ([5, 6, 7, 1], [0, 0, 1, 1])


# ---- sources


def rows_of(sequences: Sequence[list[int]], masks: Sequence[list[int]]) -> Rows:
    found = Rows()
    for place, (ids, mask) in enumerate(zip(sequences, masks, strict=True)):
        found.rows.append(Row(f"f:{place}", "", ground_truth=str(place)))
        found.tokens.append(Tokens(place, ids, mask))
    return found


def test_demonstrations_are_the_rows_of_the_step(tiny: Callable[..., CausalLM], share: Share) -> None:
    model = tiny()
    rows = rows_of([[10 + row, 20 + row] for row in range(6)], [[0, 1]] * 6)
    order = Order(6, 4, 0, True)
    for rank in range(2):
        share(rank, 2)
        found, told = Demonstrations(rows, order, model).batch(1, Clock())
        assert told == {}
        assert found.tokens[:, 0].tolist() == [10 + row for row in order.step_rows(1)]
        assert torch.equal(found.tokens, collate_rows([rows.tokens[row] for row in order.step_rows(1)], model).tokens)
        assert found.mask.tolist() == [[0, 1]] * 2


class Numbers(Reward):
    """Fake: 100 x its prompt's number + the length of what the answer says."""

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [100 * float(answer.ground_truth or 0) + len(answer.response) for answer in answers]


def test_a_row_of_several_sequences_counts_once(tiny: Callable[..., CausalLM]) -> None:
    """Steps take rows, and the parts of a step as many rows each."""
    several = replace(TOKENS[1], others=(Tokens(1, [3, 4, 5, 6], [0, 0, 0, 1]),))
    batch = collate_rows([TOKENS[0], several], tiny())
    assert batch.length.tolist() == [3, 3, 4]
    assert batch.group.tolist() == [0, 1, 1]
    assert [part.mask.sum().item() for part in mini_batches(batch, 2)] == [1, 2]
    assert collate_rows(TOKENS, tiny()).group is None


TOKENS = [Tokens(row, [3, 4, 5], [0, 0, 1]) for row in range(2)]


def rolled(model: CausalLM, sequences: Sequence[list[int]], step: int) -> Any:
    rows = rows_of(sequences, [[]] * len(sequences))
    decoder = Decoder(model, TorchSampler(n=3), 5)
    clock = Clock()
    order = Order(len(rows.rows), 4, 0, True)
    found, told = Rollouts(rows, order, decoder, Numbers(), GRPO(), 7).batch(step, clock)
    assert set(clock.seconds) == {"gen", "reward"} and told == {}
    return found


def test_rollouts_are_answers_to_the_steps_prompts_with_their_scores(
    tiny: Callable[..., CausalLM], ids: Callable[..., list[list[int]]]
) -> None:
    model, sequences = tiny(), ids(3, 5, 2, 4, 6, 1)
    found = rolled(model, sequences, 1)
    prompts = Order(6, 4, 0, True).step_rows(1)
    assert len(found) == 12
    assert found.group.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert found.preference.tolist() == [0] * 12
    for place in range(12):
        prompt = sequences[prompts[place // 3]]
        length, answer = int(found.length[place]), found.mask[place] > 0
        assert found.tokens[place, : len(prompt)].tolist() == prompt
        assert answer.tolist() == [len(prompt) <= t < length for t in range(found.tokens.shape[1])]
        tokens = found.tokens[place, answer].tolist()
        output = model.tokenizer.decode(tokens[:-1] if tokens[-1] in model.eos else tokens)
        assert found.reward[place].item() == 100 * prompts[place // 3] + len(output)


@pytest.mark.parametrize("size", [2, 4])
def test_rollouts_do_not_depend_on_the_number_of_processes(
    size: int, tiny: Callable[..., CausalLM], ids: Callable[..., list[list[int]]], share: Share
) -> None:
    model, sequences = tiny(), ids(3, 5, 2, 4, 6, 1)

    def answers() -> list[tuple[list[int], float]]:
        found = rolled(model, sequences, 1)
        whole = zip(found.tokens.tolist(), found.length.tolist(), found.reward.tolist(), strict=True)
        return [(tokens[:length], reward) for tokens, length, reward in whole]

    expected = answers()
    assert len({tuple(tokens) for tokens, _ in expected}) > 6
    shares = []
    for rank in range(size):
        share(rank, size)
        mine = answers()
        shares.append([mine[start : start + 3] for start in range(0, len(mine), 3)])
    assert [answer for groups in zip(*shares, strict=True) for group in groups for answer in group] == expected
