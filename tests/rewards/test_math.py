"""Competition mathematics: the last box equals the truth, however either is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from launcher.rewards.math import Math, boxed
from launcher.spec.reward import Answer, score_safely

REWARD = Math(workers=1)


@pytest.mark.parametrize(
    ("given", "truth", "score"),
    [
        (r"\frac{1}{2}", "0.5", 1.0),
        (r"5\text{ cm}", "5", 1.0),
        ("1+x^2", "x^2+1", 1.0),
        (r"\{2, 1\}", r"\{1,2\}", 1.0),  # a set has no order
        ("(2, 1)", "(1, 2)", 0.0),  # a pair has
        (r"18\%", "18", 1.0),  # of MATH's truths some have the sign, and some answers
        ("18", r"18\%", 1.0),
        ("", "7", 0.0),
        ("7", r"so it is \boxed{7}", 1.0),  # a whole solution as ground truth
        ("18", "9 * 2 = 18\n#### 18", 1.0),  # GSM8K's
        (r"}{\\", "7", 0.0),  # nonsense
    ],
)
def test_equal_expressions(given: str, truth: str, score: float) -> None:
    found = score_safely(REWARD, [Answer(rf"I think \boxed{{{given}}}.", truth)])
    assert (list(found.total), list(found.faults)) == ([score], [""])


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"\boxed{1} no, \boxed{2}", "2"),  # the last one
        (r"\boxed {3}", "3"),
        (r"\fbox{4}", "4"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),  # written braces are no braces
        (r"\boxed{1} and \boxed{2", None),  # cut in its last box: what it came to is not known
        (r"\boxed 5", None),
    ],
)
def test_the_last_box(response: str, expected: str | None) -> None:
    assert boxed(response) == expected


def test_without_a_box_nothing_counts_unless_that_is_wanted() -> None:
    answers = [Answer("The answer is $\\frac{1}{2}$.", "0.5"), Answer("it is 7", "7"), Answer("it is 7", "8")]
    assert list(score_safely(REWARD, answers).total) == [0.0, 0.0, 0.0]
    assert list(score_safely(Math(boxed=False, workers=1), answers).total) == [1.0, 1.0, 0.0]


def test_an_expression_without_end_is_wrong_in_time_and_told() -> None:
    """It is the answer's doing: were its group left out, a policy could choose not to be judged. Two such answers to
    one prompt leave out the third, which must not leave out its group either."""
    reward = Math(timeout_s=1.0, workers=1)
    score_safely(reward, [Answer(r"\boxed{1}", "2")])  # loaded
    hard = ["9^{9^{9^{9^9}}}", "(x+y+z+w)^{5000}", "(x+y+z+w)^{5001}"]
    answers = [Answer(rf"\boxed{{{text}}}", "2", prompt="a") for text in hard] + [Answer(r"\boxed{4/2}", "2")]
    begin = time.monotonic()
    found = score_safely(reward, answers)
    assert time.monotonic() - begin < 120
    assert (list(found.total), list(found.faults)) == ([0.0, 0.0, 0.0, 1.0], [""] * 4)
    assert list(found.parts["timed_out"]) == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("piece", [r"\boxed{", "{", r"\boxed{1}", "\\", "}{", r"\fbox {"])
def test_a_long_text_takes_one_walk(piece: str, within: Callable[[float], AbstractContextManager[None]]) -> None:
    with within(0.6):
        boxed(piece * (200_000 // len(piece)))


def test_what_a_row_must_have_and_how_it_looks_when_right() -> None:
    assert REWARD.unscorable_reason(Answer("", None)) == "has no ground truth, which reward Math compares with"
    assert REWARD.unscorable_reason(Answer("", " ")) != "" and REWARD.unscorable_reason(Answer("", "7")) == ""
    assert REWARD.reference_response(Answer("", r"thus \boxed{7}")) == r"\boxed{7}"
    assert REWARD.extract_answer(r"so \boxed{ 1 / 2 }") == "1/2"
