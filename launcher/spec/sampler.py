"""How answers are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from launcher.core.problems import InvalidSettings, Problem
from launcher.core.settings import AtLeastOne, NonNegative, Positive, ReadOnlyWith, settings
from launcher.spec.hardware import Hardware

if TYPE_CHECKING:
    from launcher.spec.run import RunSpec

SAMPLED = ReadOnlyWith(
    "run.algorithm.sampled", fix="algorithm=grpo", why="the algorithm samples no answers to learn from"
)


@settings
class Sampler:
    """Subclass it, decorate with @settings, and name the class in conf/sampler/<name>.yaml."""

    n: Annotated[AtLeastOne, SAMPLED] = 1
    """Answers to each prompt (the group size G). Where it is not given, 8 for algorithms that compare answers."""
    temperature: Annotated[Positive, SAMPLED] = 1.0
    """Logits are divided by it, in sampling and in training."""
    top_p: Annotated[float, Field(gt=0, le=1), SAMPLED] = 1.0
    """Sample from the smallest set of most likely tokens with at least this total probability."""
    top_k: Annotated[int, Field(ge=-1), SAMPLED] = -1
    """Sample from this many most likely tokens; -1 from all."""
    val_temperature: NonNegative = 0.0
    """Temperature for held-out prompts; 0 is greedy decoding."""
    val_n: AtLeastOne = 1
    """Answers to each held-out prompt."""
    max_num_seqs: AtLeastOne = 1024
    """Answers decoded at the same time in one process, at least those of one prompt; memory grows with it. Where
    it is not given, fewer if memory is too small."""

    logprobs_match_trainer: ClassVar[bool] = True
    """Whether sampler and trainer compute equal log-probabilities, so that no mismatch is reported."""
    importance_sampling: ClassVar[float | None] = None
    """Upper bound of the importance weight of a token sampled by another program; None disables weighting."""
    n_gpus: ClassVar[int] = 0
    """GPUs (on a CPU: processes) of all nodes that the sampler uses exclusively, in addition to those for training."""

    def __post_init__(self) -> None:
        if self.top_k == 0:
            raise InvalidSettings(Problem("top_k", "0 leaves no token to sample", "use -1 for all"))
        if self.val_n > 1 and not self.val_temperature:
            got = f"is {self.val_n}, and sampler.val_temperature 0, so all are alike"
            fix, about = "use sampler.val_temperature=1", ("sampler.val_temperature",)
            raise InvalidSettings(Problem("val_n", got, fix, "conflicting-settings", about))

    def problems(self, run: RunSpec) -> list[Problem]:
        """Why it cannot sample this run's answers."""
        return []

    def missing_requirements(self) -> list[Problem]:
        """What is missing on this machine."""
        return []

    def environment(self, hardware: Hardware) -> Mapping[str, str]:
        """Environment variables of the run's processes."""
        return {}
