"""Validation: a mean for each data source and the loss for each token, however the rows are spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from launcher.algorithms.grpo import GRPO
from launcher.algorithms.sft import SFT
from launcher.engines.torch import TorchSampler, world
from launcher.engines.torch.decode import Decoder
from launcher.engines.torch.evaluate import Validation
from launcher.engines.torch.model import CausalLM
from launcher.engines.torch.policy import Policy
from launcher.engines.torch.rows import Rows
from launcher.engines.torch.tokens import Tokens
from launcher.rewards.exact import Exact
from launcher.spec.algorithm import Algorithm
from launcher.spec.data import Row
from launcher.spec.reward import Answer, Reward
from launcher.spec.run import Optim

Ids = Callable[..., list[list[int]]]


class Named(Reward):
    """Fake: an answer's score is its row's ground truth, as a number."""

    def __init__(self) -> None:
        self.asked: list[Answer] = []

    def score(self, answers: Sequence[Answer]) -> list[float]:
        self.asked += answers
        return [float(answer.ground_truth or "nan") for answer in answers]


def held_out(prompts: list[list[int]], scores: list[str | None], sources: list[str]) -> Rows:
    """Prompts without demonstrations."""
    found = Rows()
    for place, (ids, score, source) in enumerate(zip(prompts, scores, sources, strict=True)):
        found.rows.append(Row(f"f:{place}", "", ground_truth=score, data_source=source))
        found.tokens.append(Tokens(place, ids, []))
    return found


def validation(
    model: CausalLM, rows: Rows, reward: Reward, algorithm: Algorithm | None = None, size: int = 3, **sampler: Any
) -> Validation:
    policy = Policy(algorithm or GRPO(), model, Optim(), micro=2, steps=1)
    return Validation(rows, policy, Decoder(model, TorchSampler(**sampler), 6), reward, 0, size)


def test_the_mean_of_each_source_by_hand(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    rows = held_out(ids(3, 5, 2, 4, 6, 1), ["1", "0", "4", "1", "-3", None], ["a", "b", "c/d", "a", "a", "b"])
    found = validation(tiny(), rows, Named()).measure(1)
    assert found == {
        "val-core/a/reward/mean@1": pytest.approx(-1 / 3),  # (1 + 1 - 3) / 3
        "val-core/b/reward/mean@1": 0.0,  # its other row has no truth, so it is not asked
        "val-core/c/d/reward/mean@1": 4.0,
    }


def test_the_answers_are_those_of_the_model_to_that_row(
    family: Callable[..., Any], ids: Ids, generated: Callable[..., list[int]]
) -> None:
    """Every truth is transformers' own greedy answer but one, which is wrong: 4 of 5 are right."""
    model, plain = family("llama")
    prompts = ids(3, 5, 2, 4, 6)
    model.module.generation_config.eos_token_id = [1, 3]
    answers = [generated(plain, prompt, 6, ends=[1, 3]) for prompt in prompts]
    texts = model.tokenizer.batch_decode([answer[:-1] if answer[-1] in (1, 3) else answer for answer in answers])
    rows = held_out(prompts, [*texts[:4], texts[4] + "?"], ["a"] * 5)
    assert len(set(texts)) == 5
    assert validation(model, rows, Exact(strip=False)).measure(1) == {"val-core/a/reward/mean@1": 0.8}


def test_each_answer_comes_with_what_is_known_of_its_row(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    reward = Named()
    rows = held_out(ids(3, 5, 2), ["1", "2", "3"], ["a", "b", "a"])
    validation(tiny(), rows, reward).measure(1)
    assert [(answer.ground_truth, answer.data_source) for answer in reward.asked] == [
        ("1", "a"), ("2", "b"), ("3", "a")
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 100])
def test_how_many_are_answered_at_a_time_does_not_matter(size: int, tiny: Callable[..., CausalLM], ids: Ids) -> None:
    prompts = ids(3, 5, 2, 4, 6)
    reward, other = Named(), Named()
    rows = held_out(prompts, ["1"] * 5, ["a"] * 5)
    validation(tiny(), rows, reward, size=3, val_temperature=1.0).measure(1)
    validation(tiny(), rows, other, size=size, val_temperature=1.0).measure(1)
    assert other.asked == reward.asked


