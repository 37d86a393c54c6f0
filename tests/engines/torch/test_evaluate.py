"""Validation: verl's means for each data source and the loss for each token, however the rows are spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import jobs
import pytest
import torch
from families import family, generated, ids, logp_alone, tiny

from launcher.algorithms.dpo import DPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.sft import SFT
from launcher.core.events import HeldOutScores, Sample
from launcher.core.prompt_scores import prompt_digest
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.model.reference import Reference
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.sources import Rows
from launcher.engines.torch.train.validation import Validation
from launcher.rewards.exact import Exact
from launcher.spec.algorithm import Algorithm
from launcher.spec.data import Message, Row
from launcher.spec.reward import Answer, Reward
from launcher.text.encoder import Pair, Tokens

Ids = Callable[..., list[list[int]]]
WILSON = {f"val-aux/a/reward/wilson95_{end}@1" for end in ("low", "high")}


class Named(Reward):
    """Fake: an answer's score is its row's ground truth, as a number."""

    def __init__(self) -> None:
        self.asked: list[Answer] = []

    def score(self, answers: Sequence[Answer]) -> list[float]:
        self.asked += answers
        return [float(answer.ground_truth or "nan") for answer in answers]


def held_out(
    sequences: Sequence[list[int]], truths: Sequence[str | None], sources: Sequence[str] = (), answer: int = 0
) -> Rows:
    """Prompts; with an answer of so many tokens at the end of each, demonstrations."""
    found = Rows()
    for place, (sequence, truth) in enumerate(zip(sequences, truths, strict=True)):
        source, response = sources[place] if sources else "a", "" if answer else None
        mask = [0] * (len(sequence) - answer) + [1] * answer if answer else []
        found.rows.append(Row(f"f:{place}", "", response=response, ground_truth=truth, data_source=source))
        found.tokens.append(Tokens(place, sequence, mask))
    return found


def validation(
    model: CausalLM, rows: Rows, reward: Reward, algorithm: Algorithm | None = None, size: int = 3, shown: int = 0,
    **sampler: Any,
) -> Validation:  # fmt: skip
    policy = jobs.policy_of(model, algorithm or GRPO(), limits=Limits(2))
    return Validation(rows, policy, PromptAnswerer(Decoder(model, TorchSampler(**sampler), 6), reward), 0, size, shown)


def test_the_score_of_each_prompt_is_logged() -> None:
    """The mean of its answers, in the order of the rows, and of each source; a prompt whose answers have no score has
    none, and one without a truth is not asked."""
    truths, sources = ["1", "0.5", "nan", "-3", "4", None], ["b", "a", "a", "a", "c/d", "b"]
    rows = held_out(ids(3, 5, 2, 4, 6, 1), truths, sources)
    metrics, events = validation(tiny(), rows, Named(), shown=1, val_n=2, val_temperature=1.0).measure(7)
    assert [type(event) for event in events] == [Sample, HeldOutScores, HeldOutScores, HeldOutScores]
    assert [vars(event) for event in events[1:]] == [
        {"at": event.at, "step": 7, "data_source": source, "scores": scores, "metric": "score",
         "prompts": tuple(prompt_digest("", str(truth)) for truth in truths)}
        for event, source, scores, truths in zip(
            events[1:], ("b", "a", "c/d"), ((1.0,), (0.5, -3.0), (4.0,)), (["1"], ["0.5", "-3"], ["4"]), strict=True
        )
    ]  # fmt: skip
    means = {name: value for name, value in metrics.items() if name.endswith("/mean@2")}
    assert means == {
        "val-core/a/reward/mean@2": -1.25,
        "val-core/b/reward/mean@2": 1.0,
        "val-core/c/d/reward/mean@2": 4,
    }


def test_the_answers_are_those_of_the_model_to_that_row() -> None:
    """Every truth is transformers' own greedy answer but one, which is wrong: 4 of 5 are right."""
    model, plain = family("llama")
    prompts = ids(3, 5, 2, 4, 6)
    model.module.generation_config.eos_token_id = [1, 3]
    answers = [generated(plain, prompt, 6, ends=[1, 3]) for prompt in prompts]
    texts = model.tokenizer.batch_decode([answer[:-1] if answer[-1] in (1, 3) else answer for answer in answers])
    rows = held_out(prompts, [*texts[:4], texts[4] + "?"])
    assert len(set(texts)) == 5
    low, high = 0.37553, 0.96378  # Wilson's interval of 4 out of 5, from tables
    assert validation(model, rows, Exact(strip=False)).measure(1)[0] == {
        "val-core/a/reward/mean@1": 0.8,
        "val-aux/a/reward/wilson95_low@1": pytest.approx(low, abs=1e-5),
        "val-aux/a/reward/wilson95_high@1": pytest.approx(high, abs=1e-5),
    }


