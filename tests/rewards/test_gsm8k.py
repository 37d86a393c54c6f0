"""GSM8K: a number is compared, wherever it was taken from."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from launcher.engines.torch.train.validation import majority
from launcher.rewards.gsm8k import GSM8K
from launcher.spec.reward import Answer


def score(method: str, response: str, truth: str | None, format_score: float = 0.0) -> float:
    (value,) = GSM8K(method=method, format_score=format_score).score([Answer(response, truth)])
    return value


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        ("9 * 2 = 18\n#### 18", "18", 1.0),
        ("####\n18", "18", 1.0),
        ("#### 18 dollars", "18", 1.0),
        ("#### \N{MINUS SIGN}5", "-5", 1.0),  # as a typesetter writes it
        ("#### +5", "5", 1.0),
        ("#### .5", "0.5", 1.0),
        ("#### 0.1", "0.10000000000000000001", 0.0),  # as numbers, not as floats
        ("#### 17\nno:\n#### 18", "18", 1.0),  # the last mark counts
        ("#### 18\n#### none", "18", 0.0),
        ("18", "18", 0.0),  # no mark
        ("#### the answer is 18", "18", 0.0),  # not right after the mark
        ("#### 18", "9 * 2 = <<9*2=18>>18\n#### 18", 1.0),  # a whole solution as ground truth
        ("#### 2", "1/2", 0.0),  # no number: nothing is guessed
        ("#### 18", "18 apples", 0.0),
        ("#### \u0661\u0668", "18", 0.0),  # digits of other scripts are not read
    ],
)
def test_strict(response: str, truth: str | None, expected: float) -> None:
    assert score("strict", response, truth) == expected


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        ("first 3, then 18.", "18", 1.0),
        ("18 and then 3", "18", 0.0),  # the last number counts
        ("10-3", "3", 1.0),  # a difference, not a sign
        ("10 - 13 = -3", "-3", 1.0),
        ("covid-19", "19", 1.0),
        ("", "18", 0.0),
        ("18" + " and so on" * 100, "18", 1.0),  # however far from the end
        ("it is 18", None, 0.0),
    ],
)
def test_flexible(response: str, truth: str | None, expected: float) -> None:
    assert score("flexible", response, truth) == expected


@pytest.mark.parametrize(
    ("method", "response", "truth", "expected"),
    [
        ("strict", "#### 17", "18", 0.1),  # wrong, but where it belongs
        ("flexible", "17", "18", 0.1),
        ("strict", "#### 17", None, 0.0),  # nothing to be wrong about
    ],
)
def test_format_score(method: str, response: str, truth: str | None, expected: float) -> None:
    assert score(method, response, truth, 0.1) == expected


def test_format_score_stays_between_wrong_and_right() -> None:
    with pytest.raises(ValidationError):
        GSM8K(format_score=1.5)


@pytest.mark.parametrize("piece", ["1", "1.", "1,", "-", "1-", ".", "#### ", "$", " ", "1 ", "a1.1.", "\n"])
def test_a_long_text_takes_one_walk(piece: str) -> None:
    response = piece * (200_000 // len(piece))
    start = time.process_time()
    for method in ("strict", "flexible"):
        score(method, response, "18")
        score(method, "18", response)
    assert time.process_time() - start < 6  # measured: below 0.1; a search that tries twice takes minutes


@settings(max_examples=100, deadline=None, database=None)
@given(
    response=st.text() | st.text("0123456789.,-+$# \n"), truth=st.none() | st.text() | st.text("0123456789.,-+$# \n")
)
def test_any_text_gets_a_score(response: str, truth: str | None) -> None:
    for method in ("strict", "flexible"):
        assert score(method, response, truth) in (0.0, 1.0)


@given(st.integers(-(10**9), 10**9), st.integers(0, 5))
@settings(deadline=None, database=None)
def test_every_way_to_write_a_number_is_that_number(number: int, zeros: int) -> None:
    for text in (str(number), f"{number:,}", f"{number}.{'0' * (zeros + 1)}", f"{'-' * (number < 0)}${abs(number):,}."):
        assert score("strict", f"#### {text}", str(number)) == 1.0
        assert score("flexible", f"it is {text}", f"#### {number}") == 1.0


def test_solutions_with_equal_numbers_say_the_same() -> None:
    texts = ["I guess #### 7", "2 and 3 make #### 5", "it is #### 5.0", "so #### $5"]
    reward = GSM8K()
    scores = reward.score([Answer(text, ground_truth="5") for text in texts])
    assert [reward.extract_answer(text) for text in texts] == ["7", "5", "5", "5"]
    assert majority(scores, [reward.extract_answer(text) for text in texts]) == 1.0
    assert reward.extract_answer("no number") == ""
    assert GSM8K(method="flexible").extract_answer("first 3, then 4") == "4"