def test_a_later_step_draws_others_and_the_same_step_the_same(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    texts = []
    for step in (0, 0, 1):
        reward = Named()
        validation(tiny(), held_out(ids(3, 5, 2), ["1"] * 3, ["a"] * 3), reward, val_temperature=1.0).measure(step)
        texts.append([answer.response for answer in reward.asked])
    assert texts[0] == texts[1] != texts[2]


# ---- demonstrations


def demonstrations(sequences: list[tuple[list[int], list[int]]], truths: Sequence[str | None]) -> Rows:
    found = Rows()
    for place, ((ids, mask), truth) in enumerate(zip(sequences, truths, strict=True)):
        found.rows.append(Row(f"f:{place}", "", response="", ground_truth=truth, data_source="a"))
        found.tokens.append(Tokens(place, ids, mask))
    return found


def test_the_loss_is_a_mean_over_answer_tokens(
    family: Callable[..., Any], sequences_of: Callable[..., Any], logp_alone: Callable[..., Tensor]
) -> None:
    model, plain = family("llama")
    sequences = sequences_of(1, 7)
    rows = demonstrations(sequences, [None] * 7)
    total = tokens = 0.0
    for ids, mask in sequences:
        answer = torch.tensor(mask[1:], dtype=torch.float64)  # token 0 is never predicted
        total -= (logp_alone(plain, ids) * answer).sum().item()
        tokens += sum(mask)
    found = validation(model, rows, Named(), SFT()).measure(1)
    assert found == {"val/loss": pytest.approx(total / tokens, rel=1e-12)}  # and no score where no truth is known


def test_a_demonstration_is_answered_from_its_prompt_alone(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    model = tiny()
    prompts = ids(3, 5, 2)
    whole = [([*prompt, 20, 21, 1], [0] * len(prompt) + [1, 1, 1]) for prompt in prompts]
    prompted, imitated = Named(), Named()
    validation(model, held_out(prompts, ["1"] * 3, ["a"] * 3), prompted).measure(1)
    found = validation(model, demonstrations(whole, ["1"] * 3), imitated, SFT()).measure(1)
    assert [answer.response for answer in imitated.asked] == [answer.response for answer in prompted.asked]
    assert set(found) == {"val-core/a/reward/mean@1", "val/loss"}


def test_a_policy_that_samples_has_no_loss(tiny: Callable[..., CausalLM], ids: Ids) -> None:
    assert validation(tiny(), held_out(ids(3), [None], ["a"]), Named()).measure(1) == {}


# ---- spread over processes


@pytest.mark.parametrize("kind", ["sft", "grpo"])
@pytest.mark.parametrize("size", [2, 3, 20])  # 11 rows: shares of unlike size, and some of none
def test_shards_add_up_to_the_whole(
    size: int, kind: str, validated: Callable[[str], dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = validated(kind)
    assert set(expected) == {"val-core/sums/reward/mean@1", "val-core/words/reward/mean@1"} | (
        {"val/loss"} if kind == "sft" else set()
    )
    shares: list[list[Tensor]] = []
    monkeypatch.setattr(world, "SIZE", size)
    for rank in range(size):
        monkeypatch.setattr(world, "RANK", rank)
        told: list[Tensor] = []
        # what this process gives to the sum; the others' part comes from the loop
        monkeypatch.setattr(world, "total", lambda x, told=told: told.append(x) or torch.ones_like(x))
        validated(kind)
        shares.append(told)
    sums = [torch.stack(parts).sum(0) for parts in zip(*shares, strict=True)]
    assert sums[0][:, 1].tolist() == [7, 4]  # each row is answered by one process
    names = ["val-core/sums/reward/mean@1", "val-core/words/reward/mean@1"]
    for name, (score, count) in zip(names, sums[0].tolist(), strict=True):
        assert score / count == pytest.approx(expected[name], rel=1e-12)
    if kind == "sft":
        assert (sums[1][0] / sums[1][1]).item() == pytest.approx(expected["val/loss"], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "grpo"])
@pytest.mark.parametrize("size", [2, 3])
def test_real_processes_find_the_same(size: int, kind: str, together: Callable[[int], list[dict[str, Any]]]) -> None:
    expected = together(1)[0][f"validation {kind}"]
    for found in together(size):
        assert found[f"validation {kind}"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_a_gpu_finds_the_same(
    kind: str, validated: Callable[..., dict[str, float]], trained: Callable[..., dict[str, Any]]
) -> None:
    gpu = torch.device("cuda")
    assert validated(kind, gpu) == pytest.approx(validated(kind), rel=1e-10)
    found, expected = trained(kind, "float64", 2, device=gpu), trained(kind, "float64", 2)
    assert found["weights"] == pytest.approx(expected["weights"], abs=1e-9)
