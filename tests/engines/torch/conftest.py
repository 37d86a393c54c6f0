"""Tiny models, batches and processes for the tests of the torch engine. Nothing is downloaded."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from launcher.algorithms.grpo import GRPO
from launcher.algorithms.sft import SFT
from launcher.engines.torch import TorchSampler, world
from launcher.engines.torch.attention import NAME
from launcher.engines.torch.decode import Decoder
from launcher.engines.torch.evaluate import Validation
from launcher.engines.torch.measure import Clock
from launcher.engines.torch.model import CausalLM, characters, load
from launcher.engines.torch.policy import Policy
from launcher.engines.torch.rows import Rows
from launcher.engines.torch.sources import collate
from launcher.engines.torch.tokens import Tokens
from launcher.models.scratch import Scratch
from launcher.spec.algorithm import Batch
from launcher.spec.data import Row
from launcher.spec.reward import Answer, Reward
from launcher.spec.run import Optim

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
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 3},
    "gemma2": {"sliding_window": 3, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 3, "query_pre_attn_scalar": 8},
    "gpt2": {**GPT2, "attn_pdrop": 0.0},
    "phi3": {},
    "olmo2": {},
    "nemotron": {},
    "mixtral": {**MOE, "num_local_experts": 4},
    "qwen3_moe": {**MOE, "num_experts": 4},
    "llama4_text": {**MOE, "num_local_experts": 4, "intermediate_size_mlp": 48, "attention_chunk_size": 6},
    "mamba": {"state_size": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
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
        model = load(Scratch(**chosen), seed, CPU)
        _draw(model.module, spread, seed)
        return model

    return make


@pytest.fixture
def family() -> Callable[..., tuple[CausalLM, PreTrainedModel]]:
    """A model of a family as our engine holds it, and the same weights as plain transformers computes them."""

    def make(name: str, dtype: torch.dtype = torch.float64) -> tuple[CausalLM, PreTrainedModel]:
        values = {**SIZES, **FAMILIES[name]}
        experts = {"experts_implementation": values.pop("experts_implementation")} if name in _MIXTURES else {}
        config = AutoConfig.for_model(name, **values)
        ours = AutoModelForCausalLM.from_config(config, dtype=dtype, **experts)
        _draw(ours, 0.3, 0)
        plain = AutoModelForCausalLM.from_config(deepcopy(config), dtype=dtype, **experts).eval()
        plain.load_state_dict(ours.state_dict())
        if ours.config._attn_implementation == "sdpa" and ours._supports_attention_backend:
            ours.set_attn_implementation(NAME)
        return CausalLM(ours, characters(ALPHABET)), plain

    return make


_MIXTURES = {name for name, values in FAMILIES.items() if "experts_implementation" in values}


def _draw(module: PreTrainedModel, spread: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        if weight.dim() > 1:
            weight.data.copy_(spread * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    module.tie_weights()


@pytest.fixture
def ids() -> Callable[..., list[list[int]]]:
    """Random sequences of ordinary tokens, of the lengths asked for."""

    def make(*lengths: int, seed: int = 1) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randint(3, 48, (length,), generator=generator).tolist() for length in lengths]

    return make


@pytest.fixture
def batch_of() -> Callable[..., Batch]:
    """A batch of sequences, each imitated after its first `prompt` tokens."""

    def make(model: CausalLM, sequences: Sequence[list[int]], prompt: int = 1) -> Batch:
        masks = [[0] * min(prompt, len(row)) + [1] * max(len(row) - prompt, 0) for row in sequences]
        return collate(list(zip(sequences, masks, strict=True)), model)

    return make


@pytest.fixture
def entering() -> Iterator[Callable[[CausalLM], list[tuple[int, int]]]]:
    """Record the [rows, tokens] of every call of the model."""
    handles = []

    def watch(model: CausalLM) -> list[tuple[int, int]]:
        shapes: list[tuple[int, int]] = []

        def note(_: Any, args: tuple[Any, ...], values: dict[str, Any]) -> None:
            assert not args, "the engine names what it gives"
            shapes.append(tuple(values["input_ids"].shape))

        handles.append(model.module.register_forward_pre_hook(note, with_kwargs=True))
        return shapes

    yield watch
    for handle in handles:
        handle.remove()


@torch.no_grad()
def logp_alone(plain: PreTrainedModel, sequence: list[int]) -> Tensor:
    """[T - 1] log-probability of each token but the first, the sequence read by itself."""
    tokens = torch.tensor([sequence])
    logits = plain(input_ids=tokens, use_cache=False).logits[0, :-1]  # [T - 1, V] speak of tokens 1..
    return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


@pytest.fixture(name="logp_alone")
def _logp_alone() -> Callable[[PreTrainedModel, list[int]], Tensor]:
    return logp_alone


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


class Known(Reward):
    """Fake: every answer scores what its row's ground truth says, and a little for its length."""

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [float(answer.ground_truth or 0) + len(answer.response) / 1024 for answer in answers]


