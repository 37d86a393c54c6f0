"""What is not finite changes nothing and is reported in order; the next good step is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jobs
import pytest
import torch
from torch import Tensor

from launcher.algorithms.sft import SFT
from launcher.config.resolve import resolve
from launcher.core.events import Alert, Event, Saved, Step
from launcher.core.problems import Problems
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.loop import Training
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.save import SaveResult, TrainingPosition
from launcher.engines.torch.train.sources import Order
from launcher.spec.algorithm import Batch, Loss, Output


def state(policy: Policy) -> dict[str, Tensor]:
    """Every weight and all that the optimizers remember."""
    found = {}
    for name, trained in (("actor", policy.actor), ("critic", policy.critic)):
        if trained is None:
            continue
        found |= {f"{name}.{key}": weight.detach().clone() for key, weight in trained.network.named_parameters()}
        for number, held in enumerate(trained.optimizer.state.values()):
            found |= {f"{name}.{number}.{key}": value.clone() for key, value in held.items()}
    return found


def spoil(field: str) -> Callable[[Policy, Batch], Batch]:
    """One token of the first row that has any is NaN, so that others are computed after it."""

    def change(_: Policy, batch: Batch) -> Batch:
        x, row = getattr(batch, field), int(batch.mask.any(1).nonzero()[0])
        place = torch.tensor(row), batch.mask[row].nonzero()[-1, 0]
        return replace(batch, **{field: x.index_put(place, x.new_tensor(math.nan))})

    return change


def weight(value: float) -> Callable[[Policy, Batch], Batch]:
    def change(policy: Policy, batch: Batch) -> Batch:
        policy.model.base.get_output_embeddings().weight.data[7, 3] = value
        return batch

    return change


def bias_of_critic(policy: Policy, batch: Batch) -> Batch:
    policy.critic.network.head.bias.data[0] = math.inf
    return batch


@dataclass(frozen=True)
class Stub(SFT):
    """Fake: a loss, or a gradient, that is not finite where the answers are."""

    added: float | None = None

    def loss(self, new: Output, batch: Batch) -> Loss:
        nll, seen = super().loss(new, batch)
        nothing = (new.logp * batch.mask).sum() * 0
        return nll + (nothing.square().sqrt() if self.added is None else self.added), seen  # 0, and its slope 0 / 0


def loss(added: float | None) -> Callable[[Policy, Batch], Batch]:
    def change(policy: Policy, batch: Batch) -> Batch:
        policy.algorithm = Stub(added=added)
        return batch

    return change


@pytest.mark.parametrize(
    ("kind", "change", "name", "sound"),  # what goes on
    [
        ("dpo", spoil("reference"), "reference", "none"),
        ("grpo", spoil("old"), "old log-probability", "none"),
        ("ppo", spoil("value"), "value", "none"),
        ("ppo", spoil("advantage"), "advantage", "none"),
        ("sft", weight(math.nan), "log-probability", "critic/"),
        ("ppo", weight(math.inf), "log-probability", "critic/"),
        ("grpo", weight(-math.inf), "log-probability", "critic/"),
        ("ppo", bias_of_critic, "critic's value", "actor/"),
        ("sft", loss(math.nan), "loss", "none"),
        ("sft", loss(-math.inf), "loss", "none"),
        ("sft", loss(None), "gradient", "none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_finite_is_named_and_changes_nothing(
    kind: str, change: Callable[[Policy, Batch], Batch], name: str, sound: str
) -> None:
    policy: Policy = jobs.policy_for(kind, "float64", Limits(5))
    assert policy.update(jobs.prepared(policy), 1).nonfinite_source == ""  # the optimizer has something to lose
    algorithm, batch = policy.algorithm, jobs.prepared(policy, 2)
    batch = change(policy, batch)
    before = state(policy)
    found = policy.update(batch, 2)
    assert found.nonfinite_source == name
    skipped = {name: x for name, x in found.metrics.items() if name.endswith("skipped_nonfinite")}
    assert skipped == {name: float(not name.startswith(sound)) for name in skipped} != {}
    for name, value in state(policy).items():  # as bits: a weight that is NaN already must stay that NaN
        assert name.startswith(sound.replace("/", ".")) or value.numpy().tobytes() == before[name].numpy().tobytes()
    for trained in (policy.actor, policy.critic):
        assert trained is None or all(weight.grad is None for weight in trained.weights)
    assert policy.model.version == 1 + (sound == "actor/")  # by it a sampler sees whether its copy is old
    policy.algorithm = algorithm
    if sound == "none":  # the next is taken
        assert policy.update(jobs.prepared(policy, 3), 3).nonfinite_source == ""
        after = state(policy)
        assert policy.model.version == 2 and any(not torch.equal(value, after[name]) for name, value in before.items())
        assert all(value.isfinite().all() for value in after.values())


REWARD = "val-core/reverse/reward/mean@1"
Change = Callable[[Batch], Batch]
WHY = "data.jsonl:3: ValueError: no; 6 of 24 answers are without a score"
WORDS = ["algorithm=grpo", "model=tiny", "data=reverse", "data.train_batch_size=6", "sampler.n=4"]


class Listed:
    """Fake: a source whose batches are changed at some steps."""

    alerts: tuple[str, ...] = ()

    def __init__(self, policy: Policy, changes: dict[int, Change]) -> None:
        self.policy, self.changes = policy, changes
        self.order = Order(60, 6, 0, True)

    def batch(self, step: int, clock: Clock) -> tuple[Batch, dict[str, float]]:
        batch = jobs.batch_for(self.policy.algorithm, self.policy.model, step)
        changed = self.changes.get(step, lambda given: given)(batch)
        self.alerts = () if changed.reward.isfinite().all() else (WHY,)
        return changed, {}


def bad_reward(value: float) -> Change:
    """One answer of each group has no score, so no group is left."""
    first = torch.arange(0, 24, 4)
    return lambda batch: replace(batch, reward=batch.reward.index_fill(0, first, value))


def all_equal(batch: Batch) -> Batch:
    return replace(batch, reward=batch.reward * 0 + 1)


class Measured:
    """Fake: a validation that always measures the same."""

    alerts = ()

    def measure(self, step: int) -> tuple[dict[str, float], list[Event]]:
        return {REWARD: 0.5, "val-aux/reverse/reward/std@1": 0.1}, []


Gone = tuple[list[Event], list[torch.Tensor], Policy, str]


def train(
    changes: dict[int, Change], *words: str, kind: str = "grpo", steps: int = 6, measured: Measured | None = None,
    policy: Policy | None = None,
) -> Gone:  # fmt: skip
    """What was told, the weights before each event, the policy, and why it ended early."""
    policy = policy or jobs.policy_for(kind, "float64", Limits(16))
    told, held = list[Event](), list[torch.Tensor]()

    def emit(event: Event) -> None:
        told.append(event)
        held.append(jobs.weights(policy))

    saver: Any = SimpleNamespace(save=lambda position: SaveResult(True))
    run, source = resolve([*WORDS, "trainer.test_freq=-1", *words]), Listed(policy, changes)
    position = TrainingPosition(0, 0, 0, 60)
    training = Training(run, policy, None, source, measured, saver, position, steps, emit, lambda: False, lambda: None)
    try:
        assert training.train()
    except Problems as problems:
        return told, held, policy, "\n".join(problems.lines)
    return told, held, policy, ""


def told_of(events: Sequence[Event], step: int) -> list[Event]:
    return [event for event in events if isinstance(event, Alert | Step | Saved) and event.step == step]


def test_a_step_without_a_scored_group_is_skipped_and_told_before_it() -> None:
    events, held, _, ended = train({3: bad_reward(math.nan)})
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


def test_the_run_ends_after_so_many_bad_steps_in_a_row() -> None:
    bad = bad_reward(math.nan)
    events, held, _, why = train({2: bad, 3: bad, 5: bad, 6: bad, 7: bad, 8: bad}, "trainer.max_bad_steps=3", steps=9)
    line = "step 7: no group of answers could be scored, 3 steps in a row; use a reward that gives numbers"
    assert why == f"{line}\n{WHY}"
    assert [event.step for event in events if isinstance(event, Alert)] == [2, 2, 3, 3, 5, 5, 6, 6, 7, 7]
    assert isinstance(events[-1], Step) and events[-1].step == 7  # what happened is told before it ends
    assert torch.equal(held[-1], held[[isinstance(e, Step) and e.step == 4 for e in events].index(True)])


@pytest.mark.parametrize(("kind", "bad_from"), [("grpo", 1), ("dpo", 1), ("grpo", 2)])
def test_the_remedy_is_another_model_or_a_smaller_step(kind: str, bad_from: int) -> None:
    """Weights that are not finite from the start are the model's fault."""
    policy = jobs.policy_for(kind, "float64", jobs.Limits(16))

    def spoil(batch: Batch) -> Batch:
        for network in (policy.reference.model, *([policy.model] if bad_from == 1 else [])):
            network.base.get_output_embeddings().weight.data[:] = math.nan
        return batch

    events, _, _, why = train({bad_from: spoil}, "trainer.max_bad_steps=2", policy=policy)
    if bad_from == 1:
        assert why.startswith("step 2: ") and "use a model whose weights are finite numbers" in why
        return
    assert why == "step 3: reference is not finite, 2 steps in a row; use a smaller optim.lr"
    alert, step = told_of(events, 2)
    assert isinstance(alert, Alert) and "reference is not finite" in alert.text and isinstance(step, Step)