# ---- demonstrations


def test_the_loss_is_a_mean_over_answer_tokens() -> None:
    model, plain = family("llama")
    sequences = jobs.sequences_of(1, 7)
    rows = held_out([sequence for sequence, _ in sequences], [None] * 7, answer=1)
    rows.tokens[:] = [Tokens(place, *given) for place, given in enumerate(sequences)]
    total = tokens = 0.0
    for sequence, mask in sequences:
        answer = torch.tensor(mask[1:], dtype=torch.float64)  # token 0 is never predicted
        total -= (logp_alone(plain, sequence) * answer).sum().item()
        tokens += sum(mask)
    found = validation(model, rows, Named(), SFT()).measure(1)[0]
    assert found == {"val/loss": pytest.approx(total / tokens, rel=1e-12)}  # and no score where no truth is known


def test_a_demonstration_is_answered_from_its_prompt_alone() -> None:
    model = tiny()
    prompts = ids(3, 5, 2)
    whole = held_out([[*prompt, 20, 21, 1] for prompt in prompts], ["1"] * 3, answer=3)
    prompted, written = Named(), Named()
    validation(model, held_out(prompts, ["1"] * 3), prompted).measure(1)
    found = validation(model, whole, written, SFT()).measure(1)[0]
    assert [answer.response for answer in written.asked] == [answer.response for answer in prompted.asked]
    assert set(found) - WILSON == {"val-core/a/reward/mean@1", "val/loss"}


def test_without_a_truth_the_first_prompts_are_answered_beside_their_references() -> None:
    """Greedily, at most twice as long as the longest reference; a conversation's first turn with a loss is one."""
    model = tiny()
    prompts = ids(3, 5, 2)
    rows = held_out([[*prompt, 20, 21] for prompt in prompts], [None] * 3, answer=2)
    rows.rows[0] = replace(rows.rows[0], prompt="Hi?", response="Hello.")
    rows.rows[1] = replace(rows.rows[1], prompt=(Message("user", "a"), Message("assistant", "b")), response=None)
    decode = model.tokenizer.decode

    def answers(shown: int, step: int = 7) -> list[Sample]:
        metrics, events = validation(model, rows, Named(), SFT(), shown=shown).measure(step)
        assert list(metrics) == ["val/loss"]
        return [event for event in events if isinstance(event, Sample)]

    for shown, expected in ((0, []), (20, [("Hi?", "Hello."), (decode(prompts[1]), decode([20, 21]))])):
        events = answers(shown)
        assert [(event.prompt, event.ground_truth) for event in events] == expected
    assert all((event.step, event.score) == (7, None) and event.response for event in events)
    assert {event.response for event in answers(20, step=8)} <= {event.response for event in events}
    model.base.config.max_position_embeddings = 6  # and no longer than there are positions
    short = [event.response for event in answers(20)]
    assert [len(model.tokenizer(text).input_ids) for text in short] == [1, 1]
    model.base.forward = lambda input_ids: None  # type: ignore[method-assign]  # keeps no cache of ours
    assert validation(model, rows, Named(), SFT(), shown=20).read == []


# ---- pairs


def test_pairs_held_out_are_measured_by_their_loss() -> None:
    """Against a reference that is the policy itself no answer is preferred: the loss is log 2 and no margin won."""
    model, rows = tiny(), Rows()
    answers = jobs.shared(jobs.sequences_of(3, 10), 2)
    for place in range(5):
        rows.rows.append(Row(f"f:{place}", "", response="", rejected="x"))
        rows.tokens.append(Pair(place, Tokens(place, *answers[2 * place]), Tokens(place, *answers[2 * place + 1])))
    validating = validation(model, rows, Named(), DPO(), size=2)
    validating.policy.reference = Reference(tiny())
    metrics, (losses,) = validating.measure(1)
    rewards = dict.fromkeys((f"val/rewards/{name}" for name in ("chosen", "rejected", "margins", "accuracies")), 0.0)
    expected = {"val/dpo_loss": math.log(2), "val/loss": math.log(2)} | rewards
    assert metrics == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert isinstance(losses, HeldOutScores) and losses.metric == "loss"
    assert losses.scores == (pytest.approx(math.log(2), rel=1e-12),) * 5


