"""Credit by turn, against an independent computation of random episodes."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict

import pytest
import torch

from launcher.algorithms.gigpo import GiGPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.ops import EPSILON
from launcher.algorithms.turn_grpo import TurnGRPO
from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.spec.algorithm import Batch

Rows = list[tuple[int, float, list[float], list[int]]]
"""Of each episode its group, score, the reward of each turn, and the state that each began in."""


def batch_of(rows: Rows) -> Batch:
    """Each turn is two tokens of the policy and one of a tool, behind a prompt of one token."""
    width = max(len(rewards) for _, _, rewards, _ in rows)
    turns = [[-1, *(n for turn in range(len(rewards)) for n in (turn, turn, -1))] for _, _, rewards, _ in rows]
    turn = torch.tensor([[*each, *[-1] * (3 * width + 1 - len(each))] for each in turns])
    return Batch(
        tokens=torch.zeros_like(turn), length=torch.tensor(list(map(len, turns))), mask=(turn >= 0).double(),
        group=torch.tensor([group for group, *_ in rows]),
        reward=torch.tensor([score for _, score, _, _ in rows], dtype=torch.float64), turn=turn,
        turn_reward=torch.tensor([[*x, *[0.0] * (width - len(x))] for _, _, x, _ in rows], dtype=torch.float64),
        state=torch.tensor([[*x, *[-1] * (width - len(x))] for _, _, _, x in rows]),
    )  # fmt: skip


def of_turns(algorithm: GRPO, rows: Rows) -> list[list[float]]:
    """The advantage of each turn; equal for all of its tokens, and 0 elsewhere."""
    batch = batch_of(rows)
    advantage = algorithm.prepare(batch, {})[0].advantage
    assert not advantage[batch.turn < 0].any()
    found = []
    for row, (_, _, rewards, _) in enumerate(rows):
        values = [advantage[row][batch.turn[row] == turn].tolist() for turn in range(len(rewards))]
        assert all(one == other for one, other in values)
        found.append([one for one, _ in values])
    return found


def relative(values: dict[tuple[int, int], tuple[object, float]], scale: bool) -> dict[tuple[int, int], float]:
    """Each value relative to the others with its key."""
    groups = defaultdict(list)
    for key, value in values.values():
        groups[key].append(value)
    found = {}
    for place, (key, value) in values.items():
        of = groups[key]
        spread = statistics.stdev(of) if len(of) > 1 else 0.0
        centred = value - statistics.fmean(of) if len(set(of)) > 1 else 0.0
        found[place] = centred / (spread + EPSILON) if scale else centred
    return found


@pytest.mark.parametrize("seed", range(20))
def test_random_episodes_as_an_independent_computation_has_them(seed: int) -> None:
    draw = random.Random(seed)
    rows: Rows = []
    for group in range(3):
        for _ in range(draw.randint(1, 5)):
            turns = draw.randint(1, 4)
            rewards = [draw.choice([0.0, 0.25, draw.random()]) for _ in range(turns)]
            rows.append((group, draw.choice([0.0, 1.0]), rewards, [draw.randint(-1, 2) for _ in range(turns)]))
    scale, discount, weight = draw.random() < 0.5, draw.choice([0.0, 0.5, 1.0]), draw.choice([0.0, 0.5, 1.0])
    value = dict[tuple[int, int], float]()
    for row, (_, score, rewards, _) in enumerate(rows):
        for turn in range(len(rewards)):
            later = [*rewards[:-1], rewards[-1] + score][turn:]
            value[row, turn] = sum(discount**at * x for at, x in enumerate(later))
    by_turn = relative({at: ((rows[at[0]][0], at[1]), x) for at, x in value.items()}, scale)
    found = of_turns(TurnGRPO(turn_discount=discount, norm_adv_by_std_in_grpo=scale), rows)
    assert {(row, turn): x for row, each in enumerate(found) for turn, x in enumerate(each)} == pytest.approx(
        by_turn, abs=1e-9
    )
    whole = relative({(row, 0): (group, score) for row, (group, score, _, _) in enumerate(rows)}, scale)
    known = {at: x for at, x in value.items() if rows[at[0]][3][at[1]] >= 0}
    by_state = relative({at: ((rows[at[0]][0], rows[at[0]][3][at[1]]), x) for at, x in known.items()}, scale)
    found = of_turns(GiGPO(turn_discount=discount, norm_adv_by_std_in_grpo=scale, step_advantage_weight=weight), rows)
    for row, each in enumerate(found):
        right = [whole[row, 0] + weight * by_state.get((row, turn), 0.0) for turn in range(len(each))]
        assert each == pytest.approx(right, abs=1e-9)


@pytest.mark.parametrize("algorithm", ["turn_grpo", "gigpo"])
def test_without_turns_there_is_nothing_to_compare(algorithm: str) -> None:
    with pytest.raises(Problems) as caught:
        resolve([f"algorithm={algorithm}", "model=tiny", "data=reverse"])
    assert "compares turns, and Single has one; use environment=python, or algorithm=grpo" in str(caught.value)