def test_steps_with_nothing_to_learn_are_not_bad() -> None:
    events, held, _, why = train(dict.fromkeys(range(2, 6), all_equal), "trainer.max_bad_steps=2", kind="dapo")
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


def test_in_critic_warmup_only_the_critic_learns() -> None:
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


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["trainer.best_metric=val/lss"],
         f"trainer.best_metric: val/lss is not measured, so no checkpoint is best; it may be {REWARD}"),
        (["trainer.best_metric=val-aux/reverse/reward/std@1"],
         "trainer.best_metric: val-aux/reverse/reward/std@1 has no better direction, so no checkpoint is best;"
         f" did you mean {REWARD}?"),
        ([], None),
        (["trainer.best_metric=val/lss", "trainer.keep_best=0"], None),  # nobody asked for a best
    ],
)  # fmt: skip
def test_a_metric_that_is_not_measured_is_told_once(words: list[str], text: str | None) -> None:
    """Before the event of the step, so that a resumed run does not tell it again."""
    events, *_ = train({}, *words, steps=2, measured=Measured())
    assert [(event.step, event.text) for event in events if isinstance(event, Alert)] == ([(0, text)] if text else [])
    kinds = [type(event) for event in events]
    assert not text or kinds.index(Alert) < kinds.index(Step)
