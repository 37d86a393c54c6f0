"""What a model is: where its weights come from, and the number format they are trained in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, Self

from launcher.settings import AtLeastOne, Count, Names, settings


@settings
class Model(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/model/<name>.yaml."""

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Format of weights, gradients and optimizer. `bfloat16` halves the memory, but has 8 bits for a weight: steps
    smaller than 1/256 of it are lost, so small learning rates teach nothing. `float64` is for exactness tests."""

    lora_rank: Count = 0
    """Train low-rank adapters of this rank and leave the weights as they are; 0 trains the weights."""
    lora_alpha: AtLeastOne = 16
    """What adapters add counts for lora_alpha / lora_rank."""
    target_modules: Names = ("all-linear",)
    """Layers that get adapters, by the end of their names; `all-linear` takes every matrix but the last layer's."""
    enable_gradient_checkpointing: bool = False
    """Compute each layer a second time instead of keeping what it computed: less memory, a third more time."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Short name for run names and screens."""

    @property
    def positions(self) -> int | None:
        """Tokens of the longest sequence it knows, where that is known before it is loaded."""
        return None

    def problems(self) -> list[str]:
        """What can be seen to be wrong before anything is loaded: one line each."""
        return []

    def rooted(self) -> Self:
        """The same model, found from any working folder."""
        return self
