"""Tiny models and sequences for the tests of the torch engine. Nothing is downloaded."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from jobs import draw
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from launcher.engines.torch.model.attention import NAME
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.model.network import CausalLM
from launcher.models.scratch import Scratch
from launcher.text.tokenizer import character_tokenizer

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


def tiny(spread: float = 0.3, seed: int = 0, **values: Any) -> CausalLM:
    """A model with random weights, loud enough that its next tokens are far from equally likely."""
    chosen = {"dtype": "float64", "hidden_size": 32, "intermediate_size": 48, "num_key_value_heads": 2} | values
    model = load_model(Scratch(**chosen), seed, CPU)
    draw(model.module, spread, seed)
    model.module.tie_weights()
    return model


def family(name: str, dtype: torch.dtype = torch.float64) -> tuple[CausalLM, PreTrainedModel]:
    """A model of a family as our engine holds it, and the same weights as plain transformers computes them."""
    values = {**SIZES, **FAMILIES[name]}
    experts = {key: values.pop(key) for key in ["experts_implementation"] if key in values}
    config = AutoConfig.for_model(name, **values)
    ours = AutoModelForCausalLM.from_config(config, dtype=dtype, **experts)
    draw(ours, 0.3, 0)
    ours.tie_weights()
    plain = AutoModelForCausalLM.from_config(deepcopy(config), dtype=dtype, **experts).eval()
    plain.load_state_dict(ours.state_dict())
    if ours.config._attn_implementation == "sdpa" and ours._supports_attention_backend:
        ours.set_attn_implementation(NAME)
    return CausalLM(ours, character_tokenizer(ALPHABET)), plain


def ids(*lengths: int, seed: int = 1) -> list[list[int]]:
    """Random sequences of ordinary tokens, of the lengths asked for."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 48, (length,), generator=generator).tolist() for length in lengths]


def entering(model: CausalLM) -> list[tuple[int, ...]]:
    """The [rows, tokens] of every later call of the model."""
    shapes: list[tuple[int, ...]] = []

    def note(_: Any, args: tuple[Any, ...], values: dict[str, Any]) -> None:
        shapes.append(tuple((values["input_ids"] if "input_ids" in values else args[0]).shape))

    model.base.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    return shapes


@torch.no_grad()
def logp_alone(plain: PreTrainedModel, sequence: list[int]) -> Tensor:
    """[T - 1] log-probability of each token but the first, the sequence read by itself."""
    tokens = torch.tensor([sequence])
    logits = plain(input_ids=tokens, use_cache=False).logits[0, :-1]  # [T - 1, V] speak of tokens 1..
    return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


def generated(plain: PreTrainedModel, prompt: list[int], max_new: int, ends: list[int]) -> list[int]:
    """transformers' own greedy answer to one prompt, without padding or company."""
    plain.generation_config.eos_token_id, plain.generation_config.pad_token_id = ends, 0
    tokens = torch.tensor([prompt])
    found = plain.generate(
        tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=max_new, use_cache=True
    )
    return found[0, len(prompt) :].tolist()
