"""Groups in which an answer has no score; and what is measured of a step, over all processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.grpo import GRPO
from launcher.core.events import Sample, from_line, to_line
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train import measure
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.sources import Order, Rollouts
from launcher.engines.torch.train.sums import Sums
from launcher.engines.torch.train.tally import Tally, mask_unscored, unscored_rows
from launcher.engines.torch.train.validation import Validation
from launcher.spec.algorithm import Algorithm, Batch, Largest, Mean
from launcher.spec.episode import Episode
from launcher.spec.reward import Answer, Reward, Scores


def nonfinite_source(batch: Batch, *rows: int) -> Batch:
    return replace(batch, reward=batch.reward.index_fill(0, torch.tensor(rows), math.nan))


def learnt(policy: Policy, batch: Batch, jobs: ModuleType) -> tuple[torch.Tensor, dict[str, float]]:
    """The weights after an off-policy update from the batch, and what it measured."""
    batch = policy.annotate(mask_unscored(batch), Clock(), on_policy=False)
    made, _ = policy.algorithm.prepare(batch, {})
    update = policy.update(made, 1)
    assert update.nonfinite_source == ""
    return jobs.weights(policy), dict(update.metrics)


@pytest.mark.parametrize(("kind", "limits"), [("ppo", Limits(3)), ("gspo_selfplay", Limits(16, 40))], ids=str)
def test_the_others_learn_what_they_would_learn_without_it(kind: str, limits: Limits, jobs: ModuleType) -> None:
    weights = []
    for excluded in (True, False):
        policy = jobs.policy_for(kind, "float64", limits)
        batch = jobs.batch_for(policy.algorithm, policy.model, 1)
        row = int((batch.preference == 0).nonzero()[0])  # of mixed rows a prompt's
        group = batch.group == batch.group[row]
        weights.append(learnt(policy, nonfinite_source(batch, row + 1) if excluded else batch.rows(~group), jobs))
    (ours, told), (expected, wanted) = weights
    assert torch.allclose(ours, expected, rtol=0, atol=1e-12)
    assert told == pytest.approx(wanted, rel=1e-9, abs=1e-12)  # means, too, are taken over the others


def test_means_are_taken_over_what_was_scored(jobs: ModuleType) -> None:
    batch = jobs.rollouts_of(jobs.small("float64"), 1)
    received = nonfinite_source(batch, 0)
    made = mask_unscored(received)
    found = measure.batch_metrics(received, made, True, 6)
    rest = batch.reward[4:]
    assert found["critic/score/mean"] == pytest.approx(rest.mean().item())
    assert found["critic/rewards/max"] == rest.max().item()
    lengths = measure.batch_metrics(batch, batch, True, 6)  # every answer was written
    assert found["response_length/mean"] == lengths["response_length/mean"]
    none = measure.batch_metrics(nonfinite_source(batch, *range(24)), batch, True, 6)
    assert not any(name.startswith("critic/") for name in none)  # no mean of nothing


# ---- sampling


class Fails(Reward):
    """Fake: right is an answer whose letters add up to an even number; to a prompt of `bad` it raises."""

    def __init__(self, bad: Sequence[str] = ()) -> None:
        self.bad = bad

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return list(self.judge(answers).total)

    def judge(self, answers: Sequence[Answer]) -> Scores:
        for answer in answers:
            if answer.ground_truth in self.bad:
                raise ValueError(f"cannot score {answer.ground_truth}")
        total = [float(sum(map(ord, answer.response)) % 2 == 0) for answer in answers]
        return Scores(total, {"even": total, "rule_based": total})


def rollouts(
    jobs: ModuleType, algorithm: Algorithm, reward: Reward, step: int = 1, **how: bool
) -> tuple[Batch, Any, Rollouts]:
    decoder = Decoder(jobs.small("float64"), TorchSampler(n=4), 5)
    source = Rollouts(jobs.prompts(16), Order(16, 6, 0, True), PromptAnswerer(decoder, reward), algorithm, 3, **how)
    return *source.batch(step, Clock()), source


def test_faults_are_counted_and_told_with_their_row(jobs: ModuleType) -> None:
    first, second = (str(row) for row in Order(16, 6, 0, True).step_rows(1)[:2])
    whole, told, source = rollouts(jobs, GRPO(), Fails())
    assert "reward/faults" not in told and source.alerts == []
    batch, told, source = rollouts(jobs, GRPO(), Fails([first, second]))
    assert torch.equal(batch.tokens, whole.tokens) and told["reward/faults"] == 8.0
    assert unscored_rows(batch).tolist() == [True] * 8 + [False] * 16
    assert torch.equal(batch.reward[8:], whole.reward[8:])
    assert [line.partition(" (")[0] for line in source.alerts] == [
        f"f:{row}: ValueError: cannot score {row}" for row in (first, second)
    ]
    assert all(line.endswith("; 4 of 24 answers are without a score, their groups left out") for line in source.alerts)
    *_, shrinking = rollouts(jobs, GRPO(), Fails([first, second]), shrinks=True)
    assert all(line.endswith("without a score, and are left out of their groups") for line in shrinking.alerts)
    shrunk, _, _ = rollouts(jobs, GRPO(), Fails([first, second]), shrinks=True)
    assert torch.equal(shrunk.group, batch.group), "what a reward cannot score is no fault of the environment"
    assert told["critic/score/even/mean"] == pytest.approx(batch.reward[8:].mean().item())
    assert told["train/core/reward/rule_based"] == told["critic/score/even/mean"]


def test_a_step_that_samples_until_it_is_full_takes_other_groups(jobs: ModuleType) -> None:
    bad = [str(row) for row in Order(16, 6, 0, True).step_rows(1)[:2]]
    batch, told, _ = rollouts(jobs, DAPO(), Fails(bad))
    assert told["train/num_gen_batches"] > 1 and told["train/share_full"] == 1.0
    assert not unscored_rows(batch).any() and len(batch) == 24
    kept = batch.reward.view(6, 4)
    assert told["critic/score/even/mean"] == pytest.approx(kept.mean().item())  # of those that were taken


def test_where_nothing_can_be_scored_no_more_is_written(jobs: ModuleType) -> None:
    batch, told, source = rollouts(jobs, DAPO(), Fails([str(row) for row in range(16)]))
    assert told["train/num_gen_batches"] == 1.0 and told["reward/faults"] == 24.0
    assert unscored_rows(batch).all()
    assert len(source.alerts) == 4 and source.alerts[-1].startswith("12 more answers are without a score, for 3 other")


def test_what_several_processes_tell_is_one_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither who found a fault nor which process has no parts changes what is said."""
    found = []
    for order in (0, 1):
        tallies = [Tally(), Tally()]
        tallies[order].note([episode(3, math.nan, "no", a=math.nan)], ["no"], ["f:3"])
        tallies[1 - order].note([episode(0, 1.0, a=1.0), episode(0, 0.0, a=0.0, b=2.0)], ["", ""], ["f:0"] * 2)
        held: list[Any] = []
        monkeypatch.setattr(world, "all_gather_object", lambda x, held=held: held.append(x) or [x])
        for tally in tallies:
            tally.summary()  # gathers sums, then faults
        for tally in tallies:
            replies = iter([held[::2], held[1::2]])
            monkeypatch.setattr(world, "all_gather_object", lambda _, replies=replies: next(replies))
            found.append(tally.summary())
    assert all(one == found[0] for one in found)
    assert found[0][0] == {"critic/score/a/mean": 0.5, "critic/score/b/mean": 2.0, "reward/faults": 1.0}


