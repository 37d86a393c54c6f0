"""Interface of generators: the model under training, or another program with a copy of its weights; and that copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel.strategy import full_tensor
from launcher.spec.data import Row
from launcher.spec.episode import Episode, Turn
from launcher.spec.sampler import Sampler


@dataclass(frozen=True)
class Request:
    """A prompt that is to be answered once for each of its random streams."""

    prompt: list[int]
    keys: np.ndarray
    """[n] uint64: equal keys give equal answers, with an environment if it answers equally."""
    row: Row | None = None
    """The row of the data that the prompt is of, for an environment or a reward."""
    group: int | None = None
    """Number of the prompt, which its episodes have as their group."""
    answered: int = 0
    """Tokens at the end of the prompt that belong to the answer, such as earlier turns: the random streams continue
    after them, and they count towards the answer's maximum length."""
    goes_on: bool = False
    """Whether a longer prompt may follow in the same stream, so that what is computed of this one is worth keeping
    until the stream is forgotten. Such a request has one key."""


def make_requests(prompts: Sequence[list[int]], keys: np.ndarray) -> list[Request]:
    """Equally many answers to each prompt; `keys` [P * n] are their streams, prompt by prompt."""
    streams = np.split(keys, len(prompts)) if prompts else []
    return [Request(prompt, stream) for prompt, stream in zip(prompts, streams, strict=True)]


class Generator(ABC):
    """Generates answers of at most `max_new` tokens with the sampler's settings."""

    def __init__(self, model: CausalLM, sampler: Sampler, max_new: int) -> None:
        self.model, self.sampler, self.max_new = model, sampler, max_new
        self.waiting: list[tuple[Request, Future[list[Episode]]]] = []

    @contextmanager
    def current_weights(self) -> Iterator[Mapping[str, float]]:
        """Context in which the generator is ready with the policy's newest weights; yields metrics of the update.
        Collective."""
        yield {}

    def submit(self, requests: Sequence[Request]) -> list[Future[list[Episode]]]:
        """Take requests, which wait. The result of each one's future is an episode for each of its keys."""
        taken = [(request, Future[list[Episode]]()) for request in requests]
        self.waiting += taken
        return [future for _, future in taken]

    def answer_waiting(self, temperature: float) -> None:
        """Answer the requests that wait; temperature 0 takes the likeliest tokens. Collective: a process without
        requests must call it, too."""
        taken, self.waiting = self.waiting, []
        turns = iter(self.generate([request for request, _ in taken], temperature))
        for request, future in taken:
            mine = [next(turns) for _ in request.keys]
            versions = [[self.model.version] * len(turn.tokens) for turn in mine]
            mine = [replace(turn, versions=each) for turn, each in zip(mine, versions, strict=True)]
            future.set_result([Episode(request.prompt, (turn,), request.group) for turn in mine])

    def answer(self, requests: Sequence[Request], temperature: float) -> list[Episode]:
        """The episodes of all requests, request by request. Collective, as `answer_waiting` is."""
        futures = self.submit(requests)
        self.answer_waiting(temperature)
        return [episode for future in futures for episode in future.result()]

    def fault(self) -> str:
        """Why the generator can answer nothing; empty where it can."""
        return ""

    @abstractmethod
    def generate(self, requests: Sequence[Request], temperature: float) -> list[Turn]:
        """The answers to all requests, request by request; collective."""

    def forget(self, key: np.uint64) -> None:  # noqa: B027  most keep nothing
        """Drop what is kept of a stream, as no request of it follows."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Release its resources when no more answers are needed. Collective: every process must call it."""

    def texts(self, episodes: Sequence[Episode]) -> list[str]:
        """The last turns as text, without the end-of-sequence token; other special tokens are kept."""
        turns = [episode.turns[-1] for episode in episodes]
        output = [turn.tokens[:-1] if turn.stop == "end" else turn.tokens for turn in turns]
        return self.model.tokenizer.batch_decode(output, skip_special_tokens=False)


class ExportedWeights:
    """The policy's weights for another program: whole tensors by the names of a checkpoint, with adapters merged. One
    tensor at a time is gathered, and nothing is written to disk."""

    def __init__(self, model: CausalLM) -> None:
        self.model, self.adapters = model, cast("Any", None)
        if model.has_adapters:
            from launcher.engines.torch.model import adapters  # noqa: PLC0415  # late: peft takes half a second

            self.adapters = adapters
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
            merged = self.adapters.merged_weight(self.model.base, name, weight) if self.adapters else weight
            value = full_tensor(merged.detach())
            if self.stored_otherwise:  # transformers holds a layer's experts as one tensor, say
                yield from revert_weight_conversion(self.model.base, {name: value}).items()
            else:
                yield name, value

    def _tensors(self) -> Mapping[str, Tensor]:
        base = self.model.base
        return self.adapters.base_weights(base) if self.adapters else base.state_dict(keep_vars=True)
