"""Small models on disk, written by the libraries that everybody else uses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from launcher.text.tokenizer import character_tokenizer

Make = Callable[..., Path]

TINY = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "eos_token_id": 1, "pad_token_id": 0,
        "bos_token_id": None}  # fmt: skip


def real(
    folder: Path, seed: int, *, kind: str = "qwen3", dtype: str = "float32", shard: str = "1GB", **more: Any
) -> Path:
    """A model that transformers made and saved, its tokenizer too."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **(TINY | more if kind != "gpt2" else more))
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder, max_shard_size=shard)
    character_tokenizer("abcdefghijklmnopqrstuvwxyz0123456789>+-*/=., ").save_pretrained(folder)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Make:
    return lambda name, seed=0, **more: real(tmp_path / name, seed, **more)


@pytest.fixture
def plain(tmp_path: Path) -> Make:
    """A folder with a config and these tensors, which no library could run."""

    def make(name: str, tensors: Mapping[str, Tensor], **config: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "plain", **config}))
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make
