"""Groups in which an answer has no score; and what is measured of a step, over all processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from families import tiny
from jobs import Even

from launcher.algorithms.grpo import GRPO
from launcher.core.events import Sample, Step, from_line, to_line
from launcher.core.metrics import described, metric
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train import measure
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.measure import mean_max_min, spreads
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.sums import Sums
from launcher.engines.torch.train.tally import mask_unscored
from launcher.engines.torch.train.validation import Validation
from launcher.spec.algorithm import Batch, Largest, Mean


def nonfinite_source(batch: Batch, *rows: int) -> Batch:
    return replace(batch, reward=batch.reward.index_fill(0, torch.tensor(rows), math.nan))


def learnt(policy: Policy, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
    """The weights after an off-policy update from the batch, and what it measured."""
    batch = policy.annotate(mask_unscored(batch), Clock(), on_policy=False)
    made, _ = policy.algorithm.prepare(batch, {})
    update = policy.update(made, 1)
    assert update.nonfinite_source == ""
    return jobs.weights(policy), dict(update.metrics)


@pytest.mark.parametrize(("kind", "limits"), [("ppo", Limits(3)), ("gspo_selfplay", Limits(16, 40))], ids=str)
def test_the_others_learn_what_they_would_learn_without_it(kind: str, limits: Limits) -> None:
    weights = []
    for excluded in (True, False):
        policy = jobs.policy_for(kind, "float64", limits)
        batch = jobs.batch_for(policy.algorithm, policy.model, 1)
        row = int((batch.preference == 0).nonzero()[0])  # of mixed rows a prompt's
        group = batch.group == batch.group[row]
        weights.append(learnt(policy, nonfinite_source(batch, row + 1) if excluded else batch.rows(~group)))
    (ours, told), (expected, wanted) = weights
    assert torch.allclose(ours, expected, rtol=0, atol=1e-12)
    assert told == pytest.approx(wanted, rel=1e-9, abs=1e-12)  # means, too, are taken over the others


def test_means_are_taken_over_what_was_scored() -> None:
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


# ---- held out


def test_held_out_answers_without_a_score_are_left_out_and_told() -> None:
    rows, model = jobs.prompts(6), tiny()
    rows.rows[:] = [replace(row, data_source="b" if row.ground_truth == "5" else "a") for row in rows.rows]

    def measured(reward: Even) -> tuple[dict[str, float], Sequence[str]]:
        policy = jobs.policy_of(model, GRPO())
        validation = Validation(rows, policy, PromptAnswerer(Decoder(model, TorchSampler(), 6), reward), 0, 3, 6)
        metrics, events = validation.measure(1)
        samples = [event for event in events if isinstance(event, Sample)]
        assert [math.isnan(sample.score) for sample in samples] == [row in reward.bad for row in "012345"]
        return metrics, validation.alerts

    whole, nothing = measured(Even())
    assert nothing == [] and not any("scored" in name for name in whole)
    found, alerts = measured(Even(["1", "5"]))
    assert found["val-aux/a/reward/scored@1"] == 0.8 and found["val-aux/b/reward/scored@1"] == 0.0
    assert "val-core/b/reward/mean@1" not in found  # a mean over nothing is not 0
    assert len(alerts) == 2 and alerts[0].startswith("f:1: ValueError: cannot score 1")
    scores = [whole["val-core/a/reward/mean@1"] * 5, found["val-core/a/reward/mean@1"] * 4]
    assert scores[0] - scores[1] in (0.0, pytest.approx(1.0))


f64 = torch.float64


@pytest.fixture
def step() -> tuple[Batch, Batch]:
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


def test_gradient_norms_are_those_before_clipping() -> None:
    policy = jobs.policy_for("grpo", "float64", Limits(5))
    policy.actor.optim = replace(policy.actor.optim, clip_grad=1e-9)
    batch = jobs.prepared(policy)
    assert policy.update(batch, 2).weight_norms is None
    update = policy.update(batch, 10)
    assert update.weight_norms is not None and len(update.weight_norms) == len(policy.actor.weights)
    assert update.weight_norms.norm().item() == pytest.approx(update.metrics["actor/grad_norm"], rel=1e-12)


# ---- over processes and micro-batches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "near"),
    [
        *((f"validation {kind}", 1e-12) for kind in ("sft", "dpo", "dpo fsdp2")),
        *((f"measured{way}", 1e-9) for way in ("", " fsdp2")),
    ],
)
def test_several_processes_measure_the_same(
    name: str, near: float, together: Callable[[int], list[dict[str, Any]]]
) -> None:
    """Also where weights lie in parts, though 11 rows are 5 at a time twice on one process and once on another."""
    expected = together(1)[0][name.removesuffix(" fsdp2")]
    assert all(found[name] == pytest.approx(expected, rel=near) for found in together(2))


def test_sums_leave_out_what_nothing_was_measured_of() -> None:
    sums, zero, one = Sums(torch.device("cpu")), torch.tensor(0.0), torch.tensor(1.0)
    assert sums.reduced() == ({}, {})
    sums.add(
        {"mean": Mean(one, one), "none": Mean(zero, zero), "top": Largest(-one), "empty": Largest(-math.inf * one)}
    )
    sums.add({"mean": Mean(zero, one), "top": Largest(one * 3)})
    assert sums.reduced() == ({"mean": 0.5}, {"top": 3.0})


SMALL = ["model=tiny", "model.hidden_size=16", "model.num_hidden_layers=1", "model.intermediate_size=32",
         "data=reverse", "data.n_prompts=16", "data.n_demos=16", "data.n_val=4", "data.train_batch_size=4",
         "trainer.total_training_steps=1"]  # fmt: skip
SAMPLED = [
    "sampler.n=2",
    "sampler.val_n=2",
    "sampler.val_temperature=1",
    "reward=weighted",
    "reward.parts={exact:1.0,format:0.2}",
]
RUNS = {
    "sft": ["algorithm=sft"],
    "dpo": ["algorithm=dpo"],
    "grpo": ["algorithm=grpo", "algorithm.kl_loss_coef=0.01", "algorithm.min_group_std=0.01",
             "algorithm.clip_ratio_c=3", "trainer.ppo_mini_batch_size=2", *SAMPLED],
    "ppo": ["algorithm=ppo", "algorithm.kl_coef=0.01", "algorithm.kl_ctrl=adaptive", *SAMPLED],
    "dapo": ["algorithm=dapo", "algorithm.overlong_buffer_len=2", *SAMPLED],
    "selfplay": ["algorithm=gspo_selfplay", *SAMPLED],
}  # fmt: skip


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_every_metric_has_an_entry(words: list[str], tmp_path: Path) -> None:
    names = {
        name for event in jobs.run(tmp_path, [*SMALL, *words]) if isinstance(event, Step) for name in event.metrics
    }
    assert len(names) > 10
    assert "sampler.n=2" not in words or {"timing_s/gen", "timing_s/reward"} <= names
    assert not [name for name in sorted(names) if metric(name) is None], "add them to conf/metrics.yaml"


def test_entries_are_whole() -> None:
    assert all(entry.label and entry.meaning for entry in described().values())
    assert metric("my/own") is None


def test_ends_that_are_not_finite_are_told() -> None:
    """The step's update is left out because of them, which its metrics have to live to say."""
    values = {"critic/rewards": torch.tensor([-torch.inf, -torch.inf])}
    found = mean_max_min(values)
    assert (found["critic/rewards/max"], found["critic/rewards/min"]) == (-torch.inf, -torch.inf)
    assert spreads(values, found)["critic/rewards/std"] == 0.0
