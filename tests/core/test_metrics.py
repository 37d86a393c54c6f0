"""What a metric is called, here and elsewhere, and which validation is the better one."""

from __future__ import annotations

import math

import pytest

from launcher.core.metric_aliases import by_our_names, canonical, known, spellings
from launcher.core.metrics import better, catalogue, described, grade, held_out_score, label, metric

REWARD, SCORED = "val-core/{}/reward/mean@1", "val-aux/{}/reward/scored@1"


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("val-core/openai/gsm8k/reward/mean@1", "up"),
        ("val-core/a/reward/best@8/mean", "up"),
        ("val-core/a/reward/maj@8/mean", "up"),
        ("val-aux/a/reward/std@8", None),  # neither
        ("val/loss", "down"),
        ("val/dpo_loss", "down"),  # as actor/dpo_loss
        ("val/rewards/margins", "up"),
        ("val/rewards/chosen", None),
        ("critic/score/mean", "up"),
        ("no/such", None),
    ],
)
def test_which_way_is_better(name: str, way: str | None) -> None:
    assert better(name) == way


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        ({REWARD.format("a"): 0.5, "val/loss": 1.0}, (REWARD.format("a"), 0.5)),  # a score before a loss
        ({REWARD.format("a"): 0.5, REWARD.format("b"): 0.25}, ("val-core/*/reward/mean", 0.375)),  # every source counts
        ({"val-core/a/reward/mean@4": 0.5, "val-core/a/reward/best@4/mean": 0.9}, ("val-core/a/reward/mean@4", 0.5)),
        ({"val/loss": 0.7, "val/rewards/accuracies": 0.6}, ("val/rewards/accuracies", 0.6)),
        ({"val/loss": 0.7, "val/other": 1.0}, ("val/loss", 0.7)),
        ({"critic/score/mean": 1.0}, None),  # not of held-out data
    ],
)
def test_what_a_validation_is_judged_by(metrics: dict[str, float], found: tuple[str, float] | None) -> None:
    assert held_out_score(metrics) == found


@pytest.mark.parametrize(
    ("metrics", "wanted", "value"),
    [
        ({REWARD.format("a"): 0.5}, None, 0.5),
        ({"val/loss": 0.7}, None, -0.7),  # less is more
        ({REWARD.format("a"): 0.5, REWARD.format("b"): 0.25}, None, 0.375),
        ({REWARD.format("a"): 0.5, "val/loss": 0.7}, "val/loss", -0.7),
        ({REWARD.format("a"): 0.5}, "val/loss", None),  # not measured
        ({"val/rewards/chosen": 0.5}, "val/rewards/chosen", None),  # neither way is better
        ({"val/loss": math.nan}, None, None),
        ({REWARD.format("a"): 0.9, SCORED.format("a"): 0.01}, None, None),  # a mean of nearly nothing
        ({REWARD.format("a"): 0.9, SCORED.format("b"): 0.0}, None, None),  # b has no mean at all
        ({REWARD.format("a"): 0.9, SCORED.format("a"): 0.5}, REWARD.format("a"), None),
        ({REWARD.format("a"): 0.9, SCORED.format("a"): 1.0}, None, 0.9),
        ({"val/loss": 0.7, SCORED.format("a"): 0.5}, "val/loss", -0.7),  # a loss needs no scores
        ({"val/loss": math.inf}, "val/loss", None),
        ({}, None, None),
    ],
)
def test_how_good_it_is(metrics: dict[str, float], wanted: str | None, value: float | None) -> None:
    assert grade(metrics, wanted) == value


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("val-core/openai/gsm8k/reward/mean@1", "openai/gsm8k"),
        ("val-aux/openai/gsm8k/reward/wilson95_low@1", "openai/gsm8k wilson95_low@1"),  # never as the mean
        ("val-core/a/reward/best@8/mean", "a best@8"),
        ("val-core/*/reward/mean", "all sources"),
        ("train/loss", "loss"),
        ("val/loss", "val loss"),
        ("critic/score/format/mean", "format"),
    ],
)
def test_names_for_a_screen(name: str, shown: str) -> None:
    assert label(name) == shown


# ---- the catalogue


def test_a_metric_has_the_meaning_of_its_mean_of_its_pattern_or_of_its_training() -> None:
    for name, words in {
        "prompt_length/max": "largest value", "val/test_score/openai/gsm8k": "older versions of verl",
        "critic/rewards/std": "standard deviation",
    }.items():  # fmt: skip
        found = metric(name)
        assert found and words in found.meaning


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("critic/score/mean", "critic/score/mean"), ("reward", "critic/score/mean"),
        ("mean_reward", "critic/score/mean"), ("Average reward score", "critic/score/mean"), ("Loss", "train/loss"),
        ("KL", "actor/kl_loss"), ("actor/entropy_loss", "actor/entropy"), ("Grad. Norm", "actor/grad_norm"),
        ("timing/gen", "timing_s/gen"), ("val/test_score/openai/gsm8k", "val-core/openai/gsm8k/reward/mean@1"),
        ("val-core/openai/gsm8k/acc/mean@4", "val-core/openai/gsm8k/reward/mean@4"),
        # of the same unit, and not only of the same subject
        ("objective/rlhf_reward", "critic/rewards/mean"),  # the score less the KL penalty
        ("objective/kl", "actor/ref_log_ratio_mean"),  # summed over an answer, not per token
        ("mean_log_prob_current", "actor/seq_log_prob_mean"), ("std_reward", "critic/score/std"),
        ("rollout/response_lengths", "response_length/mean"), ("train/pg_loss", "actor/pg_loss"),
        ("objective/entropy", ""),  # summed over an answer, too: no spelling of the entropy per token
        ("sampling/sampling_logp_difference/mean", ""),  # of logs, not probabilities
        ("of/nobody", ""), ("", ""),
    ],
)  # fmt: skip
def test_a_name_of_another_project_stands_for_the_metric_of_the_same_unit(theirs: str, ours: str) -> None:
    assert canonical(theirs) == (ours or theirs)
    assert known(theirs) == (theirs not in ("objective/entropy", "of/nobody", ""))


def test_a_spelling_stands_for_one_metric_and_each_of_ours_for_itself() -> None:
    every = [name for ours, row in catalogue().items() if row.aliases for name in (ours, *row.aliases)]
    assert len(every) == len(set(every)) and all(canonical(name) in catalogue() for name in every)
    assert [name for name in described() if "*" not in name and canonical(name) != name] == []
    assert spellings("critic/score/mean")[:2] == ("critic/score/mean", "reward")
    assert spellings("of/nobody") == ("of/nobody",)


def test_of_two_spellings_on_a_line_the_one_that_is_listed_first_counts() -> None:
    assert by_our_names(["policy_loss", "pg_loss", "x"]) == {"actor/pg_loss": "pg_loss", "x": "x"}
    assert by_our_names(["objective/rlhf_reward", "objective/scores"])["critic/score/mean"] == "objective/scores"
