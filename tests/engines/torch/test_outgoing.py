"""What another program is sent: the weights of a checkpoint of this moment, by its names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.rollout.generator import ExportedWeights
from launcher.models.scratch import Scratch

CPU = torch.device("cpu")


def loud(model: CausalLM) -> CausalLM:
    """Adapters begin with zeros; these do not."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.module.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator))
    model.base.tie_weights()
    return model


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "mixtral", "qwen3_moe"])
def test_names_and_tensors_are_those_of_a_checkpoint(name: str, family: Callable[..., Any], tmp_path: Path) -> None:
    """transformers holds a mixture's experts in one tensor; a checkpoint holds each alone, and so do other programs."""
    model, _ = family(name, torch.float32)
    loud(model).module.save_pretrained(tmp_path)
    expected, found = load_file(tmp_path / "model.safetensors"), dict(ExportedWeights(model))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_a_tensor_under_two_names_is_sent_once() -> None:
    model = loud(load_model(Scratch(tie_word_embeddings=True), 0, CPU))
    names = [name for name, _ in ExportedWeights(model)]
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_are_added_as_peft_would_add_them_and_stay_apart(dtype: str) -> None:
    model = loud(load_model(Scratch(dtype=dtype, lora_rank=3), 0, CPU))
    before = {name: weight.clone() for name, weight in model.module.state_dict().items()}
    found = dict(ExportedWeights(model))
    after = model.module.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert isinstance(model.module, PeftModel)
    expected = model.module.merge_and_unload().state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, msg=name)


def test_what_is_sent_is_that_of_the_moment() -> None:
    model = loud(load_model(Scratch(), 0, CPU))
    outgoing = ExportedWeights(model)
    model.base.lm_head.weight.data.zero_()
    assert not dict(outgoing)["lm_head.weight"].any()
