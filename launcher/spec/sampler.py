"""How answers are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from launcher.core.settings import AtLeastOne, NonNegative, Positive, settings
from launcher.spec.hardware import Hardware

if TYPE_CHECKING:
    from launcher.spec.run import RunSpec


@settings
class Sampler:
    """Subclass it, decorate with @settings, and name the class in conf/sampler/<name>.yaml."""

    n: AtLeastOne = 1
    """Answers to each prompt (G)."""
    temperature: Positive = 1.0
    """Logits are divided by it, when sampling and when training."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the likeliest tokens that hold this much probability."""
    top_k: Annotated[int, Field(ge=-1)] = -1
    """Sample from this many likeliest tokens; -1 from all."""
    val_temperature: NonNegative = 0.0
    """Temperature for held-out prompts; 0 takes the likeliest token."""
    val_n: AtLeastOne = 1
    """Answers to each held-out prompt."""
    max_num_seqs: AtLeastOne = 1024
    """Answers being written at the same time in one process, though never fewer than one prompt's; memory grows
    with it."""

    logprobs_match_trainer: ClassVar[bool] = True
    """Whether the trainer would compute the same log-probabilities of what is sampled, so that nothing is to tell."""
    importance_sampling: ClassVar[float | None] = None
    """The most that a token's loss is weighed by where another program sampled it; None weighs nothing."""
    n_gpus: ClassVar[int] = 0
    """GPUs (on a CPU processes) of all nodes that it takes for itself, beside those that the run trains on."""

    def __post_init__(self) -> None:
        if self.top_k == 0:
            raise ValueError("top_k is 0, which leaves no token to sample; use -1 for all")
        if self.val_n > 1 and not self.val_temperature:
            raise ValueError(f"val_n is {self.val_n} and val_temperature 0, so all are alike; use val_temperature=1")

    def problems(self, run: RunSpec) -> list[str]:
        """Why it cannot sample this run's answers: one line each."""
        return []

    def missing_requirements(self) -> list[str]:
        """What is not on this machine that it needs: one line each."""
        return []

    def environment(self, hardware: Hardware) -> Mapping[str, str]:
        """Variables that the run's processes start with."""
        return {}
