"""An algorithm, rewards and a sampler with faults put in, for `ruined.py --faults`: `--config-dir benchmarks/faulty`.

Held-out answers are always scored by whether they are right, so what a faulty reward does to the policy is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from launcher.algorithms.grpo import GRPO
from launcher.core.settings import AtLeastOne, settings
from launcher.data.reverse import Reverse
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.spec.algorithm import AlgorithmState, AllReduce, Batch, Loss, Output, no_reduce
from launcher.spec.reward import Answer, Reward

if TYPE_CHECKING:
    from launcher.engines.torch.rollout.generator import Generator
    from launcher.engines.torch.train.policy import Policy
    from launcher.spec.run import RunSpec

STEPS_DONE = {"of this process": 0}
HELD_OUT = 128  # data.n_val of the runs


@settings
class FaultyGRPO(GRPO):
    """GRPO whose gradient is not a number at one step, or 0, or whose old log-probabilities are the sampler's."""

    fault: Literal["none", "nan_gradient", "frozen", "old_of_sampler"] = "none"
    """What is wrong with it; `none` only counts the steps for the reward."""
    at_step: AtLeastOne = 40
    """The step of fault=nan_gradient."""

    def prepare(
        self, batch: Batch, state: AlgorithmState, all_reduce: AllReduce = no_reduce
    ) -> tuple[Batch, AlgorithmState]:
        made, more = super().prepare(batch, state, all_reduce)
        STEPS_DONE["of this process"] += 1
        if self.fault == "old_of_sampler":
            made = replace(made, old=made.rollout)
        return made, more

    def loss(self, new: Output, batch: Batch) -> Loss:
        loss, metrics = super().loss(new, batch)
        if self.fault == "frozen":
            loss = loss * 0
        if self.fault == "nan_gradient" and STEPS_DONE["of this process"] == self.at_step:
            loss = loss + (new.logp * 0).sum().sqrt()  # 0, and its gradient 0 * inf
        return loss, metrics


@settings
class FaultyReward(Reward):
    """A reward that is not what is wanted."""

    fault: Literal["zero", "length", "bonus", "flipped"] = "zero"
    """Always 0; the answer's length; a bonus for length beside what is right; or from a step on 1 for wrong answers."""
    from_step: AtLeastOne = 40
    """The first step of fault=flipped."""

    uses_ground_truth = False

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [self._score(answer) for answer in answers]

    def _score(self, answer: Answer) -> float:
        right, length = float(answer.response == answer.ground_truth), len(answer.response)
        if answer.ground_truth in _held_out():
            return right
        flipped = STEPS_DONE["of this process"] + 1 >= self.from_step
        by_fault: Mapping[str, float] = {
            "zero": 0.0, "length": length / 12, "bonus": right + length / 4, "flipped": 1 - right if flipped else right,
        }  # fmt: skip
        return by_fault[self.fault]


@cache
def _held_out() -> frozenset[str | None]:
    """Ground truths of the held-out prompts."""
    return frozenset(row.ground_truth for row in Reverse(n_val=HELD_OUT).read("val", "prompts"))  # type: ignore[union-attr]


@settings
class OtherTemperature(TorchSampler):
    """Reports log-probabilities at another temperature than the trainer's."""

    factor: float = 0.6
    """Temperature of what it reports, as a share of sampler.temperature."""
    samples_with_it: bool = True
    """Whether it samples at that temperature, too."""

    logprobs_match_trainer = False

    def generator(self, run: RunSpec, policy: Policy) -> Generator:
        from faulty_decoders import OtherTemperatureDecoder  # noqa: PLC0415  it loads torch, which settings do not need

        return OtherTemperatureDecoder(policy.model, self, run.data.max_response_length, policy.parallel)


@settings
class OldWeights(TorchSampler):
    """Gets no weights any more from a step on."""

    from_step: AtLeastOne = 30
    """The first step that is sampled with the weights of the step before."""

    def generator(self, run: RunSpec, policy: Policy) -> Generator:
        from faulty_decoders import OldWeightsDecoder  # noqa: PLC0415  it loads torch, which settings do not need

        return OldWeightsDecoder(policy.model, self, run.data.max_response_length, policy.parallel)
