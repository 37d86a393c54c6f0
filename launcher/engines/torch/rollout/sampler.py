"""Samplers of the torch engine: settings only; the implementations are loaded when a run needs them."""

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
    """Bytes that a separate sampling program uses beside the model under training."""

    awake_bytes: int
    """Bytes while it generates."""
    asleep_bytes: int
    separate_bytes: int = 0
    """Bytes in a process of its own, in all phases."""


class Colocated(Sampler, ABC):
    """Answers are generated in the training processes, or in `n_gpus` additional processes of the sampler."""

    module: ClassVar[str] = ""
    """Python module that each additional process runs."""

    def extra_memory(self, run: RunSpec) -> SamplerMemory | None:
        """None where the model under training generates the answers."""
        return None

    @abstractmethod
    def generator(self, run: RunSpec, policy: Policy) -> Generator:
        """The generator for this training process. Collective: every process must call it."""


@settings
class TorchSampler(Colocated):
    """Samples from the model under training itself, without a second copy of the weights."""

    def generator(self, run: RunSpec, policy: Policy) -> Generator:
        from launcher.engines.torch.rollout.decode import Decoder  # noqa: PLC0415  it loads torch, which settings do not need

        return Decoder(policy.model, self, run.data.max_response_length, policy.parallel)
