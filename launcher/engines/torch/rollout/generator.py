"""Interface of generators: the model under training, or another program with a copy of its weights; and that copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel.strategy import full_tensor
from launcher.spec.sampler import Sampler


@dataclass(frozen=True)
class Completion:
    """One answer's tokens; `truncated` where it was cut at the maximum length."""

    tokens: list[int]
    truncated: bool
    logp: Sequence[float] = ()
    """Log-probability of each token by the sampling program; empty where that is the trainer."""


class Generator(ABC):
    """Generates answers of at most `max_new` tokens with the sampler's settings."""

    def __init__(self, model: CausalLM, sampler: Sampler, max_new: int) -> None:
        self.model, self.sampler, self.max_new = model, sampler, max_new

    @contextmanager
    def current_weights(self) -> Iterator[Mapping[str, float]]:
        """Context in which the generator is ready with the policy's newest weights; yields metrics of the update.
        Collective."""
        yield {}

    @abstractmethod
    def sample(self, prompts: Sequence[list[int]], n: int, keys: np.ndarray, temperature: float) -> list[Completion]:
        """`n` answers to each prompt, prompt by prompt; collective: a process without prompts must call it, too.

        `keys` [P * n] are their random streams: equal keys give equal answers. A `temperature` of 0 takes the
        likeliest tokens.
        """

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Release its resources when no more answers are needed. Collective: every process must call it."""

    def texts(self, answers: Sequence[Completion]) -> list[str]:
        """The answers as text, without the end-of-sequence token; other special tokens are kept."""
        output = [answer.tokens if answer.truncated else answer.tokens[:-1] for answer in answers]
        return self.model.tokenizer.batch_decode(output, skip_special_tokens=False)


class ExportedWeights:
    """The policy's weights for another program: whole tensors by the names of a checkpoint, with adapters merged. One
    tensor at a time is gathered, and nothing is written to disk."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        shapes = {name: torch.empty(x.shape, dtype=x.dtype, device="meta") for name, x in self._tensors().items()}
        self.stored_otherwise = revert_weight_conversion(model.base, shapes).keys() != shapes.keys()

    @torch.no_grad()
    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Collective: every process must iterate over all of them, as tensors may be sharded."""
        sent = set[int]()
        for name, weight in self._tensors().items():
            if id(weight) in sent:  # one tensor under two names is stored under the first
                continue
            sent.add(id(weight))
            value = full_tensor(self._merged(name, weight).detach())
            if self.stored_otherwise:  # transformers holds a layer's experts as one tensor, say
                yield from revert_weight_conversion(self.model.base, {name: value}).items()
            else:
                yield name, value

    def _tensors(self) -> Mapping[str, Tensor]:
        if not self.model.has_adapters:
            return self.model.base.state_dict(keep_vars=True)
        from launcher.engines.torch.model import adapters  # noqa: PLC0415  # late: peft takes half a second

        return adapters.base_weights(self.model.base)

    def _merged(self, name: str, weight: Tensor) -> Tensor:
        if not self.model.has_adapters:
            return weight
        from launcher.engines.torch.model import adapters  # noqa: PLC0415  # late, as above

        return adapters.merged_weight(self.model.base, name, weight)