def episode(group: int, reward: float, fault: str = "", **parts: float) -> Episode:
    return Episode([1], (), group, reward=reward, parts=parts, fault=fault)


# ---- held out


def test_held_out_answers_without_a_score_are_left_out_and_told(
    tiny: Callable[..., CausalLM], jobs: ModuleType
) -> None:
    rows, model = jobs.prompts(6), tiny()
    rows.rows[:] = [replace(row, data_source="b" if row.ground_truth == "5" else "a") for row in rows.rows]

    def measured(reward: Reward) -> tuple[dict[str, float], Sequence[str]]:
        policy = jobs.policy_of(model, GRPO())
        validation = Validation(rows, policy, PromptAnswerer(Decoder(model, TorchSampler(), 6), reward), 0, 3, 6)
        metrics, events = validation.measure(1)
        samples = [event for event in events if isinstance(event, Sample)]
        assert [math.isnan(sample.score) for sample in samples] == [row in reward.bad for row in "012345"]
        return metrics, validation.alerts

    whole, nothing = measured(Fails())
    assert nothing == [] and not any("scored" in name for name in whole)
    found, alerts = measured(Fails(["1", "5"]))
    assert found["val-aux/a/reward/scored@1"] == 0.8 and found["val-aux/b/reward/scored@1"] == 0.0
    assert "val-core/b/reward/mean@1" not in found  # a mean over nothing is not 0
    assert len(alerts) == 2 and alerts[0].startswith("f:1: ValueError: cannot score 1")
    scores = [whole["val-core/a/reward/mean@1"] * 5, found["val-core/a/reward/mean@1"] * 4]
    assert scores[0] - scores[1] in (0.0, pytest.approx(1.0))


f64 = torch.float64


@pytest.fixture
def step(jobs: ModuleType) -> tuple[Batch, Batch]:
    """A step of PPO, as it was sampled and with its advantages."""
    policy = jobs.policy_for("ppo", "float64", Limits(5))
    return jobs.rollouts_of(policy.model, 1), jobs.prepared(policy)


