"""Rewards made of rewards: sums, and the rule that a row's source asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.core.settings import settings
from launcher.rewards.combined import Auto, ByStyle, Weighted
from launcher.rewards.exact import Exact
from launcher.rewards.format import Format
from launcher.rewards.gsm8k import GSM8K
from launcher.rewards.length import Length
from launcher.rewards.model import RewardModel
from launcher.spec.reward import Answer, Reward, score_safely, why_unscorable

WORDS = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=2"]


@settings
class FakeModel(Reward):
    """Fake reward model: the score is the number in the response; text raises."""

    learned = True

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [float(answer.response) for answer in answers]


def auto(**more: Any) -> Auto:
    return Auto(parts={"gsm8k": GSM8K(), "exact": Exact()}, **more)


def test_a_weighted_sum_and_its_parts_by_hand() -> None:
    reward = Weighted(parts={"right": Exact(), "model": FakeModel(), "short": Length(high=1, margin=1)},
                      weights={"right": 2.0, "model": -0.5, "short": 0.0})  # fmt: skip
    found = score_safely(reward, [Answer("4", "4"), Answer("6", "4"), Answer("44", "4")])
    assert list(found.total) == [2.0 - 2.0, -3.0, -22.0]
    assert found.parts == {
        "right": [1.0, 0.0, 0.0], "model": [4.0, 6.0, 44.0], "short": [1.0, 1.0, 0.0],
        "rule_based": [2.0, 0.0, 0.0], "rm_based": [-2.0, -3.0, -22.0],
    }  # fmt: skip


def test_an_answer_that_one_part_cannot_score_has_no_score() -> None:
    reward = Weighted(parts={"right": Exact(), "model": FakeModel()})
    found = score_safely(reward, [Answer("4", "4"), Answer("x", "x")])
    assert found.total[0] == 5.0 and math.isnan(found.total[1])
    assert found.faults[1].startswith("model: ValueError: could not convert") and found.faults[0] == ""
    assert found.parts["right"] == [1.0, 1.0]  # of the part itself all is known
    assert math.isnan(found.parts["rule_based"][1])
    unweighted = score_safely(replace(reward, weights={"model": 0.0}), [Answer("x", "x")])
    assert (list(unweighted.total), list(unweighted.faults)) == ([1.0], [""])


def test_gold_has_the_form_that_every_part_asks_for() -> None:
    reward = resolve([*WORDS, "reward=gsm8k_format"]).reward
    truth = reward.reference_response(Answer("", "18"))
    assert truth == "<think>\n\n</think>\n<answer>#### 18</answer>"
    assert score_safely(reward, [Answer(truth, "18")]).total == [pytest.approx(1.2)]
    assert reward.extract_answer(truth) == "18"  # as the part with the largest weight reads it
    assert reward.unscorable_reason(Answer("", None)) == "has no ground truth, which reward GSM8K compares with"


# ---- from words


def test_the_command_line_names_choices_and_weights() -> None:
    words = ["reward=weighted", "reward.parts={gsm8k: 1.0, format: 0.2}", "reward.parts.gsm8k.method=flexible"]
    parts = {"gsm8k": GSM8K(method="flexible"), "format": Format()}
    assert resolve([*WORDS, *words]).reward == Weighted(parts=parts, weights={"gsm8k": 1.0, "format": 0.2})


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["reward=weighted"], ["reward.parts: has no value; use reward.parts=VALUE"]),
        (["reward=weighted", "reward.parts={gsm8: 1.0}"], ["reward.parts: no choice 'gsm8'; did you mean gsm8k?"]),
        (["reward=weighted", "reward.parts={gsm8k: 1}", "reward.parts.gsm8k.methd=x"],
         ["reward.parts.gsm8k.methd: GSM8K has no setting 'methd';"
          " it has format_score, method"]),
        (["reward=gsm8k_format", "reward.weights.gsm8k=.inf"], None),
        (["reward=gsm8k_format", "reward.method=flexible"],  # as it was called before there were parts
         ["reward.method: Weighted has no setting 'method'; reward.method is a setting of reward=gsm8k"]),
        (["reward=weighted", "reward.parts={x: {_target_: os.system}}"], None),  # classes come from files only
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(words: list[str], lines: list[str] | None) -> None:
    with pytest.raises(Problems) as caught:
        resolve([*WORDS, *words])
    assert lines is None or caught.value.lines == lines


def test_problems_of_parts_are_named_by_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = Weighted(parts={"a b": Exact(), "form": Format(pattern="(")}, weights={"fom": 1.0})
    found = list(map(str, reward.problems()))
    assert found[0] == "reward.weights: no part 'fom'; did you mean form?"
    assert found[1].startswith("reward.parts: 'a b' cannot name a metric")
    assert found[2].startswith("reward.parts.form.pattern: '(' is not a regular expression")
    (zero,) = Weighted(parts={"exact": Exact()}, weights={"exact": 0.0}).problems()
    assert str(zero) == "reward.weights: all parts weigh 0, so nothing can be learnt; use reward.weights.exact=1"


def test_what_needs_a_network_is_known_of_the_whole() -> None:
    model = Weighted(parts={"right": Exact(), "model": RewardModel(path="some/model")})
    assert not model.cheap and not model.learned
    assert [type(leaf) for leaf in model.leaves()] == [Exact, RewardModel]
    assert Weighted(parts={"right": Exact()}).cheap


# ---- by style


def by_style() -> ByStyle:
    return ByStyle(parts={"right": Exact(), "short": Length(high=1, margin=1), "model": FakeModel()},
                   weights={"right": 2.0, "model": 0.5})  # fmt: skip


def test_models_score_rows_of_style_model_and_rules_all_others() -> None:
    answers = [
        Answer("4", "4", style="rule"),  # 2 + 1
        Answer("6", None, style="model"),  # 6 / 2; no truth to compare with
        Answer("8", "8", style="model"),  # 8 / 2, though it equals the truth
        Answer("7", "4", style="rule-lighteval/MATH_v2"),  # as in DAPO-Math-17k: a rule's
        Answer("9", None),  # no style and no truth: a model's
    ]
    found = score_safely(by_style(), answers)
    assert (list(found.total), set(found.faults)) == ([3.0, 3.0, 4.0, 1.0, 4.5], {""})
    assert list(found.parts["model"])[1:3] == [6.0, 8.0] and math.isnan(found.parts["right"][1])
    assert math.isnan(found.parts["rm_based"][0]) and found.parts["rule_based"][0] == 3.0
    rules = replace(by_style(), parts={"right": Exact()}, weights={})
    assert set(score_safely(rules, answers[:1]).parts) == {"right", "rule_based"}, "no model has scored the row"
    assert by_style().unscorable_reason(answers[1]) == ""
    assert by_style().unscorable_reason(Answer("", None, style="rule")).startswith("has no ground truth")
    assert by_style().reference_response(answers[0]) == "4" and by_style().reference_response(answers[1]) is None


def test_the_span_of_by_style_is_the_larger_of_both_sums() -> None:
    learned, rule = FakeModel(), Exact()
    spans = {"right": rule, "also": rule, "short": Length(high=1, margin=1)}
    assert ByStyle(parts=spans, weights={"right": 3.0}).span == Weighted(parts=spans, weights={"right": 3.0}).span
    assert ByStyle(parts={**spans, "model": learned}).span is None  # a model's is not known
    assert ByStyle(parts={"right": rule}, weights={"right": 0.0}).span == 0.0

    @settings
    class Bounded(FakeModel):
        span = 2.5

    both = ByStyle(parts={"right": rule, "also": rule, "model": Bounded()})
    assert both.span == 2.5 and replace(both, weights={"also": 4.0}).span == 5.0


@pytest.mark.parametrize(("part", "style", "what"), [(Exact(), "model", "model"), (FakeModel(), "rule", "rule")])
def test_a_style_without_parts_has_no_score_and_no_traceback(part: Reward, style: str, what: str) -> None:
    reward, answer = ByStyle(parts={"only": part}), Answer("4", "4", style=style)
    other = replace(answer, style={"model": "rule", "rule": "model"}[style])
    why = f"no part of reward.parts is a {what}"
    assert reward.unscorable_reason(answer) == why and reward.unscorable_reason(other) == ""
    found = score_safely(reward, [answer, other])
    assert list(found.faults) == [why, ""] and found.total[1] in (1.0, 4.0)
    assert reward.reference_response(answer) is None and not reward.cheap_for(answer)
    assert (reward.format_response("4"), reward.extract_answer("4")) == ("4", "4")


MODEL = "reward.parts.model.path=REWARD_MODEL"


@pytest.mark.parametrize(
    ("reward", "answer", "reason"),
    [
        (Exact(), Answer("", None, style="model"),
         f"use reward=by_style 'reward.parts={{exact:1,model:1}}' {MODEL}"),
        (Exact(), Answer("", "4", style="model"), "use reward=by_style"),  # it would be compared instead
        (auto(), Answer("", "4", "reverse", style="model"), "'reward.parts={auto:1,model:1}'"),
        (Weighted(parts={"exact": Exact(), "format": Format()}, weights={"format": 0.2}),
         Answer("", None, style="model"), "'reward.parts={exact:1,format:0.2,model:1}'"),
        (Weighted(parts={"right": Exact(), "model": FakeModel()}), Answer("", "4", style="model"), ""),
        (Length(high=2), Answer("", None, style="model"), ""),  # what compares with nothing scores any row
    ],
)  # fmt: skip
def test_a_row_of_style_model_is_not_for_a_rule(reward: Reward, answer: Answer, reason: str) -> None:
    found = why_unscorable(reward, answer)
    assert reason in found and bool(reason) == bool(found)


# ---- by data source


@pytest.mark.parametrize(
    ("answer", "routes", "score", "right", "reason"),
    [
        (Answer("#### 2", "2", "openai/gsm8k"), {}, 1.0, "#### 2", ""),
        (Answer("2", "2", "openai/gsm8k"), {}, 0.0, "#### 2", ""),
        (Answer("ba", "ba", "reverse"), {}, 1.0, "ba", ""),
        (Answer("#### 2", "2", "gsm-8k"), {}, None, None, "data_source 'gsm-8k' has no reward; did you mean gsm8k?"),
        (Answer("#### 2", "2", "mine"), {}, None, None,
         "data_source 'mine' has no reward; add 'reward.routes={mine: gsm8k}'"),
        (Answer("#### 2", "2", "mine"), {"mine": "gsm8k"}, 1.0, "#### 2", ""),
    ],
)  # fmt: skip
def test_each_row_is_scored_as_its_source_asks(
    answer: Answer, routes: dict[str, str], score: float | None, right: str | None, reason: str
) -> None:
    reward, other = auto(routes=routes), Answer("x", "x", "reverse")
    found = score_safely(reward, [answer, other])
    assert (found.total[1], list(found.faults)) == (1.0, [reason, ""]) and reward.unscorable_reason(answer) == reason
    assert math.isnan(found.total[0]) if score is None else found.total[0] == score
    assert reward.reference_response(answer) == right
    known = [column[0] for column in found.parts.values() if not math.isnan(column[0])]
    assert known == ([] if score is None else [score]), "of the part that has scored it alone"


def test_a_route_that_leads_nowhere() -> None:
    assert list(map(str, auto(routes={"x": "gsm"}).problems())) == [
        "reward.routes: 'x' leads to 'gsm', which is not a part; did you mean gsm8k?"
    ]
