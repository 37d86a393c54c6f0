"""Several answers to each held-out prompt: verl's names, and the samples that are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest

from launcher.algorithms.grpo import GRPO
from launcher.core.events import HeldOutScores, Sample, Step, events_of
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train.sources import Rows
from launcher.engines.torch.train.validation import Validation
from launcher.spec.data import Message, Row
from launcher.spec.reward import Answer, Reward
from launcher.text.encoder import Tokens

SCORES = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
SAID = ["abba", "aaaa", "abcd"]  # the majority: of equals the first, all, the first
PROMPTS = ("what?", (Message("system", "be brief"), Message("user", "why?")), "who?")


class Listed(Reward):
    """Fake: scores and sayings by the table, whatever the answers are."""

    def __init__(self, scores: list[list[float]] = SCORES) -> None:
        self.scores = [score for of_prompt in scores for score in of_prompt]
        self.said_next = iter("".join(SAID))

    def score(self, answers: Sequence[Answer]) -> list[float]:
        found, self.scores = self.scores[: len(answers)], self.scores[len(answers) :]
        return found

    def extract_answer(self, response: str) -> str:
        return next(self.said_next)


Measured = tuple[dict[str, float], list[Any]]


@pytest.fixture
def measured(jobs: ModuleType) -> Callable[..., Measured]:
    def measure(reward: Reward, n: int = 4, size: int = 3, shown: int = 2) -> Measured:
        model, rows = jobs.small("float64"), Rows()
        for place, (ids, mask) in enumerate(jobs.sequences_of(5, 3)):
            rows.rows.append(
                Row(f"f:{place}", PROMPTS[place], ground_truth=str(place), data_source="x" if place < 2 else "y")
            )
            rows.tokens.append(Tokens(place, ids[: mask.index(1)], []))
        decoder = Decoder(model, TorchSampler(val_n=n, val_temperature=1.0), 5)
        return Validation(rows, jobs.policy_of(model, GRPO()), decoder, reward, 0, size, shown).measure(7)

    return measure


def test_verls_names_and_values_by_hand(measured: Callable[..., Measured]) -> None:
    found, _ = measured(Listed())
    # of 1001: best of 2 is wrong in 1 of 6 draws; of 0000 always; the mean of both is 5 / 12
    assert {name: value for name, value in found.items() if "/x/" in name} == {
        "val-core/x/reward/mean@4": 0.25,
        "val-aux/x/reward/best@2/mean": pytest.approx(5 / 12),
        "val-core/x/reward/best@4/mean": 0.5,
        "val-core/x/reward/maj@4/mean": 0.5,
        "val-aux/x/reward/std@4": pytest.approx((1 / 3) ** 0.5 / 2),
        "val-aux/x/reward/wilson95_low@4": pytest.approx(found["val-aux/x/reward/wilson95_low@4"]),
        "val-aux/x/reward/wilson95_high@4": pytest.approx(found["val-aux/x/reward/wilson95_high@4"]),
    }
    assert 0 <= found["val-aux/x/reward/wilson95_low@4"] < 0.25 < found["val-aux/x/reward/wilson95_high@4"] <= 1
    assert found["val-core/y/reward/mean@4"] == 0.75 and found["val-core/y/reward/maj@4/mean"] == 1.0


def test_scores_that_are_no_shares_have_the_interval_of_a_mean(measured: Callable[..., Measured]) -> None:
    found, _ = measured(Listed([[0.5, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]]))
    assert not any("wilson" in name for name in found if "/x/" in name)
    error = 1.959964 * 0.125 / 2**0.5 / 2**0.5  # means 0.125 and 0 of two prompts: std 0.125 / sqrt 2
    assert found["val-aux/x/reward/normal95_low@4"] == pytest.approx(0.0625 - error)
    assert found["val-aux/x/reward/normal95_high@4"] == pytest.approx(0.0625 + error)
    assert any("wilson" in name for name in found if "/y/" in name)


def test_one_answer_is_its_own_best(measured: Callable[..., Measured]) -> None:
    found, _ = measured(Listed([[1.0], [0.0], [1.0]]), n=1)
    assert {name for name in found if "wilson" not in name} == {"val-core/x/reward/mean@1", "val-core/y/reward/mean@1"}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_few_answers_are_kept_as_they_were_given(size: int, measured: Callable[..., Measured]) -> None:
    _, (*samples, x, y) = measured(Listed(), size=size)
    assert [(s.step, s.data_source, s.prompt, s.ground_truth, s.score) for s in samples] == [
        (7, "x", "what?", "0", 1.0), (7, "x", "system: be brief\nuser: why?", "1", 0.0)
    ]  # fmt: skip
    assert all(isinstance(sample.response, str) for sample in samples)
    assert (x.data_source, x.scores, y.data_source, y.scores) == ("x", (0.5, 0.0), "y", (0.75,))
    assert list(map(type, measured(Listed(), size=size, shown=0)[1])) == [HeldOutScores] * 2
    assert list(map(type, measured(Listed(), size=size, shown=99)[1])) == [Sample] * 3 + [HeldOutScores] * 2


@pytest.mark.slow
def test_a_run_says_it_before_it_trains(tmp_path: Any, commands: Any, small: list[str]) -> None:
    rlrun = commands(tmp_path)
    words = [
        "sampler.val_n=4",
        "sampler.val_temperature=1",
        "trainer.log_val_generations=3",
        "trainer.total_training_steps=1",
    ]
    ran = rlrun("train", "algorithm=grpo", *small, *words, "trainer.experiment_name=said")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = [event for event in events_of(rlrun.run("said") / "events.jsonl") if isinstance(event, Sample | Step)]
    assert [(type(event).__name__, event.step) for event in told] == [
        *[("Sample", 0)] * 3, ("Step", 0), *[("Sample", 1)] * 3, ("Step", 1)
    ]  # fmt: skip
    for event in (told[3], told[7]):
        names = {name for name in event.metrics if name.startswith("val-core/")}
        assert names == {f"val-core/reverse/reward/{name}" for name in ("mean@4", "best@4/mean", "maj@4/mean")}
