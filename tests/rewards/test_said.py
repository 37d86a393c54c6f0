"""What answers come to: the majority of n is taken over that, not over their text."""

from __future__ import annotations

from launcher.engines.torch.train.validation import majority
from launcher.rewards.exact import Exact
from launcher.rewards.gsm8k import GSM8K
from launcher.spec.reward import Answer


def test_solutions_with_equal_numbers_say_the_same() -> None:
    told = ["I guess #### 7", "2 and 3 make #### 5", "it is #### 5.0", "so #### $5"]
    reward = GSM8K()
    scores = reward.score([Answer(text, ground_truth="5") for text in told])
    assert [reward.extract_answer(text) for text in told] == ["7", "5", "5", "5"]
    assert majority(scores, [reward.extract_answer(text) for text in told]) == 1.0
    assert reward.extract_answer("no number") == ""
    assert GSM8K(method="flexible").extract_answer("first 3, then 4") == "4"


def test_case_and_blanks_count_where_they_do_for_the_score() -> None:
    assert Exact(ignore_case=True).extract_answer(" Paris\n") == Exact(ignore_case=True).extract_answer("paris")
    assert Exact().extract_answer("Paris") != Exact().extract_answer("paris")
