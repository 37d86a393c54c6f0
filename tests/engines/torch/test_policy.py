"""One optimizer step equals plain torch's, however it is split, recomputed or rounded; its metrics and settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import jobs
import pytest
import torch
from families import family, tiny
from jobs import COMPARED
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, get_scheduler

from launcher.algorithms.dpo import DPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.sft import SFT
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.optimizer import learning_rates
from launcher.engines.torch.train.policy import Policy, Update
from launcher.spec.algorithm import Algorithm, Batch
from launcher.spec.run import Optim
from launcher.text.tokenizer import character_tokenizer

Tiny = Callable[..., CausalLM]


def updated(policy: Policy, batch: Batch, step: int) -> dict[str, float]:
    update = policy.update(batch, step)
    assert isinstance(update, Update) and not update.nonfinite_source
    return {**update.metrics, **update.largest}


# ---- what it does


def test_a_step_is_plain_torchs() -> None:
    """Cross-entropy with ignored prompts, clip, AdamW; five steps, weight by weight."""
    model, plain = family("llama")
    optim = Optim(lr=1e-2, clip_grad=0.3, weight_decay=0.1, betas=(0.8, 0.95), lr_warmup_steps=3, adam_eps=1e-5)
    policy = jobs.policy_of(model, SFT(), optim=optim, limits=Limits(3))
    matrices, norms = ([x for x in plain.parameters() if (x.ndim > 1) is kind] for kind in (True, False))
    groups = [{"params": matrices}, {"params": norms, "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1, eps=1e-5)
    for step in range(1, 6):
        rows = jobs.sequences_of(step, 8)
        longest = max(len(ids) for ids, _ in rows)
        tokens = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
        mask = torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in rows], dtype=torch.float64)
        length = torch.tensor([len(ids) for ids, _ in rows])
        found = updated(policy, Batch(tokens, length, mask), step)

        labels = tokens.masked_fill(mask == 0, -100)
        logits = plain(input_ids=tokens, attention_mask=torch.arange(longest) < length[:, None]).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        theirs.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.3)
        for group in theirs.param_groups:
            group["lr"] = 1e-2 * (min(step - 1, 3) / 3)
        theirs.step()
        assert found["train/loss"] == pytest.approx(loss.item(), rel=1e-12)
        assert found["train/grad_norm"] == pytest.approx(norm.item(), rel=1e-10)
        assert found["train/lr"] == theirs.param_groups[0]["lr"]
        for ours, plains in zip(model.module.parameters(), plain.parameters(), strict=True):
            assert (ours - plains).abs().max() < 1e-9


def test_names_and_denominators_of_what_it_reports() -> None:
    """Two updates with the same old log-probabilities, so that the second is off-policy and something is clipped."""
    model = tiny()
    policy = jobs.policy_of(model, GRPO(kl_loss_coef=0.5), reference=tiny(seed=1), optim=Optim(lr=3e-2))
    batch = jobs.prepared(policy)
    first = updated(policy, batch, 1)
    with torch.no_grad():
        logp, entropy = model(model.pack(batch), entropy=True)
    second = updated(policy, batch, 2)
    assert second["actor/entropy"] == pytest.approx(((entropy * batch.mask).sum() / batch.mask.sum()).item())
    names = "loss pg_loss kl_loss pg_clipfrac ppo_kl entropy grad_norm lr skipped_nonfinite"
    expected = distances(logp, batch)
    assert set(first) == set(second) == {f"actor/{name}" for name in names.split()} | set(expected)
    assert {name: second[name] for name in expected} == pytest.approx(expected, rel=1e-11)
    assert first["actor/pg_clipfrac"] == 0 and abs(first["actor/ppo_kl"]) < 1e-14
    ratio, tokens = (logp - batch.old).exp(), batch.mask.sum()
    cut = ((ratio > 1.2) & (batch.advantage > 0)) | ((ratio < 0.8) & (batch.advantage < 0))
    assert second["actor/pg_clipfrac"] == pytest.approx((cut * batch.mask).sum().item() / tokens.item())
    assert second["actor/pg_clipfrac"] > 0
    assert second["actor/ppo_kl"] == pytest.approx(((batch.old - logp) * batch.mask).sum().item() / tokens.item())
    d = (batch.reference - logp) * batch.mask
    k3 = ((d.exp() - d - 1).sum(1) / batch.mask.sum(1)).mean()  # a mean over answers of their mean over tokens
    assert second["actor/kl_loss"] == pytest.approx(k3.item(), rel=1e-12)
    loss = second["actor/pg_loss"] + 0.5 * second["actor/kl_loss"]
    assert second["actor/loss"] == pytest.approx(loss, rel=1e-12)  # S2-20, S4-01: policy_loss beside pg_loss


def distances(logp: torch.Tensor, batch: Batch) -> dict[str, float]:
    """S4-03, S4-04, S4-06, S4-07, S4-11: ratios, log-ratios and log-probabilities, from their definitions."""
    seen, tokens = batch.mask > 0, batch.mask.sum()
    apart, of_reference = (logp - batch.old)[seen], ((logp - batch.reference) * batch.mask).sum(1)
    found = {
        "actor/ratio_mean": apart.exp().mean(),
        "actor/ratio_max": apart.exp().max(),
        "actor/log_ratio_mean": apart.mean(),
        "actor/log_ratio_max": apart.abs().max(),
        "actor/seq_log_ratio_max": ((logp - batch.old) * batch.mask).sum(1).abs().max(),
        "actor/ref_log_ratio_mean": of_reference.mean(),
        "actor/ref_log_ratio_max": of_reference.abs().max(),
        "actor/log_prob_mean": logp[seen].mean(),
        "actor/seq_log_prob_mean": logp[seen].sum() / len(batch),
        "ref/log_prob_mean": batch.reference[seen].sum() / tokens,
        "ref/seq_log_prob_mean": batch.reference[seen].sum() / len(batch),
    }
    return {name: value.item() for name, value in found.items()}


def test_far_from_the_sampling_policy_the_guard_clamps_and_counts() -> None:
    """S4-10: document 004's clamp to ±10 says how much of the step it holds, and what it was before."""
    far = {}
    for most in (None, 10.0):
        model = tiny()
        policy = jobs.policy_of(model, GRPO(max_log_ratio=most, clip_ratio_c=None))
        batch = jobs.prepared(policy)
        batch.old[0] -= 12 * batch.mask[0]  # its probability is e^12 times what it was
        batch.advantage[0] = -1.0 * batch.mask[0]  # the open side of the clip
        far[most] = updated(policy, batch, 1)
    tokens = batch.mask.sum().item()
    assert far[None]["actor/pg_loss"] > 10 * far[10.0]["actor/pg_loss"] * 0.1 > 0
    assert "actor/log_ratio_clamped" not in far[None]
    assert far[10.0]["actor/log_ratio_clamped"] == batch.mask[0].sum().item() / tokens
    for found in far.values():  # before the clamp
        assert found["actor/log_ratio_max"] == pytest.approx(12, rel=1e-9)
        assert found["actor/ratio_max"] == pytest.approx(math.exp(12), rel=1e-9)
        assert found["actor/seq_log_ratio_max"] == pytest.approx(12 * batch.mask[0].sum().item(), rel=1e-9)


