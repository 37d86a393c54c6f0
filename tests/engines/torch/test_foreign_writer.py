"""Answers and weights that pass between the trainer and another program, and how far the two are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jobs
import pytest
import torch
from families import family, tiny
from jobs import Known
from peft import PeftModel
from safetensors.torch import load_file

from launcher.algorithms.gspo_selfplay import GSPOSelfPlay
from launcher.core.metrics import described
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout.generator import ExportedWeights, Generator, Request
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.mismatch import Mismatch
from launcher.engines.torch.train.sources import Order, Rollouts, Rows
from launcher.models.scratch import Scratch
from launcher.spec.algorithm import Batch
from launcher.spec.data import Row
from launcher.spec.episode import Turn
from launcher.spec.sampler import Sampler
from launcher.text.encoder import Pair, Tokens

CPU = torch.device("cpu")


class Foreign(Sampler):
    logprobs_match_trainer = False


class Fake(Generator):
    """Writes two or three tokens; the log-probability of token t is -t / 8."""

    awoken = 0

    @contextmanager
    def current_weights(self) -> Iterator[Mapping[str, float]]:
        self.awoken += 1
        yield {"timing_s/update_weights": 0.5}

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        count = sum(len(request.keys) for request in requests)
        answers = [[20 + row, 30 + row, *[1] * (row % 2 == 0)] for row in range(count)]
        return [
            Turn(tokens, stop="length" if row % 2 else "end", logp=[-token / 8 for token in tokens])
            for row, tokens in enumerate(answers)
        ]


def rolled(model: CausalLM) -> tuple[Batch, dict[str, float], Fake]:
    """A step of two prompts and two pairs by turns."""
    rows = Rows()
    for place in range(4):
        rows.rows.append(Row(f"f:{place}", ""))
        one, other = Tokens(place, [5, 6, 7], [0, 1, 1]), Tokens(place, [5, 8], [0, 1])
        rows.tokens.append(Pair(place, one, other) if place % 2 else Tokens(place, [9] * (place + 1), []))
    generator = Fake(model, Foreign(n=2), 3)
    batch, told = Rollouts(rows, Order(4, 4, 0, False), PromptAnswerer(generator, Known()), GSPOSelfPlay(), 0).batch(
        1, Clock()
    )
    return batch, told, generator


def test_each_tokens_log_probability_stands_where_the_token_does() -> None:
    batch, told, generator = rolled(tiny())
    assert generator.awoken == 1 and told["timing_s/update_weights"] == 0.5
    answer = (batch.mask > 0) & (batch.preference == 0)[:, None]
    expected = torch.where(answer, -batch.tokens / 8, 0.0)
    assert torch.equal(batch.rollout, expected.to(batch.rollout.dtype))
    assert answer.sum() == 2 * (2 + 3) and (batch.preference != 0).sum() == 4


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_policys_update_notes_how_far_they_are_apart(epochs: int) -> None:
    """On-policy by the log-probabilities that the update computes anyway, otherwise by those before it: equal ones."""
    policy = jobs.policy_for("gspo_selfplay", "float64", Limits(3))
    policy.mismatch = Mismatch(2.0)
    batch = jobs.batch_for(policy.algorithm, policy.model, 1)
    answer = (batch.mask > 0) & (batch.preference == 0)[:, None]
    batch = replace(batch, rollout=batch.tokens / -8.0)
    old = policy.annotate(batch, Clock(), on_policy=False).old
    made = policy.annotate(batch, Clock(), on_policy=epochs == 1)
    made, _ = policy.algorithm.prepare(made, {})
    for _ in range(epochs):
        policy.update(made, 1)
    found = policy.mismatch.metrics(CPU)
    assert found["rollout_corr/kl"] == pytest.approx((batch.rollout - old)[answer].mean().item())
    assert found["training/rollout_probs_diff_max"] == pytest.approx(
        (old.exp() - batch.rollout.exp())[answer].abs().max().item()
    )


def batch_of(old: list[float], rollout: list[float], mask: list[int]) -> Batch:
    row = [torch.tensor([x], dtype=torch.float64) for x in (old, rollout, mask)]
    tokens = torch.zeros(1, len(old), dtype=torch.long)
    return Batch(tokens=tokens, length=torch.tensor([len(old)]), mask=row[2], old=row[0], rollout=row[1])


def test_parts_add_up_to_the_whole_and_a_step_begins_anew() -> None:
    draw = torch.Generator().manual_seed(0)
    old, rollout = (-3 * torch.rand(1, 40, generator=draw, dtype=torch.float64) for _ in range(2))
    whole = batch_of(old[0].tolist(), rollout[0].tolist(), [1] * 40)
    single, parts = Mismatch(2.0), Mismatch(2.0)
    single.record_and_weight(whole)
    for start in range(0, 40, 7):
        cut = slice(start, start + 7)
        parts.record_and_weight(batch_of(old[0, cut].tolist(), rollout[0, cut].tolist(), [1] * len(old[0, cut])))
    expected = single.metrics(CPU)
    assert parts.metrics(CPU) == pytest.approx(expected)
    p, q, ratio = old.exp(), rollout.exp(), (old - rollout).exp()
    assert expected["rollout_corr/kl"] == pytest.approx((rollout - old).mean().item())
    assert expected["rollout_corr/k3_kl"] == pytest.approx((ratio - 1 - ratio.log()).mean().item())
    assert expected["training/rollout_probs_diff_mean"] == pytest.approx((p - q).abs().mean().item())
    assert expected["training/rollout_probs_diff_std"] == pytest.approx((p - q).abs().std().item())
    correlation = torch.corrcoef(torch.cat([p, q]))[0, 1].item()
    assert expected["training/rollout_actor_probs_pearson_corr"] == pytest.approx(correlation)
    assert parts.metrics(CPU) == {} and expected.keys() <= described().keys()


@pytest.mark.parametrize(
    ("old", "rollout", "weight"),
    [
        (0.5, 0.5, 1.0),  # of one mind
        (0.6, 0.4, 1.5),  # the trainer would have drawn it more often
        (0.2, 0.4, 0.5),  # and less often: never cut from below
        (0.9, 0.1, 2.0),  # nine times, and cut
    ],
)
def test_truncated_importance(old: float, rollout: float, weight: float) -> None:
    """min(p_trainer / p_sampler, cap), of the paper; without a gradient."""
    part = batch_of([math.log(old)], [math.log(rollout)], [1])
    seen = Mismatch(2.0)
    found = seen.record_and_weight(part).importance
    assert found.item() == pytest.approx(weight) and not found.requires_grad
    told = seen.metrics(CPU)
    assert told["rollout_corr/rollout_is_mean"] == pytest.approx(weight)
    assert told["rollout_corr/rollout_is_ratio_fraction_high"] == float(old / rollout > 2)
    assert Mismatch(None).record_and_weight(part).importance is None


def test_probabilities_that_are_all_one_have_no_correlation() -> None:
    seen = Mismatch(None)
    seen.record_and_weight(batch_of([0.0, 0.0], [0.0, -1e-9], [1, 1]))
    assert "training/rollout_actor_probs_pearson_corr" not in seen.metrics(CPU)


def loud(model: CausalLM) -> CausalLM:
    """Adapters begin with zeros; these do not."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.module.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator))
    model.base.tie_weights()
    return model


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_names_and_tensors_are_those_of_a_checkpoint(name: str, tmp_path: Path) -> None:
    """transformers holds a mixture's experts in one tensor; a checkpoint holds each alone, and so do other programs."""
    model, _ = family(name, torch.float32)
    loud(model).module.save_pretrained(tmp_path)
    expected, found = load_file(tmp_path / "model.safetensors"), dict(ExportedWeights(model))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_a_tensor_under_two_names_is_sent_once() -> None:
    model = loud(load_model(Scratch(tie_word_embeddings=True), 0, CPU))
    names = [name for name, _ in ExportedWeights(model)]
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names


def test_adapters_are_added_as_peft_would_add_them_and_stay_apart() -> None:
    model = loud(load_model(Scratch(dtype="bfloat16", lora_rank=3), 0, CPU))
    before = {name: weight.clone() for name, weight in model.module.state_dict().items()}
    found = dict(ExportedWeights(model))
    after = model.module.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert isinstance(model.module, PeftModel)
    expected = model.module.merge_and_unload().state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, msg=name)
