"""What a metric is called, here and elsewhere, and which validation is the better one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from launcher.core.metric_aliases import by_our_names, canonical, known, spellings
from launcher.core.metrics import (
    HeldOut,
    better,
    better_than,
    catalogue,
    described,
    grade,
    held_out,
    held_out_score,
    label,
    main_score,
    mean_of_validations,
    metric,
    normal,
    validation,
    watched,
    wilson,
)

REWARD, SCORED = "val-core/{}/reward/mean@1", "val-aux/{}/reward/scored@1"


A, B = REWARD.format("a"), REWARD.format("b")
TOLD = [
    # which way is better
    (better, (REWARD.format("openai/gsm8k"),), "up"),
    (better, ("val-core/a/reward/best@8/mean",), "up"),
    (better, ("val-aux/a/reward/std@8",), None),  # neither
    (better, ("val/loss",), "down"),
    (better, ("val/dpo_loss",), "down"),  # as actor/dpo_loss
    (better, ("val/rewards/margins",), "up"),
    (better, ("critic/score/mean",), "up"),
    (better, ("no/such",), None),
    # what a validation is judged by
    (held_out_score, ({A: 0.5, "val/loss": 1.0},), (A, 0.5)),  # a score before a loss
    (held_out_score, ({A: 0.5, B: 0.25},), ("val-core/*/reward/mean", 0.375)),  # every source counts
    (held_out_score, ({"val-core/a/reward/mean@4": 0.5, "val-core/a/reward/best@4/mean": 0.9},),
     ("val-core/a/reward/mean@4", 0.5)),
    (held_out_score, ({"val/loss": 0.7, "val/rewards/accuracies": 0.6},), ("val/rewards/accuracies", 0.6)),
    (held_out_score, ({"critic/score/mean": 1.0},), None),  # not of held-out data
    # how good it is
    (grade, ({A: 0.5}, None), 0.5),
    (grade, ({"val/loss": 0.7}, None), -0.7),  # less is more
    (grade, ({A: 0.5, "val/loss": 0.7}, "val/loss"), -0.7),
    (grade, ({A: 0.5}, "val/loss"), None),  # not measured
    (grade, ({"val/rewards/chosen": 0.5}, "val/rewards/chosen"), None),  # neither way is better
    (grade, ({"val/loss": math.nan}, None), None),
    (grade, ({A: 0.9, SCORED.format("a"): 0.01}, None), None),  # a mean of nearly nothing
    (grade, ({A: 0.9, SCORED.format("b"): 0.0}, None), None),  # b has no mean at all
    (grade, ({A: 0.9, SCORED.format("a"): 1.0}, None), 0.9),
    (grade, ({"val/loss": 0.7, SCORED.format("a"): 0.5}, "val/loss"), -0.7),  # a loss needs no scores
    (grade, ({}, None), None),
    # its name on a screen
    (label, (REWARD.format("openai/gsm8k"),), "openai/gsm8k"),
    (label, ("val-aux/openai/gsm8k/reward/wilson95_low@1",), "openai/gsm8k wilson95_low@1"),  # never as the mean
    (label, ("val-core/a/reward/best@8/mean",), "a best@8"),
    (label, ("val-core/*/reward/mean",), "all sources"),
    (label, ("train/loss",), "loss"),
    (label, ("val/loss",), "val loss"),
    (label, ("critic/score/format/mean",), "format"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "of", "found"), TOLD, ids=[f"{asked.__name__} {of}" for asked, of, _ in TOLD])
def test_what_is_told_of_metrics(asked: Callable[..., Any], of: tuple[Any, ...], found: Any) -> None:
    assert asked(*of) == found


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
        # behind any prefix of the policy's training, and before Lightning's endings
        ("grpo/score/mean", "critic/score/mean"), ("rl_trainer/grad_norm", "actor/grad_norm"),
        ("tokens/response_length/mean", "response_length/mean"), ("grpo_loss/total_loss", "actor/loss"),
        ("train/loss_step", "train/loss"), ("reward_epoch", "critic/score/mean"),
        ("my_critic/grad_norm", ""), ("a/ref/learning_rate", ""), ("x_length/clip_ratio", ""),
        ("test/x/score/mean", ""), ("rewards/mean_reward", ""), ("env_step", ""), ("a/loss", ""),
        ("of/nobody", ""), ("", ""),
    ],
)  # fmt: skip
def test_a_name_of_another_project_stands_for_the_metric_of_the_same_unit(theirs: str, ours: str) -> None:
    assert canonical(theirs) == (ours or theirs)
    assert known(theirs) == (ours != "" or theirs == "sampling/sampling_logp_difference/mean")


def test_a_spelling_stands_for_one_metric_and_each_of_ours_for_itself() -> None:
    every = [name for ours, row in catalogue().items() if row.aliases for name in (ours, *row.aliases)]
    assert len(every) == len(set(every)) and all(canonical(name) in catalogue() for name in every)
    assert [name for name in described() if "*" not in name and canonical(name) != name] == []
    assert spellings("critic/score/mean")[:2] == ("critic/score/mean", "reward")
    assert spellings("of/nobody") == ("of/nobody",)


def test_of_two_spellings_on_a_line_the_one_that_is_listed_first_counts() -> None:
    assert by_our_names(["policy_loss", "pg_loss", "x"]) == {"actor/pg_loss": "pg_loss", "x": "x"}
    assert by_our_names(["objective/rlhf_reward", "objective/scores"])["critic/score/mean"] == "objective/scores"


def test_intervals_of_95_percent() -> None:
    """Wilson's of 8 of 10 is that of his paper's formula; the mean's of 1, 2, 3, 4 has a deviation of sqrt(5 / 3)."""
    assert wilson(0.8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert wilson(0.5, 4, z=2.0) == pytest.approx((0.5 - 0.5 / math.sqrt(2), 0.5 + 0.5 / math.sqrt(2)))
    assert wilson(0.0, 1) == pytest.approx((0.0, 0.793451), abs=1e-6) and wilson(0.3, 0) == (0.0, 1.0)
    assert normal(2.5, 30.0, 4) == pytest.approx((2.5 - 1.959964 * 0.645497, 2.5 + 1.959964 * 0.645497), abs=1e-5)
    assert normal(2.0, 8.0, 2) == normal(2.0, 7.9999, 2) == (2.0, 2.0)


def test_means_and_the_better_of_validations() -> None:
    one, two = HeldOut(1, "val/loss", 1.0, 0.7, 1.6), HeldOut(2, "val/loss", 2.0, 1.6, 2.8)
    assert mean_of_validations([one, two]) == HeldOut(2, "val/loss", 1.5, 1.25, 2.0)
    assert mean_of_validations([one, HeldOut(3, "val/loss", 2.0, 1.9)]) == HeldOut(3, "val/loss", 1.5)
    assert (better_than(one, two), better_than(two, one), better_than(one, one)) == (True, False, False)
    scores = [HeldOut(step, A, value) for step, value in enumerate((0.25, 0.5))]
    assert (better_than(*scores), better_than(scores[1], scores[0])) == (False, True)
    assert (one.shown, scores[0].shown) == ("1 [0.7–1.6]", "0.25")


def test_a_validation_has_its_interval_where_every_source_has_one() -> None:
    bounds = {"a/reward/wilson95_low": 0.2, "a/reward/wilson95_high": 0.6, "b/reward/normal95_low": 0.6,
              "b/reward/normal95_high": 1.3}  # fmt: skip
    ends = {f"val-aux/{name}@1": value for name, value in bounds.items()}
    both = {A: 0.5, B: 1.0}
    found = held_out(3, {**both, **ends})
    assert found == HeldOut(
        3, "val-core/*/reward/mean", 0.75, pytest.approx(0.5), pytest.approx(0.75 + math.hypot(0.1, 0.3) / 2)
    )
    assert held_out(3, {**both, **dict(list(ends.items())[:3])}) == HeldOut(3, "val-core/*/reward/mean", 0.75)
    assert held_out(3, {"val/loss": math.inf}) is None and held_out(3, {"train/loss": 1.0}) is None


def test_what_is_shown_of_a_step() -> None:
    step = {"train/loss": 2.0, "critic/score/mean": 0.5, "val/loss": 1.0, "x": 3.0}
    assert main_score(step) == ("critic/score/mean", 0.5) and main_score({"x": 1.0}) is None
    assert validation(step) == {"val/loss": 1.0}
    assert watched(step, 1) == watched(step)[:1] and dict(watched(step))["critic/score/mean"] == 0.5
