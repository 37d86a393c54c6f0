"""Interface of generators: the model under training, or another program with a copy of its weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from launcher.engines.torch.model.network import CausalLM
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
        """`n` answers to each prompt, prompt by prompt; every process must ask, if for none.

        `keys` [P * n] are their random streams: equal keys give equal answers. A `temperature` of 0 takes the
        likeliest tokens.
        """

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Release its resources when no more answers are needed. Collective: every process must call it."""

    def texts(self, answers: Sequence[Completion]) -> list[str]:
        """The answers as text, without the end-of-sequence token; other special tokens are kept."""
        output = [answer.tokens if answer.truncated else answer.tokens[:-1] for answer in answers]
        return self.model.tokenizer.batch_decode(output, skip_special_tokens=False)
