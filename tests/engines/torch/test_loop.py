"""The order of what is told of a step, above all of one that was not taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from launcher.config.resolve import resolve
from launcher.core.events import Alert, Event, Saved, Step
from launcher.core.problems import Problems
from launcher.engines.torch.train.loop import Schedule, Training
from launcher.engines.torch.train.measure import Clock
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.save import LastValidation, SaveResult
from launcher.engines.torch.train.sources import Order
from launcher.spec.algorithm import AlgorithmState, Batch

Change = Callable[[Batch], Batch]
WHY = "data.jsonl:3: ValueError: no; 6 of 24 answers are without a score"
WORDS = ["algorithm=grpo", "model=tiny", "data=reverse", "data.train_batch_size=6", "sampler.n=4"]


class Listed:
    """Fake: a source whose batches are changed at some steps."""

    alerts: tuple[str, ...] = ()

    def __init__(self, jobs: ModuleType, policy: Policy, changes: dict[int, Change]) -> None:
        self.jobs, self.policy, self.changes = jobs, policy, changes
        self.order = Order(60, 6, 0, True)

    def batch(self, step: int, clock: Clock) -> tuple[Batch, dict[str, float]]:
        batch = self.jobs.batch_for(self.policy.algorithm, self.policy.model, step)
        changed = self.changes.get(step, lambda given: given)(batch)
        self.alerts = () if changed.reward.isfinite().all() else (WHY,)
        return changed, {}


def bad_reward(value: float) -> Change:
    """One answer of each group has no score, so no group is left."""
    first = torch.arange(0, 24, 4)
    return lambda batch: replace(batch, reward=batch.reward.index_fill(0, first, value))


def all_equal(batch: Batch) -> Batch:
    return replace(batch, reward=batch.reward * 0 + 1)


Gone = tuple[list[Event], list[torch.Tensor], Policy, str]


@pytest.fixture
def gone(jobs: ModuleType) -> Callable[..., Gone]:
    """What was told, the weights before each event, the policy, and why it ended early."""

    def train(changes: dict[int, Change], *words: str, kind: str = "grpo", steps: int = 6, save_freq: int = -1) -> Gone:
        policy = jobs.policy_for(kind, "float64", jobs.Limits(16))
        told, held = list[Event](), list[torch.Tensor]()

        def emit(event: Event) -> None:
            told.append(event)
            held.append(jobs.weights(policy))

        def save(step: int, _: AlgorithmState, __: LastValidation) -> SaveResult:
            return SaveResult(True)

        run = resolve([*WORDS, *words])
        training = Training(
            run, policy, Listed(jobs, policy, changes), None, Schedule(steps, 0, -1, save_freq), emit, save,
            lambda: False, {}, LastValidation(),
        )  # fmt: skip
        try:
            assert training.train()
        except Problems as problems:
            return told, held, policy, "\n".join(problems.lines)
        return told, held, policy, ""

    return train


def told_of(events: Sequence[Event], step: int) -> list[Event]:
    return [event for event in events if isinstance(event, Alert | Step | Saved) and event.step == step]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_step_without_a_scored_group_is_skipped_and_told_before_it(value: float, gone: Callable[..., Gone]) -> None:
    events, held, _, ended = gone({3: bad_reward(value)})
    assert ended == ""
    why, alert, step = told_of(events, 3)
    assert isinstance(why, Alert) and isinstance(alert, Alert) and isinstance(step, Step)
    assert why.text == WHY
    assert alert.text.startswith("100% of the updates skipped, ")
    assert alert.text.endswith(": no group of answers could be scored")
    assert "critic/score/mean" not in step.metrics  # a mean over nothing is not 0
    assert step.metrics["actor/skipped_nonfinite"] == 1.0
    assert "actor/pg_loss" not in step.metrics
    weights = {event.step: held[place] for place, event in enumerate(events) if isinstance(event, Step)}
    assert torch.equal(weights[3], weights[2])
    assert not torch.equal(weights[4], weights[3])
    assert sorted(weights) == [1, 2, 3, 4, 5, 6]
    assert [event for event in events if isinstance(event, Alert)] == [why, alert]


def test_the_run_ends_after_so_many_bad_steps_in_a_row(gone: Callable[..., Gone]) -> None:
    bad = bad_reward(math.nan)
    events, held, _, why = gone({2: bad, 3: bad, 5: bad, 6: bad, 7: bad, 8: bad}, "trainer.max_bad_steps=3", steps=9)
    line = "step 7: no group of answers could be scored, 3 steps in a row; use a reward that gives numbers"
    assert why == f"{line}\n{WHY}"
    assert [event.step for event in events if isinstance(event, Alert)] == [2, 2, 3, 3, 5, 5, 6, 6, 7, 7]
    assert isinstance(events[-1], Step) and events[-1].step == 7  # what happened is told before it ends
    assert torch.equal(held[-1], held[[isinstance(e, Step) and e.step == 4 for e in events].index(True)])


def test_the_remedy_for_all_else_is_a_smaller_step(
    jobs: ModuleType, gone: Callable[..., Gone], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = jobs.policy_for("grpo", "float64", jobs.Limits(16))
    monkeypatch.setattr(jobs, "policy_for", lambda *_: policy)

    def break_reference(batch: Batch) -> Batch:
        policy.reference.model.base.get_output_embeddings().weight.data[:] = math.nan
        return batch

    events, _, _, why = gone({2: break_reference}, "trainer.max_bad_steps=2")
    assert why == "step 3: reference is not finite, 2 steps in a row; use a smaller optim.lr"
    alert, step = told_of(events, 2)
    assert isinstance(alert, Alert) and "reference is not finite" in alert.text and isinstance(step, Step)


def test_steps_with_nothing_to_learn_are_not_bad(gone: Callable[..., Gone]) -> None:
    events, held, _, why = gone(dict.fromkeys(range(2, 6), all_equal), "trainer.max_bad_steps=2", kind="dapo")
    assert why == ""
    alerts = [(event.step, event.text) for event in events if isinstance(event, Alert)]
    assert alerts == [
        (x, "nothing to learn from: no token counts in the loss, so no weight moves") for x in range(2, 6)
    ]
    steps = {event.step: (event, held[place]) for place, event in enumerate(events) if isinstance(event, Step)}
    for step in range(2, 6):
        event, weights = steps[step]
        assert event.metrics["train/groups_kept"] == 0.0
        assert event.metrics["actor/skipped_nonfinite"] == 0.0
        assert torch.equal(weights, steps[1][1])
    assert not torch.equal(steps[6][1], steps[5][1])


def test_a_bad_step_is_saved_like_any_other(gone: Callable[..., Gone]) -> None:
    events, _, _, _ = gone({2: bad_reward(math.nan)}, save_freq=2)
    assert [type(event).__name__ for event in told_of(events, 2)] == ["Alert", "Alert", "Step", "Saved"]


def test_in_critic_warmup_only_the_critic_learns(jobs: ModuleType) -> None:
    policy = jobs.policy_for("ppo", "float64", jobs.Limits(16))
    policy.critic_warmup = 2
    actor = [weight.clone() for weight in policy.model.parameters()]
    critic = [weight.clone() for weight in policy.critic.network.parameters()]
    metrics, _ = jobs.train_until(policy, 2, {}, updates=1)
    assert all(torch.equal(a, b) for a, b in zip(actor, policy.model.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(critic, policy.critic.network.parameters(), strict=True))
    assert not any(name.startswith("actor/pg") for name in metrics[0]) and "critic/vf_loss" in metrics[0]
    jobs.train_until(policy, 3, {}, updates=1)
    assert any(not torch.equal(a, b) for a, b in zip(actor, policy.model.parameters(), strict=True))
