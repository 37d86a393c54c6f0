"""An adapter is added into its base by peft; what peft would leave out, or cannot say, is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from launcher.core.problems import Problems
from launcher.tools.merge.merge import MergeRequest, merge

Make = Callable[..., Path]
IDS = torch.arange(3, 19).reshape(2, 8)


def adapter(base: Path, out: Path, seed: int = 5, **config: Any) -> Path:
    """An adapter that peft saved, with no weight at 0."""
    module = AutoModelForCausalLM.from_pretrained(base)
    made = get_peft_model(module, LoraConfig(task_type="CAUSAL_LM", **config))
    torch.manual_seed(seed)
    for _, weight in made.named_parameters():
        if weight.requires_grad:
            weight.data.normal_(std=0.1)
    made.save_pretrained(out, save_embedding_layers=False)
    return out


def folded(at: Path, base: Path | None, out: Path) -> Path:
    merge(MergeRequest("lora", (str(at),), out, base=str(base) if base else None), lambda *_: None)
    return out


GPT2 = {"kind": "gpt2", "vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "eos_token_id": 1, "bos_token_id": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("of_model", "of_adapter"),
    [
        ({}, {"r": 4, "target_modules": ["o_proj"], "modules_to_save": ["lm_head", "norm"], "use_rslora": True}),
        (GPT2, {"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True, "bias": "lora_only"}),
        ({"tie_word_embeddings": True, "dtype": "bfloat16"}, {"r": 4, "target_modules": "all-linear"}),
    ],
)
def test_the_whole_model_answers_as_base_and_adapter_do(
    of_model: dict[str, Any], of_adapter: dict[str, Any], model: Make, tmp_path: Path
) -> None:
    base = model("base", 1, **of_model)
    at = adapter(base, tmp_path / "adapter", **of_adapter)
    out = AutoModelForCausalLM.from_pretrained(folded(at, base, tmp_path / "out"))
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    exact = PeftModel.from_pretrained(plain, str(at)).merge_and_unload()
    assert out.dtype == getattr(torch, of_model.get("dtype", "float32"))
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    for name, weight in out.named_parameters():
        torch.testing.assert_close(weight, exact.get_parameter(name).to(out.dtype), msg=name)
    before = dict(AutoModelForCausalLM.from_pretrained(base).named_parameters())
    assert not all(torch.equal(weight, before[name]) for name, weight in out.named_parameters())


def test_the_base_is_the_one_beside_it_or_the_one_it_names(model: Make, tmp_path: Path) -> None:
    base = model("base", 1, dtype="bfloat16")
    at = adapter(base, tmp_path / "adapter", r=2, target_modules=["q_proj"])
    named = folded(at, None, tmp_path / "named")  # peft wrote down where it was loaded from
    config = json.loads((at / "adapter_config.json").read_text())
    (at / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "org/model"}))
    with pytest.raises(Problems) as found:
        folded(at, None, tmp_path / "nowhere")
    assert found.value.lines == [f"--base: {at} belongs to 'org/model', which is not a folder here; give its folder"]
    base.rename(at / "base")
    beside = folded(at, None, tmp_path / "beside")
    assert (named / "model.safetensors").read_bytes() == (beside / "model.safetensors").read_bytes()
    assert {tensor.dtype for tensor in load_file(beside / "model.safetensors").values()} == {torch.bfloat16}


def refused(at: Path, base: Path, out: Path) -> list[str]:
    with pytest.raises(Problems) as found:
        folded(at, base, out)
    assert not out.exists()
    return found.value.lines


def test_what_does_not_belong_to_the_base_is_refused(model: Make, tmp_path: Path) -> None:
    base, other = model("base", 1), model("other", 1, hidden_size=16, head_dim=4)
    at = adapter(base, tmp_path / "adapter", r=2, target_modules=["q_proj"])
    (line,) = refused(at, other, tmp_path / "out")
    assert line.startswith(f"{at}: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has shape [2, 32], ")
    assert refused(base, at, tmp_path / "out") == [f"{base}: is a whole model; use the folder of a LoRA adapter"]
    assert refused(at, at, tmp_path / "out") == [f"{at}: is a LoRA adapter; use the folder of a whole model"]
    with pytest.raises(Problems) as found:
        merge(MergeRequest("linear", (str(base), str(at)), tmp_path / "linear"), lambda *_: None)
    assert found.value.lines == [f"{at}: is a LoRA adapter; use --method lora to make it a model"]
    tensors = load_file(at / "adapter_model.safetensors")
    tensors[next(iter(tensors))][0, 0] = float("nan")
    save_file(tensors, at / "adapter_model.safetensors")
    (line,) = refused(at, base, tmp_path / "out")
    assert line.startswith(f"{at}: peft cannot merge it into {base}: ") and "NaN" in line


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"something_new": {"x": 1}}, "something_new"),  # of a newer peft, which this one leaves out
        ({"use_dora": True}, "missing adapter keys"),
    ],
)
def test_what_peft_only_warns_of_is_refused(change: Any, word: str, model: Make, tmp_path: Path) -> None:
    base = model("base", 1)
    at = adapter(base, tmp_path / "adapter", r=2, target_modules=["q_proj"])
    config = json.loads((at / "adapter_config.json").read_text())
    (at / "adapter_config.json").write_text(json.dumps(config | change))
    (line,) = refused(at, base, tmp_path / "out")
    assert line.startswith(f"{at}: peft cannot merge it into {base}: ") and word in line


def test_one_matrix_in_two_roles_cannot_change_in_one(model: Make, tmp_path: Path) -> None:
    base = model("base", 1, tie_word_embeddings=True)
    at = adapter(base, tmp_path / "adapter", r=2, target_modules=["embed_tokens"])
    (line,) = refused(at, base, tmp_path / "out")
    assert "model.embed_tokens is of one matrix that is embedding and output layer (tied)" in line


def test_what_transformers_leaves_out_is_named_and_numbers_that_overflow_are_refused(
    model: Make, tmp_path: Path
) -> None:
    base = model("base", 1)
    at = adapter(base, tmp_path / "adapter", r=2, target_modules=["q_proj"])
    tensors = load_file(base / "model.safetensors")
    save_file({**tensors, "mtp.weight": torch.ones(3)}, base / "model.safetensors", metadata={"format": "pt"})
    request = MergeRequest("lora", (str(at),), tmp_path / "out", base=str(base))
    (note,) = merge(request, lambda *_: None).notes
    assert note.startswith(f"{base}: the result lacks 'mtp.weight', which transformers does not write")
    half = model("half base", 1, dtype="float16")
    large = adapter(half, tmp_path / "large", r=2, lora_alpha=10**8, target_modules=["q_proj"])
    with pytest.raises(Problems) as found:
        folded(large, half, tmp_path / "half")
    (line,) = found.value.lines
    assert line.startswith("model.layers.0.self_attn.q_proj.weight: a number is not finite in F16; use models")
    assert not (tmp_path / "half").exists()
