"""Short answers between tags, compared as Search-R1 does."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.rewards.search import Search
from launcher.spec.reward import Answer, truth_text

TRUTH = {"target": ["The Eiffel Tower", "La Tour Eiffel"]}


@pytest.mark.parametrize(("response", "truth", "expected"), [
    ("<answer>eiffel tower.</answer>", TRUTH, 1.0),
    ("<answer>Big Ben</answer> no, <answer> la tour EIFFEL </answer>", TRUTH, 1.0),  # the last one counts
    ("<answer>Eiffel Tower</answer> no, <answer>Big Ben</answer>", TRUTH, 0.0),
    ("Eiffel Tower", TRUTH, 0.0),
    ("<answer>tower</answer>", TRUTH, 0.0),
    ("<answer>x</answer>" * 10 + "<answer>Eiffel Tower</answer>", TRUTH, 0.25),  # one answer is asked for
    ("<answer>42</answer>", {"target": 42}, 1.0), ("<answer>42</answer>", [42, 43], 1.0),
    ("<answer>42</answer>", "42", 1.0), ("<answer>the</answer>", {"target": ["a"]}, 0.0),
])  # fmt: skip
def test_answers(response: str, truth: Any, expected: float) -> None:
    answer = Answer(response, truth_text(truth), typed_truth=None if isinstance(truth, str) else truth)
    assert Search().score([answer]) == [expected]
    right = Search().reference_response(answer)
    assert right and not Search().unscorable_reason(answer)


def test_a_truth_without_target_cannot_be_scored() -> None:
    assert "no ground truth with a target" in Search().unscorable_reason(Answer("x", "{}", typed_truth={"numbers": []}))
