"""One optimizer step: the same whatever it is split over, and what plain torch would do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from launcher.algorithms.grpo import GRPO
from launcher.algorithms.sft import SFT
from launcher.engines.torch.measure import Clock
from launcher.engines.torch.model import CausalLM, entropy
from launcher.engines.torch.packing import pack
from launcher.engines.torch.policy import Policy
from launcher.spec.algorithm import Algorithm, Batch
from launcher.spec.run import Optim

Tiny = Callable[..., CausalLM]
Rollouts = Callable[[CausalLM, int], Batch]
Metrics = list[dict[str, float]]

NEAR = {("sft", "float32"): 1e-6, ("sft", "float64"): 1e-12, ("grpo", "float64"): 1e-12}
NEAR["grpo", "float32"] = 1e-5  # AdamW's first step goes a whole `lr` even where the gradient is rounding only


def policy_of(model: CausalLM, algorithm: Algorithm | None = None, **values: Any) -> Policy:
    chosen = {"micro": 16, "steps": 10, "optim": Optim(lr=1e-3)} | values
    return Policy(algorithm or GRPO(), model, chosen.pop("optim"), **chosen)


def weights(model: CausalLM) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.module.parameters()])


def check_equal(found: Metrics, expected: Metrics, near: float) -> None:
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=near, abs=near)


# ---- how it is split


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["sft", "grpo"])
@pytest.mark.parametrize("micro", [1, 3, 16])
def test_micro_batches_do_not_change_the_result(
    micro: int, kind: str, dtype: str, trained: Callable[..., dict[str, Any]]
) -> None:
    expected, found = trained(kind, dtype, micro=2), trained(kind, dtype, micro=micro)
    check_equal(found["metrics"], expected["metrics"], NEAR[kind, dtype])
    assert found["weights"] == pytest.approx(expected["weights"], abs=1e-5 if dtype == "float32" else 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["sft", "grpo"])
@pytest.mark.parametrize("size", [2, 3])
def test_processes_do_not_change_the_result(
    size: int, kind: str, dtype: str, together: Callable[[int], list[dict[str, Any]]]
) -> None:
    (alone,), found = together(1), together(size)
    name = f"{kind} {dtype}"
    for other in found[1:]:
        assert other[name] == found[0][name]  # each process holds the same weights, to the last bit
    check_equal(found[0][name]["metrics"], alone[name]["metrics"], NEAR[kind, dtype])


# ---- what it does


def test_a_step_is_plain_torchs(family: Callable[..., Any], sequences_of: Callable[..., Any], tiny: Tiny) -> None:
    """Cross-entropy with ignored prompts, clip, AdamW; five steps, weight by weight."""
    model, plain = family("llama")
    optim = Optim(lr=1e-2, clip_grad=0.3, weight_decay=0.1, betas=(0.8, 0.95), lr_warmup_steps=3)
    policy = policy_of(model, SFT(), optim=optim, micro=3)
    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1)
    for step in range(1, 6):
        rows = sequences_of(step, 8)
        longest = max(len(ids) for ids, _ in rows)
        tokens = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
        mask = torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in rows], dtype=torch.float64)
        length = torch.tensor([len(ids) for ids, _ in rows])
        found = policy.update(Batch(tokens, length, mask), step)

        labels = tokens.masked_fill(mask == 0, -100)
        logits = plain(input_ids=tokens, attention_mask=torch.arange(longest) < length[:, None]).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        theirs.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.3)
        theirs.param_groups[0]["lr"] = 1e-2 * min(step, 3) / 3
        theirs.step()
        assert found["train/loss"] == pytest.approx(loss.item(), rel=1e-12)
        assert found["train/grad_norm"] == pytest.approx(norm.item(), rel=1e-10)
        assert found["train/lr"] == theirs.param_groups[0]["lr"]
        for ours, plains in zip(model.module.parameters(), plain.parameters(), strict=True):
            assert (ours - plains).abs().max() < 1e-9


def test_names_and_denominators_of_what_it_reports(tiny: Tiny, rollouts_of: Rollouts) -> None:
    """Two updates with the same old log-probabilities, so that the second is off-policy and something is clipped."""
    model = tiny()
    policy = policy_of(model, GRPO(kl_loss_coef=0.5), reference=tiny(seed=1), optim=Optim(lr=3e-2))
    batch = policy.algorithm.prepare(policy.annotate(rollouts_of(model, 1), Clock(), on_policy=False))
    first = policy.update(batch, 1)
    with torch.no_grad():
        logp, _ = model.logp(pack(batch))
    second = policy.update(batch, 2)
    names = "pg_loss kl_loss pg_clipfrac ppo_kl entropy grad_norm lr skipped_nonfinite"
    assert set(first) == set(second) == {f"actor/{name}" for name in names.split()}
    assert first["actor/pg_clipfrac"] == 0 and abs(first["actor/ppo_kl"]) < 1e-14
    ratio, tokens = (logp - batch.old).exp(), batch.mask.sum()
    cut = ((ratio > 1.2) & (batch.advantage > 0)) | ((ratio < 0.8) & (batch.advantage < 0))
    assert second["actor/pg_clipfrac"] == pytest.approx((cut * batch.mask).sum().item() / tokens.item())
    assert second["actor/pg_clipfrac"] > 0
    assert second["actor/ppo_kl"] == pytest.approx(((batch.old - logp) * batch.mask).sum().item() / tokens.item())
    d = (batch.reference - logp) * batch.mask
    k3 = ((d.exp() - d - 1).sum(1) / batch.mask.sum(1)).mean()  # a mean over answers of their mean over tokens
    assert second["actor/kl_loss"] == pytest.approx(k3.item(), rel=1e-12)


def test_on_policy_old_is_what_annotate_would_find(tiny: Tiny, rollouts_of: Rollouts) -> None:
    found = []
    for on_policy in (True, False):
        model = tiny()
        policy = policy_of(model, temperature=0.7, micro=5)
        metrics = []
        for step in range(1, 4):
            batch = policy.annotate(rollouts_of(model, step), Clock(), on_policy=on_policy)
            assert (batch.old is None) == on_policy
            metrics.append(policy.update(policy.algorithm.prepare(batch), step))
        found.append((metrics, weights(model)))
    (direct, ours), (annotated, theirs) = found
    check_equal(direct, annotated, 1e-12)
    assert (ours - theirs).abs().max() < 1e-10


def test_annotate_gives_log_probabilities_at_the_temperature(family: Callable[..., Any], rollouts_of: Rollouts) -> None:
    model, plain = family("llama")
    batch = policy_of(model, temperature=0.7, micro=5).annotate(rollouts_of(model, 1), Clock(), on_policy=False)
    for row in range(len(batch)):
        length = int(batch.length[row])
        with torch.no_grad():
            logits = plain(input_ids=batch.tokens[row : row + 1, :length]).logits[0, :-1] / 0.7
        expected = logits.log_softmax(-1).gather(1, batch.tokens[row, 1:length, None])[:, 0]
        answer = batch.mask[row] > 0
        assert torch.allclose(batch.old[row, answer], expected[answer[1:length]], rtol=0, atol=1e-12)
        assert (batch.old[row, ~answer] == 0).all()


def test_annotate_is_without_dropout(tiny: Tiny, rollouts_of: Rollouts) -> None:
    model = tiny()
    policy = policy_of(model)
    policy.update(policy.algorithm.prepare(rollouts_of(model, 1)), 1)
    assert model.module.training  # the update is with dropout where the model has some
    policy.annotate(rollouts_of(model, 2), Clock(), on_policy=False)
    assert not model.module.training


def test_the_reference_stays_as_it_is(tiny: Tiny, rollouts_of: Rollouts) -> None:
    model, reference = tiny(), tiny()
    before = weights(reference)
    policy = policy_of(model, GRPO(kl_loss_coef=0.1), reference=reference)
    kl = []
    for step in range(1, 4):
        batch = policy.algorithm.prepare(policy.annotate(rollouts_of(model, step), Clock(), on_policy=True))
        assert not batch.reference.requires_grad
        kl.append(policy.update(batch, step)["actor/kl_loss"])
    assert torch.equal(weights(reference), before)
    assert not torch.equal(weights(model), before)
    assert all(weight.grad is None for weight in reference.module.parameters())
    assert kl[0] == pytest.approx(0, abs=1e-14)  # it begins where the policy began
    assert kl[1] > 1e-6 and kl[2] > 1e-6


@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_a_batch_without_answer_tokens_moves_nothing(kind: str, tiny: Tiny, rollouts_of: Rollouts) -> None:
    model = tiny()
    policy = policy_of(model, SFT() if kind == "sft" else GRPO(), optim=Optim(lr=1e-3, weight_decay=0.0))
    before, batch = weights(model), rollouts_of(model, 1)
    found = policy.update(policy.algorithm.prepare(replace(batch, mask=0 * batch.mask)), 1)
    assert torch.equal(weights(model), before)
    assert all(math.isfinite(value) for value in found.values())


def test_a_micro_batch_without_answer_tokens_takes_no_part(tiny: Tiny, rollouts_of: Rollouts) -> None:
    found = []
    for rows in (slice(0, 8), slice(0, 4)):
        model = tiny()
        batch = rollouts_of(model, 1)
        batch.mask[4:8] = 0
        policy = policy_of(model, SFT(), micro=4)
        found.append((policy.update(batch.rows(rows), 1), weights(model)))
    check_equal([found[0][0]], [found[1][0]], 1e-12)
    assert torch.equal(found[0][1], found[1][1])


# ---- the optimizer's settings


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ({}, {1: 1.0, 5: 1.0, 10: 1.0}),  # constant by default
        ({"lr_warmup_steps": 4}, {1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0, 5: 1.0, 10: 1.0}),
        ({"lr_warmup_steps": 20}, {1: 0.05, 10: 0.5}),  # a run shorter than its warm-up
        ({"lr_scheduler_type": "linear"}, {1: 0.9, 5: 0.5, 9: 0.1, 10: 0.0}),
        ({"lr_scheduler_type": "linear", "min_lr_ratio": 0.2}, {5: 0.6, 10: 0.2}),  # 0.2 + 0.8 x 0.5
        ({"lr_scheduler_type": "linear", "lr_warmup_steps": 2}, {1: 0.5, 2: 1.0, 3: 7 / 8, 6: 0.5, 10: 0.0}),
        ({"lr_scheduler_type": "cosine"}, {5: 0.5, 10: 0.0}),  # (1 + cos(pi / 2)) / 2
        # after 2 of 8 steps: (1 + cos(pi / 4)) / 2 = 0.8536
        ({"lr_scheduler_type": "cosine", "lr_warmup_steps": 2}, {2: 1.0, 4: 0.5 + math.sqrt(0.5) / 2, 6: 0.5, 10: 0}),
        ({"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}, {5: 0.55, 10: 0.1}),  # 0.1 + 0.9 x 0.5
        ({"lr_scheduler_type": "cosine", "lr_warmup_steps": 10}, {9: 0.9, 10: 1.0}),  # nothing left to fall
    ],
)
def test_learning_rate(values: dict[str, Any], rates: dict[int, float], tiny: Tiny) -> None:
    policy = policy_of(tiny(), optim=Optim(lr=0.003, **values))
    found = {step: policy.learning_rate(step) for step in rates}
    assert found == pytest.approx({step: 0.003 * rate for step, rate in rates.items()}, abs=1e-18)


@pytest.mark.parametrize(("limit", "shortened"), [(0.01, True), (1e9, False)])
def test_the_gradient_is_shortened_and_its_length_before_that_reported(
    limit: float, shortened: bool, tiny: Tiny, rollouts_of: Rollouts
) -> None:
    model = tiny()
    policy = policy_of(model, SFT(), optim=Optim(clip_grad=limit))
    given = []

    def note(*_: Any) -> None:
        grads = [weight.grad.flatten() for weight in model.module.parameters() if weight.grad is not None]
        given.append(torch.cat(grads).norm().item())

    policy.optimizer.register_step_pre_hook(note)
    reported = policy.update(rollouts_of(model, 1), 1)["train/grad_norm"]
    assert reported > 0.1
    assert given == [pytest.approx(limit if shortened else reported, rel=1e-4)]  # torch adds 1e-6 to the length
    assert all(weight.grad is None for weight in model.module.parameters())  # nothing stays for the next step


def test_frozen_weights_stay(tiny: Tiny, rollouts_of: Rollouts) -> None:
    model = tiny()
    embedding = model.module.get_input_embeddings().weight.requires_grad_(False)
    before, all_before = embedding.clone(), weights(model)
    policy_of(model, SFT(), optim=Optim(lr=1e-2, weight_decay=0.5)).update(rollouts_of(model, 1), 1)
    assert torch.equal(embedding, before)
    assert not torch.equal(weights(model), all_before)


# ---- entropy


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0], math.log(4)),  # no preference
        ([0.0, math.log(3)], math.log(4) - 0.75 * math.log(3)),  # 1/4 and 3/4: (ln 4) / 4 + 3/4 (ln 4 - ln 3)
        ([7.0, 7.0 + math.log(3)], math.log(4) - 0.75 * math.log(3)),  # a constant changes nothing
        ([0.0, 1000.0], 0.0),  # certain
        ([5.0], 0.0),
    ],
)
def test_entropy_by_hand(logits: list[float], expected: float) -> None:
    assert entropy(torch.tensor([logits] * 3, dtype=torch.float64)).tolist() == pytest.approx([expected] * 3, abs=1e-14)


def test_entropy_in_parts_is_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(10, 7, dtype=torch.float64)
    whole = entropy(logits)
    monkeypatch.setattr("launcher.engines.torch.model.ENTROPY_LOGITS", 21)
    assert torch.equal(entropy(logits), whole)
    assert entropy(logits[:0]).shape == (0,)


def test_reported_entropy_is_the_mean_over_answer_tokens(family: Callable[..., Any], rollouts_of: Rollouts) -> None:
    model, plain = family("llama")
    batch = rollouts_of(model, 1)
    total = 0.0
    for row in range(len(batch)):
        length, answer = int(batch.length[row]), batch.mask[row] > 0
        with torch.no_grad():
            logits = plain(input_ids=batch.tokens[row : row + 1, :length]).logits[0, :-1] / 0.7
        total += torch.distributions.Categorical(logits=logits).entropy()[answer[1:length]].sum().item()
    policy = policy_of(model, temperature=0.7, micro=5)
    found = policy.update(policy.algorithm.prepare(batch), 1)
    assert found["actor/entropy"] == pytest.approx(total / batch.mask.sum().item(), rel=1e-12)
