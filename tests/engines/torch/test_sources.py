"""Which rows a step takes, and how they become a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import Known

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.grpo import GRPO
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.generator import Request, make_requests
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import collate, mini_batches, read_episodes
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.sources import Order, Rollouts, Rows
from launcher.engines.torch.train.tally import mask_unscored
from launcher.spec.data import Row
from launcher.spec.episode import Episode, Turn
from launcher.spec.reward import Answer, DetailedReward, Scores
from launcher.text.encoder import Tokens

Share = Callable[[int, int], None]


# ---- order


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.sampled_from([1, 2, 4, 12]), rest=st.integers(0, 5), shuffle=st.booleans(), size=st.sampled_from([1, 2])
)
def test_an_epoch_takes_every_row_once_and_processes_share_a_step(
    batch: int, rest: int, shuffle: bool, size: int, share: Share
) -> None:
    """Only whole batches are taken, dealt like cards."""
    size = min(size, batch)
    rows = 3 * batch + rest % batch
    order = Order(rows, batch, 0, shuffle)
    for epoch in range(2):
        taken = list[int]()
        for step in range(3 * epoch + 1, 3 * epoch + 4):
            assert order.epoch(step) == epoch
            shares = []
            for rank in range(size):
                share(rank, size)
                shares.append(order.step_rows(step))
            dealt = [row for rows in zip(*shares, strict=True) for row in rows]
            share(0, 1)
            assert dealt == order.step_rows(step) and len(dealt) == batch
            taken += dealt
        assert len(set(taken)) == 3 * batch and set(taken) <= set(range(rows))
        if not shuffle:
            assert taken == list(range(3 * batch))


@pytest.mark.parametrize("shuffle", [True, False])
def test_streams_depend_on_row_epoch_and_attempt_alone(shuffle: bool) -> None:
    """They are those of the step and round in which the row has its turn, and no two draws have the same."""
    order, keys = Order(11, 4, 3, shuffle), list[int]()
    for step in range(1, 7):
        for round_ in range(3):
            for row in order.step_rows(step, round_):
                mine = order.stream_keys(9, row, order.epoch(step), order.attempt(step, round_), 2).tolist()
                assert mine == random_streams.stream_keys(9, step, [row], 2, round_).tolist()
                keys += mine
    assert len(set(keys)) == len(keys) == 6 * 3 * 4 * 2
    assert order.attempt(3, 0) == 0


def test_requests_wait_until_they_are_answered(
    tiny: Callable[..., CausalLM], ids: Callable[..., list[list[int]]]
) -> None:
    """Answers are those of asking at once, whoever else waits; each token knows the weights that wrote it."""
    model, prompts = tiny(), ids(3, 5)
    keys = random_streams.stream_keys(0, 1, range(2), 2)
    decoder = Decoder(model, TorchSampler(), 5)
    expected = decoder.answer(make_requests(prompts, keys), 1.0)
    first, second = decoder.submit(make_requests(prompts, keys))
    assert not (first.done() or second.done())
    model.version = 7
    (single,) = decoder.answer([Request(prompts[1], keys[3:])], 1.0)
    found = [*first.result(), *second.result()]
    assert [one.tokens for one in found] == [one.tokens for one in expected] and not decoder.waiting
    assert single.turns[0].tokens == expected[3].turns[0].tokens
    assert {*expected[0].turns[0].versions} == {0} and {*found[0].turns[0].versions} == {7}


# ---- episodes become a batch


def demonstration(ids: list[int], mask: list[int]) -> Episode:
    return Episode([], (Turn(ids, "data", mask=mask),))


def test_collate_by_hand(tiny: Callable[..., CausalLM]) -> None:
    """What is real is said by lengths and masks, not by ids: where a model has no pad token, its end token pads."""
    rows = [([5, 6, 7], [0, 1, 1]), ([8], [0]), ([0, 0], [0, 1])]
    found = collate([demonstration(*row) for row in rows], tiny())
    assert found.tokens.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]  # <pad> is 0
    assert found.length.tolist() == [3, 1, 2]
    assert found.mask.tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]
    assert (found.tokens.dtype, found.length.dtype, found.mask.dtype) == (torch.int64, torch.int64, torch.float64)
    absent = (found.group, found.reward, found.preference, found.rollout)
    assert absent == (None,) * 4


def test_an_episode_of_several_turns_is_learnt_where_the_policy_wrote(tiny: Callable[..., CausalLM]) -> None:
    turns = (
        Turn([7, 8], stop="end", logp=[-0.5, -0.25]),
        Turn([9], "data"),
        Turn([10], stop="length", logp=[-1.0]),
    )
    episode = Episode([5, 6], turns, group=2, reward=0.1)
    assert (episode.tokens, episode.mask) == ([5, 6, 7, 8, 9, 10], [0, 0, 1, 1, 0, 1])
    pair = Episode([], (Turn([5, 11], "data", mask=[0, 1]),), group=1, preference=-1, reward=0.0)
    found = collate([episode, pair], tiny())
    assert found.rollout.tolist() == [[0, 0, -0.5, -0.25, 0, -1.0], [0.0] * 6]
    assert (found.group.tolist(), found.preference.tolist(), found.reward.tolist()) == ([2, 1], [0, -1], [0.1, 0.0])


# ---- sources


def rows_of(sequences: Sequence[list[int]], masks: Sequence[list[int]]) -> Rows:
    found = Rows()
    for place, (ids, mask) in enumerate(zip(sequences, masks, strict=True)):
        found.rows.append(Row(f"f:{place}", "", ground_truth=str(place)))
        found.tokens.append(Tokens(place, ids, mask))
    return found


def test_a_row_of_several_sequences_counts_once(tiny: Callable[..., CausalLM]) -> None:
    """Steps take rows, and the parts of a step as many rows each."""
    several = replace(TOKENS[1], others=(Tokens(1, [3, 4, 5, 6], [0, 0, 0, 1]),))
    batch = collate(read_episodes([TOKENS[0], several]), tiny())
    assert batch.length.tolist() == [3, 3, 4]
    assert batch.group.tolist() == [0, 1, 1]
    assert [part.mask.sum().item() for part in mini_batches(batch, 2)] == [1, 2]
    assert collate(read_episodes(TOKENS), tiny()).group is None


TOKENS = [Tokens(row, [3, 4, 5], [0, 0, 1]) for row in range(2)]


def rolled(model: CausalLM, sequences: Sequence[list[int]], step: int) -> Any:
    rows = rows_of(sequences, [[]] * len(sequences))
    decoder = Decoder(model, TorchSampler(n=3), 5)
    clock = Clock()
    order = Order(len(rows.rows), 4, 0, True)
    found, metrics = Rollouts(rows, order, PromptAnswerer(decoder, Known()), GRPO(), 7).batch(step, clock)
    assert set(clock.seconds) == {"gen", "reward"} and metrics == {}
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
        assert found.reward[place].item() == prompts[place // 3] + len(output) / 1024


class Parted(DetailedReward):
    """Fake: the length of an answer, with its parts; an answer to row 2 has no score."""

    def judge(self, answers: Sequence[Answer]) -> Scores:
        found = [math.nan if answer.ground_truth == "2" else float(len(answer.response)) for answer in answers]
        return Scores(found, {"half": [value / 2 for value in found]})


@pytest.mark.parametrize("rounds", [1, 4])
def test_groups_are_those_of_the_first_rows_with_what_the_step_learnt(
    rounds: int, tiny: Callable[..., CausalLM], ids: Callable[..., list[list[int]]]
) -> None:
    """Also where a filter chooses the groups of a step out of several rounds."""
    model, algorithm = tiny(), GRPO() if rounds == 1 else DAPO(max_num_gen_batches=rounds)
    rows, order = rows_of(ids(3, 5, 2, 4, 6, 1), [[]] * 6), Order(6, 4, 0, True)
    source = Rollouts(rows, order, PromptAnswerer(Decoder(model, TorchSampler(n=3), 5), Parted()), algorithm, 7)
    raw, _ = source.batch(1, Clock())
    prepared, _ = algorithm.prepare(mask_unscored(raw), {}, lambda x: x)
    found = source.groups(1, prepared, 3, 1_000)
    truths = [each.ground_truth for each in found]
    assert [each.group for each in found] == [1, 2, 3] and truths == sorted(truths)
    for each in found:
        scores = torch.tensor(each.scores)
        assert list(each.parts["half"]) == pytest.approx((scores / 2).tolist(), nan_ok=True)
        if each.ground_truth == "2":
            assert not scores.isfinite().any() and not torch.tensor(each.advantages).isfinite().any()
        else:
            assert [len(text) for text in each.responses] == list(each.scores)
            expected = (scores - scores.mean()) / (scores.std() + 1e-6)
            assert list(each.advantages) == pytest.approx(expected.tolist(), abs=1e-4)
    (cut,) = source.groups(1, prepared, 1, 2)
    assert all(len(text) <= 2 or "characters ..." in text for text in cut.responses)
