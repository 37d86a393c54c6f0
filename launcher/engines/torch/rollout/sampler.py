"""How the torch engine samples answers: settings only; what computes is loaded when a run needs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from launcher.core.settings import settings
from launcher.spec.run import RunSpec
from launcher.spec.sampler import Sampler

if TYPE_CHECKING:
    from launcher.engines.torch.rollout.generator import Generator
    from launcher.engines.torch.train.policy import Policy


@dataclass(frozen=True)
class SamplerMemory:
    """Bytes that another program takes beside the model under training."""

    awake_bytes: int
    """While answers are written."""
    asleep_bytes: int
    separate_bytes: int = 0
    """In a process of its own, always."""


class Colocated(Sampler, ABC):
    """Answers are written in the training processes themselves, or in `n_gpus` of the sampler's own beside them."""

    module: ClassVar[str] = ""
    """What each of those processes runs."""

    def extra_memory(self, run: RunSpec) -> SamplerMemory | None:
        """None where the model under training writes them itself."""
        return None

    @abstractmethod
    def generator(self, run: RunSpec, policy: Policy) -> Generator:
        """What gives the run's answers to this training process; every one must ask."""


@settings
class TorchSampler(Colocated):
    """Samples from the model under training itself, without a second copy of the weights."""

    def generator(self, run: RunSpec, policy: Policy) -> Generator:
        from launcher.engines.torch.rollout.decode import Decoder  # noqa: PLC0415  it loads torch, which settings do not need

        return Decoder(policy.model, self, run.data.max_response_length, policy.parallel)
