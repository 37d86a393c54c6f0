"""Rules that need no program: what each scores, on both sides of each bound, and how it reads and writes an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from launcher.core.boxed import boxed
from launcher.engines.torch.train.validation import majority
from launcher.rewards.exact import Exact
from launcher.rewards.format import Format
from launcher.rewards.gsm8k import GSM8K
from launcher.rewards.length import Length
from launcher.rewards.math import Math
from launcher.rewards.search import Search
from launcher.spec.reward import Answer, Reward, score_safely, truth_text

EXACT = [
    (Exact(), "bacd", "bacd", 1.0),
    (Exact(), "bacd ", "\nbacd", 1.0),  # blanks around it
    (Exact(), "ba cd", "bacd", 0.0),  # a blank inside counts
    (Exact(), "bacd", None, 0.0),  # nobody said what is right
    (Exact(), "", None, 0.0),
    (Exact(), "Paris", "paris", 0.0),
    (Exact(ignore_case=True), "STRASSE", "straße", 1.0),  # more than lower case
    (Exact(strip=False), "bacd ", "bacd", 0.0),
]
TAGS, TEXT, NUMBER = Format(), "x" * 1000, Length(low=10, high=20, margin=10)
LENGTH = [(NUMBER, TEXT[:size], None, score) for size, score in ((0, 0.0), (5, 0.5), (10, 1.0), (20, 1.0), (25, 0.5))]
LENGTH += [
    (NUMBER, TEXT, None, 0.0),
    (Length(high=2, margin=1, unit="words"), "a  bc\n", None, 1.0),
    (Length(high=2, margin=1, unit="words"), "a b c", None, 0.0),
]
FORMAT = [
    (TAGS, "<think>a</think><answer>b</answer>", None, 1.0),
    (TAGS, "\n<think>\na\nb\n</think>\n\n<answer> 1 < 2 </answer>\n", None, 1.0),
    (TAGS, "<think>a</think> so <answer>b</answer>", None, 0.0),  # text between
    (TAGS, "<think>a</think><think>a</think><answer>b</answer>", None, 0.0),  # each tag once
    (TAGS, "<think>a<answer></think><answer>b</answer>", None, 0.0),
    (TAGS, "<think>a</think><answer>b", None, 0.0),  # cut
    (TAGS, "<think>a</think><answer>b</answer> so", None, 0.0),
    (TAGS, TAGS.format_response("#### 18"), None, 1.0),
]
TOWER = {"target": ["The Eiffel Tower", "La Tour Eiffel"]}
SEARCH = [
    (Search(), "<answer>eiffel tower.</answer>", TOWER, 1.0),
    (Search(), "<answer>Big Ben</answer> no, <answer> la tour EIFFEL </answer>", TOWER, 1.0),  # the last one counts
    (Search(), "<answer>Eiffel Tower</answer> no, <answer>Big Ben</answer>", TOWER, 0.0),
    (Search(), "Eiffel Tower", TOWER, 0.0),
    (Search(), "<answer>tower</answer>", TOWER, 0.0),
    (Search(), "<answer>x</answer>" * 10 + "<answer>Eiffel Tower</answer>", TOWER, 0.25),  # one answer is asked for
    (Search(), "<answer>42</answer>", {"target": 42}, 1.0),
    (Search(), "<answer>42</answer>", [42, 43], 1.0),
    (Search(), "<answer>42</answer>", "42", 1.0),
    (Search(), "<answer>the</answer>", {"target": ["a"]}, 0.0),
]
STRICT, FLEXIBLE = GSM8K(), GSM8K(method="flexible")
NUMBERS = [
    (STRICT, "9 * 2 = 18\n#### 18", "18", 1.0),
    (STRICT, "####\n18", "18", 1.0),
    (STRICT, "#### 18 dollars", "18", 1.0),
    (STRICT, "#### \N{MINUS SIGN}5", "-5", 1.0),  # as a typesetter writes it
    (STRICT, "#### +5", "5", 1.0),
    (STRICT, "#### .5", "0.5", 1.0),
    (STRICT, "#### 0.1", "0.10000000000000000001", 0.0),  # as numbers, not as floats
    (STRICT, "#### 17\nno:\n#### 18", "18", 1.0),  # the last mark counts
    (STRICT, "#### 18\n#### none", "18", 0.0),
    (STRICT, "18", "18", 0.0),  # no mark
    (STRICT, "#### the answer is 18", "18", 0.0),  # not right after the mark
    (STRICT, "#### 18", "9 * 2 = <<9*2=18>>18\n#### 18", 1.0),  # a whole solution as ground truth
    (STRICT, "#### 2", "1/2", 0.0),  # no number: nothing is guessed
    (STRICT, "#### 18", "18 apples", 0.0),
    (STRICT, "#### \u0661\u0668", "18", 0.0),  # digits of other scripts are not read
    (FLEXIBLE, "first 3, then 18.", "18", 1.0),
    (FLEXIBLE, "18 and then 3", "18", 0.0),  # the last number counts
    (FLEXIBLE, "10-3", "3", 1.0),  # a difference, not a sign
    (FLEXIBLE, "10 - 13 = -3", "-3", 1.0),
    (FLEXIBLE, "covid-19", "19", 1.0),
    (FLEXIBLE, "", "18", 0.0),
    (FLEXIBLE, "18" + " and so on" * 100, "18", 1.0),  # however far from the end
    (FLEXIBLE, "it is 18", None, 0.0),
    (GSM8K(format_score=0.1), "#### 17", "18", 0.1),  # wrong, but where it belongs
    (GSM8K(format_score=0.1), "#### 17", None, 0.0),  # nothing to be wrong about
    (GSM8K(format_score=0.1, method="flexible"), "17", "18", 0.1),
]
BOX, ANY = Math(workers=1), Math(boxed=False, workers=1)
MATH = [
    (BOX, r"I think \boxed{\frac{1}{2}}.", "0.5", 1.0),
    (BOX, r"I think \boxed{5\text{ cm}}.", "5", 1.0),
    (BOX, r"\boxed{1+x^2}", "x^2+1", 1.0),
    (BOX, r"\boxed{\{2, 1\}}", r"\{1,2\}", 1.0),  # a set has no order
    (BOX, r"\boxed{(2, 1)}", "(1, 2)", 0.0),  # a pair has
    (BOX, r"\boxed{18\%}", "18", 1.0),  # of MATH's truths some have the sign, and some answers
    (BOX, r"\boxed{18}", r"18\%", 1.0),
    (BOX, r"\boxed{}", "7", 0.0),
    (BOX, r"\boxed{7}", r"so it is \boxed{7}", 1.0),  # a whole solution as ground truth
    (BOX, r"\boxed{18}", "9 * 2 = 18\n#### 18", 1.0),  # GSM8K's
    (BOX, r"\boxed{}{\\}", "7", 0.0),  # nonsense
    (BOX, "The answer is $\\frac{1}{2}$.", "0.5", 0.0),
    (BOX, "it is 7", "7", 0.0),
    (ANY, "The answer is $\\frac{1}{2}$.", "0.5", 1.0),  # also without a box, as that is wanted
    (ANY, "it is 7", "7", 1.0),
    (ANY, "it is 7", "8", 0.0),
]


@pytest.mark.parametrize(
    ("reward", "response", "truth", "score"),
    [*EXACT, *LENGTH, *FORMAT, *SEARCH, *NUMBERS, *MATH],
    ids=lambda value: type(value).__name__ if isinstance(value, Reward) else str(value)[:30],
)
def test_what_an_answer_scores(reward: Reward, response: str, truth: Any, score: float) -> None:
    answer = Answer(response, truth_text(truth), typed_truth=None if isinstance(truth, str) else truth)
    found = score_safely(reward, [answer])
    assert (found.total, found.faults) == ([pytest.approx(score)], [""])


@pytest.mark.parametrize(
    ("reward", "truth", "right", "reason"),
    [
        (Exact(), "18", "18", ""),
        (Exact(), None, None, "has no ground truth, which reward Exact compares with"),
        (Exact(), " ", " ", "has no ground truth, which reward Exact compares with"),
        (Exact(strip=False), " ", " ", ""),
        (Search(), TOWER, "<answer> The Eiffel Tower </answer>", ""),
        (Search(), "42", "<answer> 42 </answer>", ""),
        (Search(), {"numbers": []}, None, "has no ground truth with a target, which reward Search compares with"),
        (BOX, r"thus \boxed{7}", r"\boxed{7}", ""),
        (BOX, None, None, "has no ground truth, which reward Math compares with"),
        (BOX, " ", r"\boxed{}", "has no ground truth, which reward Math compares with"),
    ],
)
def test_what_a_row_must_have_and_how_it_looks_when_right(
    reward: Reward, truth: Any, right: str | None, reason: str
) -> None:
    answer = Answer("x", truth_text(truth), typed_truth=None if isinstance(truth, str) else truth)
    assert (reward.reference_response(answer), reward.unscorable_reason(answer)) == (right, reason)


@pytest.mark.parametrize(
    ("reward", "response", "final"),
    [
        (Exact(ignore_case=True), " Paris\n", "paris"),
        (Exact(), "Paris", "Paris"),
        (STRICT, "no number", ""),
        (FLEXIBLE, "first 3, then 4", "4"),
        (BOX, r"so \boxed{ 1 / 2 }", "1/2"),
    ],
)
def test_the_final_answer_counts_in_a_vote(reward: Reward, response: str, final: str) -> None:
    assert reward.extract_answer(response) == final


def test_solutions_with_equal_numbers_say_the_same() -> None:
    texts = ["I guess #### 7", "2 and 3 make #### 5", "it is #### 5.0", "so #### $5"]
    scores, finals = STRICT.score([Answer(text, "5") for text in texts]), list(map(STRICT.extract_answer, texts))
    assert finals == ["7", "5", "5", "5"] and majority(scores, finals) == 1.0


# ---- settings


@pytest.mark.parametrize(
    ("rule", "values"),
    [(Length, {"low": 5, "high": 4}), (Length, {}), (Length, {"high": 0}), (GSM8K, {"format_score": 1.5})],
)
def test_what_cannot_be_is_refused(rule: type[Reward], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        rule(**values)


def test_a_pattern_that_is_none_is_named() -> None:
    (problem,) = Format(pattern="(").problems()
    assert problem.where == "reward.pattern" and "'(' is not a regular expression: missing )" in problem.got
    assert Format().problems() == [] and Format(pattern="x").format_response("y") == "y"


# ---- any text, in time


Walk = Callable[[str], object]
WALKS: list[tuple[Walk, str]] = [
    *((lambda text: [one.score([Answer(text, "18"), Answer("18", text)]) for one in (STRICT, FLEXIBLE)], piece)
      for piece in ("1", "1.", "1,", "-", "1-", ".", "#### ", "$", " ", "1 ", "a1.1.", "\n")),
    *((boxed, piece) for piece in (r"\boxed{", "{", r"\boxed{1}", "\\", "}{", r"\fbox {")),
]  # fmt: skip


@pytest.mark.parametrize(("walk", "piece"), WALKS)
def test_a_long_text_takes_one_walk(
    walk: Walk, piece: str, within: Callable[[float], AbstractContextManager[None]]
) -> None:
    with within(0.6):  # a search that tries twice takes minutes
        walk(piece * (200_000 // len(piece)))


@pytest.mark.parametrize("piece", ["</think><answer>", "<"])
def test_tags_take_one_walk_over_a_megabyte(piece: str) -> None:
    found = score_safely(Format(timeout_s=5.0), [Answer("<think>" + piece * (1_000_000 // len(piece)))])
    assert list(found.faults) == [""]


def test_your_own_pattern_is_ended_where_it_never_ends() -> None:
    reward = Format(pattern="(a+)+b", timeout_s=0.5)
    begin = time.monotonic()
    found = score_safely(reward, [Answer("aab"), Answer("a" * 60), Answer("ab")])
    assert time.monotonic() - begin < 120
    assert list(found.faults) == ["", "reward.pattern took longer than 0.5 s", ""]
    assert [found.total[0], found.total[2]] == [1.0, 1.0]


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


TEXTS = st.text() | st.text("0123456789.,-+$# \n")


@settings(max_examples=100, deadline=None, database=None)
@given(response=TEXTS, truth=st.none() | TEXTS)
def test_any_text_gets_a_score(response: str, truth: str | None) -> None:
    for reward in (STRICT, FLEXIBLE):
        assert reward.score([Answer(response, truth)])[0] in (0.0, 1.0)


@given(st.integers(-(10**9), 10**9), st.integers(0, 5))
@settings(deadline=None, database=None)
def test_every_way_to_write_a_number_is_that_number(number: int, zeros: int) -> None:
    for text in (str(number), f"{number:,}", f"{number}.{'0' * (zeros + 1)}", f"{'-' * (number < 0)}${abs(number):,}."):
        assert STRICT.score([Answer(f"#### {text}", str(number))]) == [1.0]
        assert FLEXIBLE.score([Answer(f"it is {text}", f"#### {number}")]) == [1.0]