def test_on_policy_old_is_what_annotate_would_find() -> None:
    found = []
    for on_policy in (True, False):
        model = tiny()
        policy = jobs.policy_of(model, temperature=0.7, limits=Limits(5))
        metrics = []
        for step in range(1, 4):
            batch = policy.annotate(jobs.rollouts_of(model, step), Clock(), on_policy=on_policy)
            assert (batch.old is None) == on_policy
            metrics.append(updated(policy, policy.algorithm.prepare(batch, {})[0], step))
        found.append((metrics, jobs.weights(policy)))
    (direct, ours), (annotated, theirs) = found
    assert direct == [pytest.approx(each, rel=1e-12, abs=1e-12) for each in annotated]
    assert (ours - theirs).abs().max() < 1e-10


# ---- the optimizer's settings


SCHEDULES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # transformers' name, its settings, ours
    "constant": ("constant_with_warmup", {}, {}),
    "linear": ("linear", {}, {}),
    "linear to a fifth": ("polynomial", {"power": 1.0, "lr_end": 6e-4}, {"min_lr_ratio": 0.2}),
    "linear to itself": ("constant_with_warmup", {}, {"min_lr_ratio": 1.0}),
    "cosine": ("cosine", {}, {}),
    "cosine to a tenth": ("cosine_with_min_lr", {"min_lr_rate": 0.1}, {"min_lr_ratio": 0.1}),
    "polynomial": ("polynomial", {}, {}),
    "polynomial to a fiftieth": ("polynomial", {"power": 3.0, "lr_end": 6e-5}, {"lr_power": 3.0, "min_lr_ratio": 0.02}),
    "inverse_sqrt": ("inverse_sqrt", {}, {}),
    "warmup_stable_decay": ("warmup_stable_decay", {"num_decay_steps": 1}, {"lr_decay_steps": 1}),
}