def test_spreads_are_torchs(step: tuple[Batch, Batch]) -> None:
    """S4-09, S2-14, S2-25: what tells answers apart is the spread; S2-01, S2-30: the share of positive rewards."""
    raw, made = step
    found, seen = measure.batch_metrics(raw, made, True, 6), made.mask > 0
    expected = {
        "critic/score/std": raw.reward.std(),
        "critic/rewards/std": made.reward.std(),
        "critic/advantages/std": made.advantage[seen].std(),
        "critic/vf_explained_var": 1 - (made.target - made.value)[seen].var() / made.target[seen].var(),
        "critic/rewards/positive_share": (raw.reward > 0).double().mean(),
        "critic/rewards/max": made.reward.max(),
        "critic/rewards/min": made.reward.min(),
        "response_length/max": raw.mask.sum(1).max(),
        "response_length/min": raw.mask.sum(1).min(),
        "prompt_length/max": (raw.length - raw.mask.sum(1)).max(),
    }
    assert {name: found[name] for name in expected} == pytest.approx(
        {name: value.item() for name, value in expected.items()}, rel=1e-12
    )
    assert not {"critic/rewards/positive_share/mean", "critic/values/std"} & set(found)


@pytest.mark.parametrize(
    ("reward", "std", "positive"),
    [
        ([0.1] * 24, 0.0, 1.0),  # exactly: 24 times 0.1 over 24 is not 0.1
        ([1e9, 1e9 + 1] * 12, (6 / 23) ** 0.5, 1.0),  # squares would lose all digits
    ],
)
def test_rewards(reward: list[float], std: float, positive: float, step: tuple[Batch, Batch]) -> None:
    raw, made = (replace(batch, reward=torch.tensor(reward, dtype=f64)) for batch in step)
    found = measure.batch_metrics(raw, made, True, 6)
    assert found["critic/rewards/std"] == pytest.approx(std, rel=1e-6, abs=0)
    assert found["critic/rewards/positive_share"] == positive
    penalised = replace(made, reward=made.reward - 2e9)  # by the KL divergence, in the reward
    found = measure.batch_metrics(raw, penalised, True, 6)
    assert found["critic/rewards/positive_share"] == positive and found["critic/rewards/max"] < 0


# ---- distributions


DISTRIBUTIONS = [
    ([0.0, 1.0, 1.0, 0.5], (0.0, 1.0), {0: 1, 10: 1, 19: 2}),
    ([-1e308, 1e308], (-1e308, 1e308), {0: 1, 19: 1}),  # their difference is no number
    ([5e-324, 0.0], (0.0, 5e-324), {0: 1, 1: 1}),  # there are no edges between them
    ([math.nan, 3.0, math.inf, 4.0], (3.0, 4.0), {0: 1, 19: 1}),
]


@pytest.mark.parametrize(
    ("values", "ends", "counts"), DISTRIBUTIONS, ids=[str(values) for values, _, _ in DISTRIBUTIONS]
)
def test_distributions(values: list[float], ends: tuple[float, float], counts: Mapping[int, int]) -> None:
    """S2-24. As `Distribution` says it: counts[i] in [edges[i], edges[i + 1])."""
    found = measure.distribution(7, "x", torch.tensor(values, dtype=f64), shared=False)
    assert found and (found.step, found.name) == (7, "x")
    assert len(found.edges) == len(found.counts) + 1 <= measure.BINS + 1
    assert list(found.edges) == sorted(set(found.edges))
    assert (found.edges[0], found.edges[-1]) == (ends[0], math.nextafter(ends[1], math.inf))
    assert {place: count for place, count in enumerate(found.counts) if count} == counts
    assert from_line(to_line(found)) == found


def test_distributions_come_seldom() -> None:
    assert [step for step in range(32) if measure.shows_distributions(step)] == [0, 1, 10, 20, 30]
    assert measure.distribution(1, "x", torch.tensor([math.nan, -math.inf]), shared=False) is None


def test_gradient_norms_are_those_before_clipping(jobs: ModuleType) -> None:
    policy = jobs.policy_for("grpo", "float64", Limits(5))
    policy.actor.optim = replace(policy.actor.optim, clip_grad=1e-9)
    batch = jobs.prepared(policy)
    assert policy.update(batch, 2).weight_norms is None
    update = policy.update(batch, 10)
    assert update.weight_norms is not None and len(update.weight_norms) == len(policy.actor.weights)
    assert update.weight_norms.norm().item() == pytest.approx(update.metrics["actor/grad_norm"], rel=1e-12)


# ---- over processes and micro-batches


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", " fsdp2"])
def test_several_processes_measure_the_same(way: str, together: Callable[[int], list[dict[str, Any]]]) -> None:
    expected = together(1)[0]["measured"]
    for each in together(2):
        found = each[f"measured{way}"]
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-9)
        assert found["norms"] == pytest.approx(expected["norms"], rel=1e-9)
        assert found["edges"] == pytest.approx(expected["edges"], rel=1e-9)
        assert found["counts"] == expected["counts"] and sum(found["counts"]) == 24


def test_sums_leave_out_what_nothing_was_measured_of() -> None:
    sums, zero, one = Sums(torch.device("cpu")), torch.tensor(0.0), torch.tensor(1.0)
    assert sums.reduced() == ({}, {})
    sums.add(
        {"mean": Mean(one, one), "none": Mean(zero, zero), "top": Largest(-one), "empty": Largest(-math.inf * one)}
    )
    sums.add({"mean": Mean(zero, one), "top": Largest(one * 3)})
    assert sums.reduced() == ({"mean": 0.5}, {"top": 3.0})
