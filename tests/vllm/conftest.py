"""A policy with vLLM beside it. These tests need vLLM: `make test-vllm` runs them in an environment of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.engines.torch.rollout.vllm import VllmSampler
from launcher.spec.hardware import Hardware

if find_spec("vllm"):  # as a plan sets it for training processes, before anything of it is imported
    os.environ.update(VllmSampler().environment(Hardware()))
import random

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.parallel.strategy import Parallel
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.rollout.generator import make_requests
from launcher.engines.torch.train.batching import Limits, collate
from launcher.engines.torch.train.optimizer import TrainedNetwork
from launcher.engines.torch.train.policy import Policy
from launcher.models.scratch import Scratch
from launcher.spec.episode import Episode
from launcher.text.tokenizer import character_tokenizer

WORDS = ["algorithm=grpo", "data=reverse", "sampler=vllm", "sampler.n=2", "sampler.kv_cache_gb=0.06"]
WORDS += ["data.max_prompt_length=320", "data.max_response_length=24"]  # longer than two blocks of its cache
TINY = ["model=tiny", "model.hidden_size=64", "model.num_attention_heads=2", "model.num_key_value_heads=1"]


class SamplerMemory:
    """A policy whose next tokens are far from equally likely, and the vLLM that `rlrun train` would put beside it."""

    def __init__(self, words: Sequence[str]) -> None:
        torch.set_num_threads(1)
        self.run = resolve([*WORDS, *words])
        self.model = load_model(self.run.model, 0, torch.device("cpu"))
        self.move(0)
        parallel, sampler = Parallel(), self.run.sampler
        self.policy = Policy(
            self.run.algorithm, TrainedNetwork(self.model, self.run.optim, 10, parallel), Limits(64), parallel,
            temperature=sampler.temperature,
        )  # fmt: skip
        assert isinstance(sampler, VllmSampler)
        self.generator = sampler.generator(self.run, self.policy)

    def move(self, seed: int, spread: float = 0.3) -> None:
        """Other weights, as an optimizer step would leave them."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.model.module.named_parameters():
            if weight.dim() > 1 and "lora_A" not in name:
                weight.data.copy_(spread * torch.randn(weight.shape, generator=generator))
        self.model.base.tie_weights()

    def answers(self, prompts: Sequence[list[int]], n: int = 1, temperature: float = 0.0, step: int = 1) -> list[Any]:
        with self.generator.current_weights():
            keys = random_streams.stream_keys(0, step, range(len(prompts)), n)
            episodes = self.generator.answer(make_requests(prompts, keys), temperature)
        return [episode.turns[0] for episode in episodes]

    def trainer(self, prompts: Sequence[list[int]], answers: Sequence[Any]) -> list[list[float]]:
        """Log-probability of each token of the answers (one to each prompt), as the update computes it."""
        rows = zip(prompts, answers, strict=True)
        batch = collate([Episode(prompt, (answer,)) for prompt, answer in rows], self.model)
        with torch.no_grad():
            logp = self.policy._compute_rows(self.model, batch, self.policy._parts(batch), self.policy._logp)
        return [row[mask > 0].tolist() for row, mask in zip(logp, batch.mask, strict=True)]

    def apart(self, prompts: Sequence[list[int]], answers: Sequence[Any] = ()) -> float:
        """The largest difference of a log-probability between vLLM and the trainer, of these answers or greedy ones."""
        answers = answers or self.answers(prompts)
        rows = zip(answers, self.trainer(prompts, answers), strict=True)
        return max(abs(x - y) for answer, row in rows for x, y in zip(answer.logp, row, strict=True))


@pytest.fixture(scope="module")
def colocated() -> Iterator[Callable[..., SamplerMemory]]:
    """Made once for each set of words; vLLM is one at a time, so the one before is closed."""
    made: dict[tuple[str, ...], SamplerMemory] = {}

    def make(*words: str) -> SamplerMemory:
        if words not in made:
            for other in made.values():
                other.generator.close()
            made.clear()
            made[words] = SamplerMemory(words)
        return made[words]

    yield make
    for other in made.values():
        other.generator.close()


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    return TINY


@pytest.fixture(scope="session")
def ids() -> Callable[..., list[list[int]]]:
    """Random sequences of ordinary tokens, of the lengths asked for."""

    def make(*lengths: int, seed: int = 1) -> list[list[int]]:
        draw = random.Random(seed)
        return [[draw.randrange(3, 48) for _ in range(length)] for length in lengths]

    return make


@pytest.fixture
def family(tmp_path: Path) -> Callable[..., list[str]]:
    """Words that choose a model of a family with random weights, as a folder holds it."""

    def make(name: str, **values: Any) -> list[str]:
        tokenizer = character_tokenizer(Scratch().alphabet)
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512, "pad_token_id": 0,
                 "eos_token_id": 1, "bos_token_id": None}  # fmt: skip
        config = AutoConfig.for_model(name, vocab_size=len(tokenizer), **{**sizes, **values})
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return ["model=hf", f"model.path={tmp_path / name}"]

    return make