@pytest.mark.parametrize(("warm", "steps"), [(0, 1), (7, 2), (1, 10), (7, 60)])
@pytest.mark.parametrize("kind", SCHEDULES, ids=str)
def test_rates_are_those_that_transformers_sets(kind: str, warm: int, steps: int) -> None:
    """Of a scheduler that is really stepped."""
    name, theirs, ours = SCHEDULES[kind]
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=0.003)
    scheduler: Any = get_scheduler(name, optimizer, warm, steps, theirs)
    of = learning_rates(Optim(lr=0.003, lr_warmup_steps=warm, lr_scheduler_type=kind.split()[0], **ours), steps)
    for step in range(1, steps + 1):
        assert of(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12, abs=1e-18)
        optimizer.step()
        if step < steps:  # it need not be defined behind the last
            scheduler.step()


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss"])  # gpt-oss has biases of two dimensions, and sinks of one
def test_weight_decay_spares_what_transformers_spares(family: str) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = AutoConfig.for_model(family, vocab_size=48, **sizes, intermediate_size=16, head_dim=8, num_local_experts=4)
    model = CausalLM(AutoModelForCausalLM.from_config(config), character_tokenizer("abc"))
    decayed = set(Trainer.get_decay_parameter_names(None, model.module))
    for optim in (Optim(), Optim(weight_decay_on="all")):
        groups = jobs.policy_of(model, optim=optim).actor.optimizer.param_groups
        decay = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
        for name, weight in model.module.named_parameters():
            expected = 0.01 if name in decayed or optim.weight_decay_on == "all" else 0.0
            assert decay[id(weight)] == expected, name


KINDS = ("sft", "dpo", "ppo", "grpo", "dr_grpo", "gspo", "dapo", "gspo_selfplay")
SHORT = ("dpo", "ppo", "gspo_selfplay")  # of pairs, with a critic, and of both kinds of rows
Metrics = list[dict[str, float]]


def check_equal(found: Metrics, expected: Metrics, near: float) -> None:
    """Where something is learnt by a rule with an edge (a share of clipped tokens), float32 may fall on its other
    side: only losses and norms are compared then. The largest ratio has all the rounding of one token or answer.
    """
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        names = [name for name in ours if near < 1e-8 or "clipfrac" not in name]
        for name in names:
            within = near * 10 if "ratio_max" in name else near
            assert ours[name] == pytest.approx(theirs[name], within, within), name


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in SHORT else pytest.mark.long) for kind in KINDS]
)
def test_micro_batches_do_not_change_the_result(kind: str) -> None:
    """By rows and by tokens; groups that must stay whole are larger than the smallest limits. And weights do move."""
    limits = (Limits(3), Limits(1, 11))[KINDS.index(kind) % 2]
    before = jobs.weights(jobs.policy_for(kind, "float64", limits))
    found, expected = (jobs.trained(kind, "float64", given, 2) for given in (limits, Limits(2)))
    assert (torch.tensor(found["weights"]) != before).double().mean() > 0.5
    check_equal(found["metrics"], expected["metrics"], 1e-12)
    assert found["weights"] == pytest.approx(expected["weights"], rel=0, abs=1e-12)


