"""The form of a response."""

from __future__ import annotations

import time

import pytest

from launcher.rewards.format import Format
from launcher.spec.reward import Answer, score_safely


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        ("\n<think>\na\nb\n</think>\n\n<answer> 1 < 2 </answer>\n", 1.0),
        ("<think>a</think> so <answer>b</answer>", 0.0),  # text between
        ("<think>a</think><think>a</think><answer>b</answer>", 0.0),  # each tag once
        ("<think>a<answer></think><answer>b</answer>", 0.0),
        ("<think>a</think><answer>b", 0.0),  # cut
    ],
)
def test_think_and_answer(response: str, score: float) -> None:
    assert Format().score([Answer(response)]) == [score]


@pytest.mark.parametrize("piece", ["</think><answer>", "<"])
def test_it_takes_one_walk_over_a_megabyte(piece: str) -> None:
    found = score_safely(Format(timeout_s=5.0), [Answer("<think>" + piece * (1_000_000 // len(piece)))])
    assert list(found.faults) == [""]


def test_your_own_pattern_is_ended_where_it_never_ends() -> None:
    reward = Format(pattern="(a+)+b", timeout_s=0.5)
    begin = time.monotonic()
    found = score_safely(reward, [Answer("aab"), Answer("a" * 60), Answer("ab")])
    assert time.monotonic() - begin < 120
    assert list(found.faults) == ["", "reward.pattern took longer than 0.5 s", ""]
    assert [found.total[0], found.total[2]] == [1.0, 1.0]


def test_a_pattern_that_is_none_is_named() -> None:
    (problem,) = Format(pattern="(").problems()
    assert problem.where == "reward.pattern" and "'(' is not a regular expression: missing )" in problem.got
    assert Format().problems() == []


def test_an_answer_is_put_into_the_form() -> None:
    assert Format().score([Answer(Format().format_response("#### 18"))]) == [1.0]
    assert Format(pattern="x").format_response("y") == "y"
