"""Which rows a step takes and refuses, how they are answered until it is full, and how they become a batch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from families import ids, tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.grpo import GRPO
from launcher.core import settings as core_settings
from launcher.data.refused import RefusedLog
from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.generator import Request, make_requests
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train.batching import collate, mini_batches, read_episodes
from launcher.engines.torch.train.sources import Order, read_rows
from launcher.engines.torch.train.tally import Tally, mask_unscored, unscored_rows
from launcher.rewards.exact import Exact
from launcher.rewards.gsm8k import GSM8K
from launcher.rewards.length import Length
from launcher.spec.algorithm import Batch, Kind
from launcher.spec.data import Dataset, Message, RefusedRow, Row, Split
from launcher.spec.episode import Episode, Turn
from launcher.spec.reward import Answer, Reward
from launcher.text.encoder import Encoder, Tokens
from launcher.text.tokenizer import character_tokenizer

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


def test_requests_wait_until_they_are_answered() -> None:
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


def test_collate_by_hand() -> None:
    """What is real is said by lengths and masks, not by ids: where a model has no pad token, its end token pads."""
    rows = [([5, 6, 7], [0, 1, 1]), ([8], [0]), ([0, 0], [0, 1])]
    found = collate([jobs.written(*row) for row in rows], tiny())
    assert found.tokens.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]  # <pad> is 0
    assert found.length.tolist() == [3, 1, 2]
    assert found.mask.tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]
    assert (found.tokens.dtype, found.length.dtype, found.mask.dtype) == (torch.int64, torch.int64, torch.float64)
    absent = (found.group, found.reward, found.preference, found.rollout)
    assert absent == (None,) * 4


def test_an_episode_of_several_turns_is_learnt_where_the_policy_wrote() -> None:
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


TOKENS = [Tokens(row, [3, 4, 5], [0, 0, 1]) for row in range(2)]


def test_a_row_of_several_sequences_counts_once() -> None:
    """Steps take rows, and the parts of a step as many rows each."""
    several = replace(TOKENS[1], others=(Tokens(1, [3, 4, 5, 6], [0, 0, 0, 1]),))
    batch = collate(read_episodes([TOKENS[0], several]), tiny())
    assert batch.length.tolist() == [3, 3, 4]
    assert batch.group.tolist() == [0, 1, 1]
    assert [part.mask.sum().item() for part in mini_batches(batch, 2)] == [1, 2]
    assert collate(read_episodes(TOKENS), tiny()).group is None


# ---- answers to prompts


def test_rollouts_are_answers_to_the_steps_prompts_with_their_scores() -> None:
    found, told, source = jobs.rolled(jobs.Known(), GRPO(), n=3)
    prompts, model = Order(16, 6, 0, True).step_rows(1), source.generator.model
    assert len(found) == 18 and told == {}
    assert found.group.tolist() == [place // 3 for place in range(18)]
    assert found.preference.tolist() == [0] * 18
    for place in range(18):
        row = prompts[place // 3]
        prompt, length, answer = source.rows.tokens[row].ids, int(found.length[place]), found.mask[place] > 0
        assert found.tokens[place, : len(prompt)].tolist() == prompt
        assert answer.tolist() == [len(prompt) <= t < length for t in range(found.tokens.shape[1])]
        tokens = found.tokens[place, answer].tolist()
        output = model.tokenizer.decode(tokens[:-1] if tokens[-1] in model.eos else tokens)
        assert found.reward[place].item() == row + len(output) / 1024


@pytest.mark.parametrize("algorithm", [GRPO(), DAPO(max_num_gen_batches=4)], ids=["one round", "four rounds"])
def test_groups_are_those_of_the_first_rows_with_what_the_step_learnt(algorithm: GRPO) -> None:
    """Also where a filter chooses the groups of a step out of several rounds."""
    bad = str(sorted(Order(16, 6, 0, True).step_rows(1))[1])
    raw, _, source = jobs.rolled(jobs.Even([bad]), algorithm, n=3)
    prepared, _ = algorithm.prepare(mask_unscored(raw), {}, lambda x: x)
    found = source.groups(1, prepared, 3, 1_000)
    truths = [int(each.ground_truth) for each in found]
    assert [each.group for each in found] == [1, 2, 3] and truths == sorted(truths)
    assert (int(bad) in truths) == (algorithm.max_num_gen_batches == 1)
    for each in found:
        scores = torch.tensor(each.scores)
        if each.ground_truth == bad:
            assert not scores.isfinite().any() and not torch.tensor(each.advantages).isfinite().any()
        else:
            assert each.parts["even"] == each.scores == tuple(sum(map(ord, text)) % 2 == 0 for text in each.responses)
            expected = (scores - scores.mean()) / (scores.std() + 1e-6)
            assert list(each.advantages) == pytest.approx(expected.tolist(), abs=1e-4)
    (cut,) = source.groups(1, prepared, 1, 2)
    assert all(len(text) <= 2 or "characters ..." in text for text in cut.responses)


# ---- until a step is full


class Scored(Reward):
    """Fake: the n-th time it is asked, this many of the prompts have a right and a wrong answer; the others none."""

    def __init__(self, mixed: Sequence[int], wrong: float = 0.0) -> None:
        self.mixed, self.wrong, self.asked = iter(mixed), wrong, list[list[Answer]]()

    def score(self, answers: Sequence[Answer]) -> list[float]:
        self.asked.append(list(answers))
        mixed = next(self.mixed)
        return [1.0 if place < mixed * 2 and place % 2 else self.wrong for place in range(len(answers))]


def mixed_groups(batch: Batch) -> int:
    return sum(len(set(batch.reward[batch.group == group].tolist())) > 1 for group in batch.group.unique())


@pytest.mark.parametrize(
    ("mixed", "most", "rounds", "full"),
    [
        ((6,), 10, 1, 1.0),  # full at once: never again
        ((2, 3, 1), 10, 3, 1.0),
        ((4, 5), 10, 2, 1.0),  # more than are needed: full is full
        ((2, 1), 2, 2, 0.5),  # the bound
    ],
)
def test_it_samples_until_it_is_full_within_its_bound(
    mixed: tuple[int, ...], most: int, rounds: int, full: float
) -> None:
    reward = Scored(mixed)
    batch, told, _ = jobs.rolled(reward, DAPO(max_num_gen_batches=most))
    assert told == {"train/num_gen_batches": float(rounds), "train/share_full": full}
    assert len(reward.asked) == rounds
    assert mixed_groups(batch) == round(full * 6)
    assert len(batch) == 12 and len(batch.group.unique()) == 6  # empty places are held by others
    made, told = DAPO().prepare(batch, {})
    assert told["train/groups_kept"] == round(full * 6)
    assert (made.mask.sum(1) > 0).sum() == round(full * 6) * 2  # ... which are left out


def test_rounds_take_prompts_anew_and_answers_of_their_own() -> None:
    reward = Scored((0,) * 6)
    jobs.rolled(reward, DAPO(max_num_gen_batches=6))
    prompts = [[answer.ground_truth for answer in asked[::2]] for asked in reward.asked]
    assert len({tuple(taken) for taken in prompts}) == 6
    assert all(len(set(taken)) == 6 for taken in prompts)
    answers: dict[str | None, list[tuple[str, ...]]] = {}
    for asked in reward.asked:
        for place in range(0, len(asked), 2):
            found = tuple(answer.response for answer in asked[place : place + 2])
            answers.setdefault(asked[place].ground_truth, []).append(found)
    several = [found for found in answers.values() if len(found) > 1]
    assert several and any(len(set(found)) == len(found) for found in several)


# ---- spread over processes


def by_group(shares: Sequence[dict[str, Any]]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for share in shares:
        held = zip(share["group"], share["ids"], share["reward"], share["preference"], share["answer"], strict=True)
        for group, *row in held:
            found.setdefault(group, []).append(tuple(row))
    return dict(sorted(found.items()))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", " fsdp2"])
def test_processes_fill_a_step_with_the_same(way: str, together: Callable[[int], list[dict[str, Any]]]) -> None:
    (single,), found = together(1), together(2)
    for step in range(3):
        shares = [each[f"filled{way}"][step] for each in found]
        assert by_group(shares) == by_group([single["filled"][step]])
        assert all(share["told"] == single["filled"][step]["told"] for share in shares)
        assert len({len(share["group"]) for share in shares}) == 1  # as many to each process
    assert max(step["told"]["train/num_gen_batches"] for step in single["filled"]) > 1


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", " fsdp2"])
def test_a_process_may_hold_pairs_only(way: str, together: Callable[[int], list[dict[str, Any]]]) -> None:
    (single,), found = together(1), together(2)
    assert by_group([each[f"mixed{way}"] for each in found]) == by_group([single["mixed"]])
    assert [set(each[f"mixed{way}"]["preference"]) for each in found] == [{1, -1}, {0}]


def test_mixed_rows_are_pairs_as_they_are_and_answers_with_scores() -> None:
    found = jobs.mixed()
    assert found["group"] == [1, 1, 3, 3, 5, 5, 0, 0, 2, 2, 4, 4]  # sampled ones first; a pair has its own group
    assert found["preference"] == [0] * 6 + [1, -1] * 3
    assert found["reward"][6:] == [0.0] * 6
    pairs = jobs.shared(jobs.sequences_of(7, 12), 2)
    rows = [0, 1, 4, 5, 8, 9]  # of the pairs 0, 2, 4
    assert found["ids"][6:] == [pairs[row][0] for row in rows]
    assert found["answer"][6:] == [sum(pairs[row][1]) for row in rows]
    assert torch.tensor(found["answer"]).min() > 0


# ---- answers without a score


def test_faults_are_counted_and_told_with_their_row() -> None:
    first, second = (str(row) for row in Order(16, 6, 0, True).step_rows(1)[:2])
    whole, told, source = jobs.rolled(jobs.Even(), GRPO(), n=4)
    assert "reward/faults" not in told and source.alerts == []
    batch, told, source = jobs.rolled(jobs.Even([first, second]), GRPO(), n=4)
    assert torch.equal(batch.tokens, whole.tokens) and told["reward/faults"] == 8.0
    assert unscored_rows(batch).tolist() == [True] * 8 + [False] * 16
    assert torch.equal(batch.reward[8:], whole.reward[8:])
    assert [line.partition(" (")[0] for line in source.alerts] == [
        f"f:{row}: ValueError: cannot score {row}" for row in (first, second)
    ]
    assert all(line.endswith("; 4 of 24 answers are without a score, their groups left out") for line in source.alerts)
    shrunk, _, shrinking = jobs.rolled(jobs.Even([first, second]), GRPO(), n=4, shrinks=True)
    assert all(line.endswith("without a score, and are left out of their groups") for line in shrinking.alerts)
    assert torch.equal(shrunk.group, batch.group), "what a reward cannot score is no fault of the environment"
    assert told["critic/score/even/mean"] == pytest.approx(batch.reward[8:].mean().item())
    assert told["train/core/reward/rule_based"] == told["critic/score/even/mean"]


def test_a_step_that_samples_until_it_is_full_takes_other_groups() -> None:
    bad = [str(row) for row in Order(16, 6, 0, True).step_rows(1)[:2]]
    batch, told, _ = jobs.rolled(jobs.Even(bad), DAPO(), n=4)
    assert told["train/num_gen_batches"] > 1 and told["train/share_full"] == 1.0
    assert not unscored_rows(batch).any() and len(batch) == 24
    kept = batch.reward.view(6, 4)
    assert told["critic/score/even/mean"] == pytest.approx(kept.mean().item())  # of those that were taken


def test_where_nothing_can_be_scored_no_more_is_written() -> None:
    batch, told, source = jobs.rolled(jobs.Even([str(row) for row in range(16)]), DAPO(), n=4)
    assert told["train/num_gen_batches"] == 1.0 and told["reward/faults"] == 24.0
    assert unscored_rows(batch).all()
    assert len(source.alerts) == 4 and source.alerts[-1].startswith("12 more answers are without a score, for 3 other")


def test_what_several_processes_tell_is_one_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither who found a fault nor which process has no parts changes what is said."""
    found = []
    for order in (0, 1):
        tallies = [Tally(), Tally()]
        tallies[order].note([episode(3, math.nan, "no", a=math.nan)], ["no"], ["f:3"])
        tallies[1 - order].note([episode(0, 1.0, a=1.0), episode(0, 0.0, a=0.0, b=2.0)], ["", ""], ["f:0"] * 2)
        held: list[Any] = []
        monkeypatch.setattr(world, "all_gather_object", lambda x, held=held: held.append(x) or [x])
        for tally in tallies:
            tally.summary()  # gathers sums, then faults
        for tally in tallies:
            replies = iter([held[::2], held[1::2]])
            monkeypatch.setattr(world, "all_gather_object", lambda _, replies=replies: next(replies))
            found.append(tally.summary())
    assert all(one == found[0] for one in found)
    assert found[0][0] == {"critic/score/a/mean": 0.5, "critic/score/b/mean": 2.0, "reward/faults": 1.0}


