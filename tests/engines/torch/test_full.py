"""Steps that sample until they are full, steps of pairs and prompts, and the rows that they are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from launcher.algorithms.dapo import DAPO
from launcher.core.settings import settings
from launcher.data.refused import RefusedLog
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.sources import Order, Rollouts, read_rows
from launcher.rewards.exact import Exact
from launcher.rewards.gsm8k import GSM8K
from launcher.rewards.length import Length
from launcher.spec.algorithm import Algorithm, Batch, Kind
from launcher.spec.data import Dataset, Message, RefusedRow, Row, Split
from launcher.spec.reward import Answer, Reward
from launcher.text.encoder import Encoder
from launcher.text.tokenizer import character_tokenizer

ROWS, BATCH, N = 16, 6, 2


class Scored(Reward):
    """Fake: the n-th time it is asked, this many of the prompts have a right and a wrong answer; the others none."""

    def __init__(self, mixed: Sequence[int], wrong: float = 0.0) -> None:
        self.mixed, self.wrong, self.asked = iter(mixed), wrong, list[list[Answer]]()

    def score(self, answers: Sequence[Answer]) -> list[float]:
        self.asked.append(list(answers))
        mixed = next(self.mixed)
        return [1.0 if place < mixed * N and place % N else self.wrong for place in range(len(answers))]


@pytest.fixture
def rolled(jobs: ModuleType) -> Callable[..., tuple[Batch, dict[str, float]]]:
    def roll(reward: Reward, algorithm: Algorithm, step: int = 1) -> tuple[Batch, dict[str, float]]:
        answerer = PromptAnswerer(Decoder(jobs.small("float64"), TorchSampler(n=N), 5), reward)
        source = Rollouts(jobs.prompts(ROWS), Order(ROWS, BATCH, 0, True), answerer, algorithm, 3)
        return source.batch(step, Clock())

    return roll


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
    mixed: tuple[int, ...], most: int, rounds: int, full: float, rolled: Callable[..., Any]
) -> None:
    reward = Scored(mixed)
    batch, told = rolled(reward, DAPO(max_num_gen_batches=most))
    assert told == {"train/num_gen_batches": float(rounds), "train/share_full": full}
    assert len(reward.asked) == rounds
    assert mixed_groups(batch) == round(full * BATCH)
    assert len(batch) == BATCH * N and len(batch.group.unique()) == BATCH  # empty places are held by others
    made, told = DAPO().prepare(batch, {})
    assert told["train/groups_kept"] == round(full * BATCH)
    assert (made.mask.sum(1) > 0).sum() == round(full * BATCH) * N  # ... which are left out


def test_rounds_take_prompts_anew_and_answers_of_their_own(rolled: Callable[..., Any]) -> None:
    reward = Scored((0,) * 6)
    rolled(reward, DAPO(max_num_gen_batches=6))
    prompts = [[answer.ground_truth for answer in asked[::N]] for asked in reward.asked]
    assert len({tuple(taken) for taken in prompts}) == 6
    assert all(len(set(taken)) == BATCH for taken in prompts)
    answers: dict[str | None, list[tuple[str, ...]]] = {}
    for asked in reward.asked:
        for place in range(0, len(asked), N):
            found = tuple(answer.response for answer in asked[place : place + N])
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


def test_mixed_rows_are_pairs_as_they_are_and_answers_with_scores(jobs: ModuleType) -> None:
    found = jobs.mixed()
    assert found["group"] == [1, 1, 3, 3, 5, 5, 0, 0, 2, 2, 4, 4]  # sampled ones first; a pair has its own group
    assert found["preference"] == [0] * 6 + [1, -1] * 3
    assert found["reward"][6:] == [0.0] * 6
    pairs = jobs.shared(jobs.sequences_of(7, 12), 2)
    rows = [0, 1, 4, 5, 8, 9]  # of the pairs 0, 2, 4
    assert found["ids"][6:] == [pairs[row][0] for row in rows]
    assert found["answer"][6:] == [sum(pairs[row][1]) for row in rows]
    assert torch.tensor(found["answer"]).min() > 0


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


@settings
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
        ("train", "answers", GSM8K(), ["f:3: answer", "f:4: is a"]),  # demonstrations are not scored
        ("val", "prompts", GSM8K(), []),  # held out without a truth: not answered
    ):
        with RefusedLog(None) as log:
            read_rows(ENCODER, split, kind, log, reward)
        told = [line for line in map(str, log.first) if "is missing" not in line and "is empty" not in line]
        assert len(told) == len(expected) or kind == "answers"
        assert all(any(line.startswith(start) for line in told) for start in expected if kind != "answers"), told
