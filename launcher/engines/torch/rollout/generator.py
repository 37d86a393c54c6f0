"""Who answers prompts: the model under training itself, or another program with a copy of its weights."""

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
    """One answer's tokens. `cut` when it did not end by itself."""

    tokens: list[int]
    truncated: bool
    logp: Sequence[float] = ()
    """Of each token, by the program that drew it; empty where that is the trainer."""


class Generator(ABC):
    """Writes answers of at most `max_new` tokens, as its settings say."""

    def __init__(self, model: CausalLM, sampler: Sampler, max_new: int) -> None:
        self.model, self.sampler, self.max_new = model, sampler, max_new

    @contextmanager
    def current_weights(self) -> Iterator[Mapping[str, float]]:
        """Ready to write meanwhile, with the policy's newest weights, and what there is to tell of that; every process
        must ask."""
        yield {}

    @abstractmethod
    def sample(self, prompts: Sequence[list[int]], n: int, keys: np.ndarray, temperature: float) -> list[Completion]:
        """`n` answers to each prompt, prompt by prompt; every process must ask, if for none.

        `keys` [P * n] are their random streams: equal keys give equal answers. A `temperature` of 0 takes the
        likeliest tokens.
        """

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Give back what it holds, when nothing more is to be written; every process must ask."""

    def texts(self, answers: Sequence[Completion]) -> list[str]:
        """What the answers say, without the token that ends them; other special tokens are shown, not hidden."""
        output = [answer.tokens if answer.truncated else answer.tokens[:-1] for answer in answers]
        return self.model.tokenizer.batch_decode(output, skip_special_tokens=False)
