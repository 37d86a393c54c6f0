"""Between trainers and samplers: the description from which vLLM builds the model before its weights arrive, and
requests and answers, serialised as arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

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


def split_evenly(count: int, before: int, total: int, parts: int) -> list[slice]:
    """Which of this rank's `count` requests each of `parts` samplers answers. Other ranks have `total` in all, `before`
    of them on lower ranks: each sampler gets equally many, and consecutive ones, as answers to a prompt share its KV
    cache."""
    ends = [min(max(total * part // parts - before, 0), count) for part in range(parts + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def pack_requests(mine: Sequence[GenerationRequest], temperature: float, ends: Sequence[int]) -> dict[str, np.ndarray]:
    """Requests as arrays, each prompt once. `ends` are the end-of-sequence tokens."""
    prompts, counts = list[list[int]](), list[int]()
    for _, same in groupby(mine, key=lambda one: id(one[0])):
        group = list(same)
        prompts.append(group[0][0])
        counts.append(len(group))
    return {
        **_pack_lists("prompt", prompts),
        "counts": np.array(counts, np.int64),
        "seeds": np.array([seed for _, seed, _ in mine], np.int64),
        "answered": np.array([answered for _, _, answered in mine], np.int64),
        "temperature": np.array([temperature], np.float64),
        "ends": np.array(ends, np.int64),
    }


def unpack_requests(arrays: Mapping[str, np.ndarray]) -> tuple[list[GenerationRequest], float, list[int]]:
    """The inverse of `pack_requests`."""
    seeds = zip(arrays["seeds"].tolist(), arrays["answered"].tolist(), strict=True)
    prompts = zip(_unpack_lists("prompt", arrays), arrays["counts"].tolist(), strict=True)
    mine = [(prompt, *next(seeds)) for prompt, count in prompts for _ in range(count)]
    return mine, float(arrays["temperature"][0]), arrays["ends"].tolist()


def pack_turns(found: Sequence[Turn]) -> dict[str, np.ndarray]:
    return {
        **_pack_lists("token", [turn.tokens for turn in found]),
        "cut": np.array([turn.stop == "length" for turn in found], np.bool_),
        "logp": np.array([logp for turn in found for logp in turn.logp], np.float64),
    }


def unpack_turns(arrays: Mapping[str, np.ndarray]) -> Iterator[Turn]:
    """The inverse of `pack_turns`."""
    logp, start = arrays["logp"].tolist(), 0
    for tokens, cut in zip(_unpack_lists("token", arrays), arrays["cut"].tolist(), strict=True):
        yield Turn(tokens, stop="length" if cut else "end", logp=logp[start : start + len(tokens)])
        start += len(tokens)


def _pack_lists(name: str, rows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    return {
        f"{name}s": np.array([token for row in rows for token in row], np.int64),
        f"{name}_lengths": np.array([len(row) for row in rows], np.int64),
    }


def _unpack_lists(name: str, arrays: Mapping[str, np.ndarray]) -> Iterator[list[int]]:
    tokens, start = arrays[f"{name}s"].tolist(), 0
    for length in arrays[f"{name}_lengths"].tolist():
        yield tokens[start : start + length]
        start += length