def episode(group: int, reward: float, fault: str = "", **parts: float) -> Episode:
    return Episode([1], (), group, reward=reward, parts=parts, fault=fault)


# ---- rows that are read


FOUND = {
    "train": [
        Row("f:1", "ab", "b", ground_truth="b", data_source="s", extra_info={"level": 3}),
        RefusedRow("f:2", "prompt is missing", '{"promt": "a"}'),
        Row("f:3", "aaaaaa", "b"),  # too long: found out only here
        Row("f:4", (Message("system", "a"), Message("user", "a")), "b"),  # a conversation, and there is no template
        Row("f:5", "b", "aa", ground_truth="aa"),
    ],
    "val": [Row("v:1", "a", "b"), RefusedRow("v:2", "response is empty", "{}")],
}


@core_settings.settings
class Listed(Dataset):
    """Fake: the rows above."""

    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        yield from FOUND[split]

    def has(self, split: Split) -> bool:
        return True

    def fingerprint(self) -> str:
        return ""


ANYTHING = Length(high=9)  # a reward that needs no truth
ENCODER = Encoder(character_tokenizer("ab"), Listed(max_prompt_length=5))


def test_in_is_out_plus_refused_over_both_splits(tmp_path: Path) -> None:
    path = tmp_path / "refused.jsonl"
    with RefusedLog(path) as log:
        train, val = (read_rows(ENCODER, split, "prompts", log, ANYTHING) for split in ("train", "val"))
    assert (len(train.rows), train.refused, len(val.rows), val.refused) == (2, 3, 1, 1)
    assert (log.rows, log.good, log.refused) == (7, 3, 4)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["where"], line["reason"]) for line in kept] == [
        ("f:2", "prompt is missing"),
        ("f:3", "prompt has 6 tokens; data.max_prompt_length is 5"),
        ("f:4", "is a conversation, and the tokenizer has no chat template; use a text prompt"),
        ("v:2", "response is empty"),
    ]
    assert kept[0]["raw"] == '{"promt": "a"}'
    assert "aaaaaa" in kept[1]["raw"]


