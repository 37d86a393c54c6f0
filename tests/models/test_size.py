"""Weights are counted as the library that runs them has them, and as their makers publish them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from launcher.core.files import conf_dir
from launcher.engines.torch.model.load import load_model
from launcher.models import catalogue, size
from launcher.models.config import architecture
from launcher.models.scratch import Scratch

CHOICES = catalogue.choices(conf_dir() / "model")
PUBLISHED = {  # weights in the repositories' own safetensors; of tied models the last layer counts once
    "qwen2.5-0.5b-instruct": 494_032_768, "qwen2.5-1.5b-instruct": 1_543_714_304, "qwen2.5-3b-instruct": 3_085_938_688,
    "qwen2.5-7b-instruct": 7_615_616_512, "qwen2.5-14b-instruct": 14_770_033_664,
    "qwen2.5-32b-instruct": 32_763_876_352, "qwen2.5-72b-instruct": 72_706_203_648,
    "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200, "qwen3-32b": 32_762_123_264, "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-llm-7b-chat": 6_910_365_696, "deepseek-llm-67b-chat": 67_425_001_472,
    "llama3-8b-instruct": 8_030_261_248, "llama3-70b-instruct": 70_553_706_496,
}  # fmt: skip


def built(node: dict[str, Any]) -> Any:
    """The library's model of a config, without memory for its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**node))


def weights(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_catalogue_is_whole() -> None:
    assert {name: size.parameters(model.architecture) for name, model in CHOICES.items()} == PUBLISHED  # type: ignore[arg-type]
    assert {name for name, model in CHOICES.items() if model.gated} == {"llama3-8b-instruct", "llama3-70b-instruct"}


TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 64}  # fmt: skip
CONFIGS = [
    {"model_type": "llama"},
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True},  # each matrix has a bias
    {"model_type": "mistral", "head_dim": 16},  # heads wider than their share of hidden_size
    {"model_type": "qwen2"},  # queries, keys and values have a bias, and no setting says so
    {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    {"model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20},
]  # fmt: skip


@pytest.mark.parametrize("node", CONFIGS, ids=str)
def test_a_config_is_read_as_the_library_reads_it(node: dict[str, Any]) -> None:
    config = AutoConfig.for_model(**{**TINY, **node})
    shape = architecture(config.to_dict())
    assert shape and size.parameters(shape) == weights(built({**TINY, **node}))
    assert shape.max_position_embeddings == 64


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("qwen3", True)])
def test_a_model_from_scratch(family: Any, tied: bool) -> None:
    model = Scratch(architecture=family, tie_word_embeddings=tied, num_key_value_heads=2)
    assert size.parameters(model.shape) == weights(load_model(model, 0, torch.device("cpu")).base)


@pytest.mark.parametrize("node", [CONFIGS[0], CONFIGS[-2], CONFIGS[-1]], ids=str)
def test_adapters_are_counted_as_peft_makes_them(node: dict[str, Any]) -> None:
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415  # half a second, only here

    module = get_peft_model(built({**TINY, **node}), LoraConfig(r=4, target_modules="all-linear"))
    made = sum(each.numel() for name, each in module.named_parameters() if "lora_" in name)
    shape = architecture(AutoConfig.for_model(**{**TINY, **node}).to_dict())
    assert shape and size.lora_parameters(shape, 4) == made