def sequences_of(seed: int, count: int) -> list[tuple[list[int], list[int]]]:
    """Prompts of 1 to 4 tokens with answers of 1 to 6, as ids and masks."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        prompt, answer = draw.randint(1, 4), draw.randint(1, 6)
        found.append((draw.choices(range(3, 48), k=prompt + answer), [0] * prompt + [1] * answer))
    return found


def rollouts_of(model: CausalLM, step: int) -> Batch:
    """This process's share of 6 prompts with 4 answers each, scored."""
    draw = random.Random(1000 + step)
    answers, scores = sequences_of(step, 24), [float(draw.randint(0, 3)) for _ in range(24)]
    mine = [row for prompt in range(6)[world.RANK :: world.SIZE] for row in range(prompt * 4, prompt * 4 + 4)]
    batch = collate([answers[row] for row in mine], model)
    reward = batch.mask.new_tensor([scores[row] for row in mine])
    return replace(batch, group=torch.arange(len(mine), device=model.device) // 4, reward=reward)


def small(dtype: str, seed: int = 0, device: torch.device = CPU) -> CausalLM:
    model = load(Scratch(hidden_size=16, intermediate_size=24, num_hidden_layers=1, dtype=dtype), seed, device)
    _draw(model.module, 0.3, seed)
    return model


def trained(kind: str, dtype: str, micro: int, steps: int = 5, device: torch.device = CPU) -> dict[str, Any]:
    """The metrics of every update and the weights at the end."""
    model, optim = small(dtype, device=device), Optim(lr=1e-3, clip_grad=0.5)
    algorithm = GRPO(kl_loss_coef=0.04) if kind == "grpo" else SFT()
    reference = small(dtype, 1, device) if kind == "grpo" else None
    policy = Policy(algorithm, model, optim, micro=micro, steps=steps, temperature=0.9, reference=reference)
    metrics = []
    for step in range(1, steps + 1):
        if kind == "sft":
            batch = collate(sequences_of(step, 12)[world.RANK :: world.SIZE], model)
            metrics.append(policy.update(batch, step))
            continue
        batch = algorithm.prepare(policy.annotate(rollouts_of(model, step), Clock(), on_policy=False))
        metrics += [policy.update(batch, step), policy.update(batch, step)]  # the second is off-policy
    weights = torch.cat([weight.detach().flatten() for weight in model.module.parameters()])
    return {"metrics": metrics, "weights": weights.tolist()}


def validated(kind: str, device: torch.device = CPU) -> dict[str, float]:
    """A validation of 11 rows from two sources; rows are spread over the processes, and 11 do not spread evenly."""
    model = small("float64", device=device)
    policy = Policy(GRPO() if kind == "grpo" else SFT(), model, Optim(), micro=2, steps=1)
    held_out = Rows()
    for place, (ids, mask) in enumerate(sequences_of(3, 11)):
        source = "sums" if place % 3 else "words"
        held_out.rows.append(Row(f"f:{place}", "", response="", ground_truth=str(place * place), data_source=source))
        held_out.tokens.append(Tokens(place, ids, mask))
    decoder = Decoder(model, TorchSampler(val_temperature=1.0), 6)
    return Validation(held_out, policy, decoder, Known(), 5, 2).measure(4)


@pytest.fixture(name="trained")
def _trained() -> Callable[..., dict[str, Any]]:
    return trained


@pytest.fixture(name="validated")
def _validated() -> Callable[..., dict[str, float]]:
    return validated


@pytest.fixture(name="sequences_of")
def _sequences_of() -> Callable[[int, int], list[tuple[list[int], list[int]]]]:
    return sequences_of


@pytest.fixture(name="rollouts_of")
def _rollouts_of() -> Callable[[CausalLM, int], Batch]:
    return rollouts_of


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[dict[str, Any]]]:
    """What each of `size` real processes finds that train and validate together; run once for each size."""
    known: dict[int, list[dict[str, Any]]] = {1: [_everything()]}

    def run(size: int) -> list[dict[str, Any]]:
        if size not in known:
            script = tmp_path_factory.mktemp("together") / "job.py"
            script.write_text(_JOB.format(path=__file__))
            known[size] = _run(script, size)
        return known[size]

    return run


def _everything() -> dict[str, Any]:
    return {
        **{f"{kind} {dtype}": trained(kind, dtype, micro=2) for kind in ("sft", "grpo") for dtype in DTYPES},
        **{f"validation {kind}": validated(kind) for kind in ("sft", "grpo")},
    }


DTYPES = ("float32", "float64")
_JOB = """
import importlib.util, json, sys
import torch
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("shared", {path!r})
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
shared.world.join(torch.device("cpu"))
print(json.dumps(shared._everything()))
shared.world.leave()
"""


def _run(script: Path, size: int) -> list[dict[str, Any]]:
    """What each process prints last."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, str(script)], env={**os.environ, **meet, "RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(size)
    ]
    said = [process.communicate(timeout=180)[0] for process in started]
    assert [process.returncode for process in started] == [0] * size
    return [json.loads(text.splitlines()[-1]) for text in said]