@pytest.mark.parametrize(("rows", "kind"), [(1, "dpo"), (100, "sft")])
def test_how_many_rows_are_taken_at_a_time_does_not_matter(rows: int, kind: str) -> None:
    assert jobs.validated(kind, size=rows) == pytest.approx(jobs.validated(kind), rel=1e-12)


SCORES = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
SAID = ["abba", "aaaa", "abcd"]  # the majority: of equals the first, all, the first
PROMPTS = ("what?", (Message("system", "be brief"), Message("user", "why?")), "who?")


class Listed(Reward):
    """Fake: scores and sayings by the table, whatever the answers are."""

    def __init__(self, scores: list[list[float]] = SCORES) -> None:
        self.scores, self.said_next = chain.from_iterable(scores), iter("".join(SAID))

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [next(self.scores) for _ in answers]

    def extract_answer(self, response: str) -> str:
        return next(self.said_next)


def measured(reward: Reward, **values: int) -> tuple[dict[str, float], list[Any]]:
    """Metrics and events of step 7: four answers to each of three prompts, of two sources."""
    rows = held_out(ids(3, 5, 2), ["0", "1", "2"], ["x", "x", "y"])
    rows.rows[:] = [replace(row, prompt=prompt) for row, prompt in zip(rows.rows, PROMPTS, strict=True)]
    return validation(tiny(), rows, reward, val_n=4, val_temperature=1.0, **values).measure(7)


def test_verls_names_and_values_by_hand() -> None:
    found, _ = measured(Listed())
    ends = [found.pop(f"val-aux/x/reward/wilson95_{end}@4") for end in ("low", "high")]
    assert 0 <= ends[0] < 0.25 < ends[1] <= 1
    # of 1001: best of 2 is wrong in 1 of 6 draws; of 0000 always; the mean of both is 5 / 12
    assert {name: value for name, value in found.items() if "/x/" in name} == {
        "val-core/x/reward/mean@4": 0.25,
        "val-aux/x/reward/best@2/mean": pytest.approx(5 / 12),
        "val-core/x/reward/best@4/mean": 0.5,
        "val-core/x/reward/maj@4/mean": 0.5,
        "val-aux/x/reward/std@4": pytest.approx((1 / 3) ** 0.5 / 2),
    }
    assert found["val-core/y/reward/mean@4"] == 0.75 and found["val-core/y/reward/maj@4/mean"] == 1.0


def test_scores_that_are_no_shares_have_the_interval_of_a_mean() -> None:
    found, _ = measured(Listed([[0.5, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]]))
    assert not any("wilson" in name for name in found if "/x/" in name)
    error = 1.959964 * 0.125 / 2**0.5 / 2**0.5  # means 0.125 and 0 of two prompts: std 0.125 / sqrt 2
    assert found["val-aux/x/reward/normal95_low@4"] == pytest.approx(0.0625 - error)
    assert found["val-aux/x/reward/normal95_high@4"] == pytest.approx(0.0625 + error)
    assert any("wilson" in name for name in found if "/y/" in name)


def test_a_few_answers_are_kept_as_they_were_given() -> None:
    _, (*samples, x, y) = measured(Listed(), size=2, shown=2)
    assert [(s.step, s.data_source, s.prompt, s.ground_truth, s.score) for s in samples] == [
        (7, "x", "what?", "0", 1.0), (7, "x", "system: be brief\nuser: why?", "1", 0.0)
    ]  # fmt: skip
    assert all(isinstance(sample.response, str) for sample in samples)
    assert (x.data_source, x.scores, y.data_source, y.scores) == ("x", (0.5, 0.0), "y", (0.75,))
    assert list(map(type, measured(Listed(), shown=99)[1])) == [Sample] * 3 + [HeldOutScores] * 2
