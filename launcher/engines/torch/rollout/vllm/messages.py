"""Between trainer 0 and samplers: the description from which vLLM builds the model before its weights arrive, and
requests and answers as messages."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout.generator import Request
from launcher.engines.torch.rollout.vllm import VllmSampler
from launcher.models import config
from launcher.spec.episode import Turn
from launcher.spec.run import RunSpec

GenerationRequest = tuple[list[int], int, int]
"""A prompt, the seed of one answer to it, and the answer's tokens that the prompt ends with already."""
_GOLDEN = 0x9E3779B97F4A7C15  # spreads the seeds of an episode's turns


@dataclass(frozen=True)
class ModelDescription:
    architecture: str
    """The model's class in transformers."""
    config: str
    """Text of its config.json."""
    cache: int | None
    """Bytes of the KV cache; None where a fraction of the GPU's memory determines it."""

    @classmethod
    def from_model(cls, run: RunSpec, sampler: VllmSampler, model: CausalLM) -> ModelDescription:
        model_config, name = deepcopy(model.base.config), type(model.base).__name__
        model_config.architectures = [name]
        with tempfile.TemporaryDirectory() as folder:
            model_config.save_pretrained(folder)
            text = (Path(folder) / "config.json").read_text(encoding="utf-8")
        return cls(name, text, sampler.cache_bytes(run, config.architecture(model_config.to_dict())))


def generation_requests(requests: Sequence[Request]) -> list[GenerationRequest]:
    """A request for each answer; a seed of vLLM has 63 bits."""
    return [
        (request.prompt, (int(key) + request.answered * _GOLDEN) % 2**64 >> 1, request.answered)
        for request in requests
        for key in request.keys
    ]


def pack_requests(mine: Sequence[GenerationRequest], temperature: float, ends: Sequence[int]) -> dict[str, Any]:
    """Requests as a message, each prompt once. `ends` are the end-of-sequence tokens."""
    groups = (list(same) for _, same in groupby(mine, key=lambda one: id(one[0])))
    prompts = [(same[0][0], [(seed, answered) for _, seed, answered in same]) for same in groups]
    return {"prompts": prompts, "temperature": temperature, "ends": list(ends)}


def unpack_requests(message: Mapping[str, Any]) -> tuple[list[GenerationRequest], float, list[int]]:
    """The inverse of `pack_requests`."""
    mine = [(prompt, seed, answered) for prompt, same in message["prompts"] for seed, answered in same]
    return mine, message["temperature"], message["ends"]


def pack_turns(turns: Sequence[Turn]) -> dict[str, Any]:
    return {"turns": [(turn.tokens, turn.stop, turn.logp) for turn in turns]}


def unpack_turns(message: Mapping[str, Any]) -> Iterator[Turn]:
    """The inverse of `pack_turns`."""
    for tokens, stop, logp in message["turns"]:
        yield Turn(tokens, stop=stop, logp=[math.nan if value is None else value for value in logp])  # null in JSON
