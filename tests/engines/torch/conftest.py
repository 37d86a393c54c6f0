"""Tiny models, batches and processes for the tests of the torch engine. Nothing is downloaded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from launcher.engines.torch.model.attention import NAME
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.parallel import world
from launcher.models.scratch import Scratch
from launcher.text.tokenizer import character_tokenizer

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package
import jobs

CPU = torch.device("cpu")
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789>+-*/=., "  # 45 characters and 3 special tokens
SIZES = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "eos_token_id": 1, "pad_token_id": 0,
    "bos_token_id": None,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "experts_implementation": "eager"}
LINEAR = {f"linear_{name}": size for name in ("key_head_dim", "value_head_dim") for size in [8]}
LINEAR |= {f"linear_{name}": 2 for name in ("num_key_heads", "num_value_heads")}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "mistral": {"sliding_window": 3},
    "gemma2": {"sliding_window": 3, "query_pre_attn_scalar": 8},
    "gpt2": {**GPT2, "attn_pdrop": 0.0},
    "granite": {"attention_multiplier": 0.7},
    "nemotron": {},
    "mixtral": {**MOE, "num_local_experts": 4},
    "llama4_text": {**MOE, "num_local_experts": 4, "intermediate_size_mlp": 48, "attention_chunk_size": 6},
    "mamba": {"state_size": 4},
    "qwen3_5_text": {**LINEAR, "layer_types": ["linear_attention", "full_attention"]},
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def tiny() -> Callable[..., CausalLM]:
    """A model with random weights, loud enough that its next tokens are far from equally likely."""

    def make(spread: float = 0.3, seed: int = 0, **values: Any) -> CausalLM:
        chosen = {"dtype": "float64", "hidden_size": 32, "intermediate_size": 48, "num_key_value_heads": 2} | values
        model = load_model(Scratch(**chosen), seed, CPU)
        jobs.draw(model.module, spread, seed)
        model.module.tie_weights()
        return model

    return make


@pytest.fixture
def family() -> Callable[..., tuple[CausalLM, PreTrainedModel]]:
    """A model of a family as our engine holds it, and the same weights as plain transformers computes them."""

    def make(name: str, dtype: torch.dtype = torch.float64) -> tuple[CausalLM, PreTrainedModel]:
        values = {**SIZES, **FAMILIES[name]}
        experts = {key: values.pop(key) for key in ["experts_implementation"] if key in values}
        config = AutoConfig.for_model(name, **values)
        ours = AutoModelForCausalLM.from_config(config, dtype=dtype, **experts)
        jobs.draw(ours, 0.3, 0)
        ours.tie_weights()
        plain = AutoModelForCausalLM.from_config(deepcopy(config), dtype=dtype, **experts).eval()
        plain.load_state_dict(ours.state_dict())
        if ours.config._attn_implementation == "sdpa" and ours._supports_attention_backend:
            ours.set_attn_implementation(NAME)
        return CausalLM(ours, character_tokenizer(ALPHABET)), plain

    return make


@pytest.fixture
def ids() -> Callable[..., list[list[int]]]:
    """Random sequences of ordinary tokens, of the lengths asked for."""

    def make(*lengths: int, seed: int = 1) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randint(3, 48, (length,), generator=generator).tolist() for length in lengths]

    return make


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Norms that stay in float64: transformers' own round to float32, once for a shared prompt and once for each
    answer otherwise, so that gradients would differ in the seventh digit.
    """

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    def make(*modules: nn.Module) -> None:
        for part in (part for module in modules for part in module.modules()):
            if type(part).__name__.endswith("RMSNorm"):
                monkeypatch.setattr(type(part), "forward", forward)

    return make


@pytest.fixture
def entering() -> Iterator[Callable[[CausalLM], list[tuple[int, int]]]]:
    """Record the [rows, tokens] of every call of the model."""
    handles = []

    def watch(model: CausalLM) -> list[tuple[int, int]]:
        shapes: list[tuple[int, int]] = []

        def note(_: Any, args: tuple[Any, ...], values: dict[str, Any]) -> None:
            shapes.append(tuple((values["input_ids"] if "input_ids" in values else args[0]).shape))

        decoder = model.base.get_decoder()
        handles.append(decoder.register_forward_pre_hook(note, with_kwargs=True))
        return shapes

    yield watch
    for handle in handles:
        handle.remove()


@pytest.fixture
def logp_alone() -> Callable[[PreTrainedModel, list[int]], Tensor]:
    """[T - 1] log-probability of each token but the first, the sequence read by itself."""

    @torch.no_grad()
    def read(plain: PreTrainedModel, sequence: list[int]) -> Tensor:
        tokens = torch.tensor([sequence])
        logits = plain(input_ids=tokens, use_cache=False).logits[0, :-1]  # [T - 1, V] speak of tokens 1..
        return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]

    return read


@pytest.fixture
def generated() -> Callable[..., list[int]]:
    """transformers' own greedy answer to one prompt, without padding or company."""

    def make(plain: PreTrainedModel, prompt: list[int], max_new: int, ends: list[int]) -> list[int]:
        plain.generation_config.eos_token_id, plain.generation_config.pad_token_id = ends, 0
        tokens = torch.tensor([prompt])
        found = plain.generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=max_new, use_cache=True
        )
        return found[0, len(prompt) :].tolist()

    return make


# ---- training and validating, the same in one process and in several


@pytest.fixture(scope="session", name="jobs")
def _jobs() -> ModuleType:
    return jobs


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Be process `rank` of `size`."""

    def be(rank: int, size: int) -> None:
        monkeypatch.setattr(world, "RANK", rank)
        monkeypatch.setattr(world, "SIZE", size)

    return be


@pytest.fixture(scope="session")
def together(made_once: Callable[..., Path]) -> Callable[[int], list[dict[str, Any]]]:
    """What each of `size` real processes finds that train and validate together; run once for each size."""

    def make(folder: Path, size: int) -> None:
        found = [jobs.everything()] if size == 1 else _run(size, folder)
        (folder / "found.json").write_text(json.dumps(found))

    @cache
    def run(size: int) -> list[dict[str, Any]]:
        folder = made_once(f"together-{size}", lambda folder: make(folder, size))
        return json.loads((folder / "found.json").read_text())

    return run


def _run(size: int, folder: Path) -> list[dict[str, Any]]:
    """What each process prints last."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "GLOO_SOCKET_IFNAME": "lo"}
    env = {**os.environ, **rendezvous, "WORLD_SIZE": str(size)}
    ran = subprocess.run(
        [sys.executable, jobs.__file__, str(folder)], env=env, capture_output=True, text=True, timeout=600
    )
    errors = [(folder / f"{rank}.err").read_text() for rank in range(size)]
    assert ran.stdout.splitlines()[-1:] == [json.dumps([0] * size)], (ran.stderr, errors)
    return [json.loads((folder / f"{rank}.out").read_text().splitlines()[-1]) for rank in range(size)]