def test_micro_batches_do_not_change_the_result_in_float32_either() -> None:
    """Here prompts are shared, and how they are depends on the split."""
    one, other = (jobs.trained("grpo", "float32", limits, 2) for limits in (Limits(2), Limits(1, 30)))
    check_equal(one["metrics"], other["metrics"], 1e-5)
    assert one["weights"] == pytest.approx(other["weights"], rel=0, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", " fsdp2"])
@pytest.mark.parametrize("name", COMPARED)
def test_processes_do_not_change_the_result(
    way: str, name: str, together: Callable[[int], list[dict[str, Any]]]
) -> None:
    (single,), found = together(1), together(2)
    mine = [output[name + way] for output in found]
    assert mine[1] == mine[0]  # each process holds the same weights, to the last bit
    near = 1e-6 if "float32" in name else 1e-12
    check_equal(mine[0]["metrics"], single[name]["metrics"], near)
    assert mine[0]["weights"] == pytest.approx(single[name]["weights"], rel=0, abs=near)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_an_expert_that_a_process_did_not_use_takes_the_gradient_of_the_others(
    size: int, together: Callable[[int], list[dict[str, Any]]]
) -> None:
    assert [found["experts"] for found in together(size)] == [[15.0, 1.0, None]] * size


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_finds_the_same(kind: str) -> None:
    found = jobs.trained(kind, "float64", Limits(2), 3, device=torch.device("cuda"))
    assert found["weights"] == pytest.approx(jobs.trained(kind, "float64", Limits(2), 3)["weights"], abs=1e-9)


@pytest.mark.parametrize(("kind", "rank"), [("ppo", 0), ("grpo", 4)])
def test_computing_layers_a_second_time_changes_nothing(kind: str, rank: int) -> None:
    found = [
        jobs.trained(kind, "float64", Limits(5), 1, lora_rank=rank, enable_gradient_checkpointing=again)
        for again in (False, True)
    ]
    assert found[0] == found[1]


def test_mixed_precision_is_bfloat16_over_float32() -> None:
    """Losses within what 8 bits of a number allow, and weights, gradients and optimizer as they were."""
    found = []
    for mixed in (False, True):
        policy = jobs.policy_for("ppo", "float32", Limits(5))
        policy.model.mixed = mixed
        metrics, _ = jobs.train_until(policy, 1, {}, updates=1)
        found.append(metrics[0])
        assert {weight.dtype for weight in policy.model.parameters()} == {torch.float32}
        assert {x.dtype for held in policy.actor.optimizer.state.values() for x in held.values()} == {torch.float32}
    plain, coarse = found
    assert plain != coarse  # it does compute in bfloat16
    for name in ("actor/entropy", "actor/grad_norm", "critic/vf_loss"):
        assert coarse[name] == pytest.approx(plain[name], rel=0.05)


ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789>+-*/=., "
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},  # three kinds of 0.1
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_dropout": 0.1,
               "attention_dropout": 0.1},  # its layers read the shares in the config
}  # fmt: skip


def model_of(family: str, *, checkpointing: bool = False) -> CausalLM:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=48, **SIZES[family])
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    if checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    return CausalLM(module, character_tokenizer(ALPHABET))


def first(algorithm: Algorithm, model: CausalLM, **more: Any) -> dict[str, float]:
    """What the first update reports."""
    reference = deepcopy(model) if "reference" in algorithm.needs else None
    policy = jobs.policy_of(model, algorithm, reference=reference, **more)
    return dict(policy.update(jobs.prepared(policy), 1).metrics)


@pytest.mark.parametrize(("family", "checkpointing"), [("gpt2", False), ("falcon", True)])
def test_dropout_is_on_only_where_it_is_asked_for(family: str, checkpointing: bool) -> None:
    """Without it losses begin where policy and reference are equal."""
    for dropout in (False, True):
        pairs = first(DPO(), model_of(family, checkpointing=checkpointing), dropout=dropout)
        assert (abs(pairs["actor/dpo_loss"] - math.log(2)) > 1e-6) == dropout
    sampled = first(GRPO(), model_of(family, checkpointing=checkpointing))
    assert sampled["actor/pg_clipfrac"] == 0 and sampled["actor/ppo_kl"] == pytest.approx(0, abs=1e-14)