def test_an_answer_carries_what_is_known_of_its_row() -> None:
    with RefusedLog(None) as log:
        found = read_rows(ENCODER, "train", "prompts", log, ANYTHING)
    assert found.answer(0, "ba") == Answer("ba", "b", "s", {"level": 3}, "ab", where="f:1")
    assert found.answer(1, "x") == Answer("x", "aa", "unknown", {}, "b", where="f:5")


def test_prompts_that_the_reward_could_never_score_are_refused_by_name(tmp_path: Path) -> None:
    for split, kind, reward, expected in (
        ("train", "prompts", Exact(), ["f:3: has no ground truth, which reward Exact compares with", "f:4: has no"]),
        ("train", "prompts", GSM8K(), ["f:1: ground truth 'b' is not a number", "f:3: ", "f:4: ", "f:5: ground truth"]),
        ("train", "answers", GSM8K(), ["f:3: prompt has 6", "f:4: is a"]),  # demonstrations are not scored
        ("val", "prompts", GSM8K(), []),  # held out without a truth: not answered
    ):
        with RefusedLog(None) as log:
            read_rows(ENCODER, split, kind, log, reward)
        told = [line for line in map(str, log.first) if "is missing" not in line and "is empty" not in line]
        assert len(told) == len(expected)
        assert all(any(line.startswith(start) for line in told) for start in expected), told
