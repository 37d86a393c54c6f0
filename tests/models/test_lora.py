"""An adapter added into its base is what peft makes of the two, to one ulp; what is more than LoRA is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from launcher.core.problems import Problems
from launcher.tools.merge.merge import MergeRequest, merge

Make = Callable[..., Path]
Ulps = Callable[[Tensor, Tensor], int]
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


def folded(at: Path, base: Path | None, out: Path, **more: Any) -> Path:
    merge(MergeRequest("lora", (str(at),), out, base=str(base) if base else None, **more), lambda *_: None)
    return out


def by_peft(at: Path, base: Path, dtype: torch.dtype) -> Any:
    """peft's own merge, computed in `dtype`."""
    module = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    return PeftModel.from_pretrained(module, str(at)).merge_and_unload()


GPT2 = {"kind": "gpt2", "vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "eos_token_id": 1, "bos_token_id": 1}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rslora": ({}, {"r": 4, "lora_alpha": 7, "target_modules": ["q_proj"], "use_rslora": True}),
    "patterns": ({}, {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"],
                      "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 3, "v_proj": 5}}),
    "whole modules": ({}, {"r": 4, "target_modules": ["o_proj"], "modules_to_save": ["lm_head", "norm"]}),
    "embeddings": ({}, {"r": 4, "target_modules": ["embed_tokens", "k_proj"]}),
    "turned round, and biases": (GPT2, {"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True,
                                        "bias": "lora_only"}),
    "tied, sharded": ({"tie_word_embeddings": True, "shard": "20KB"}, {"r": 4, "target_modules": "all-linear"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_pefts_own_merge_makes(case: str, model: Make, tmp_path: Path, ulps: Ulps) -> None:
    of_model, of_adapter = CASES[case]
    base = model("base", 1, **of_model)
    at = adapter(base, tmp_path / "adapter", **of_adapter)
    out = AutoModelForCausalLM.from_pretrained(folded(at, base, tmp_path / "out"))
    exact, single = by_peft(at, base, torch.float64), by_peft(at, base, torch.float32)
    changed = 0
    before = dict(AutoModelForCausalLM.from_pretrained(base).named_parameters())
    for name, weight in out.named_parameters():
        assert ulps(weight, exact.get_parameter(name).float()) <= 1, name
        changed += not torch.equal(weight, before[name])
    assert changed, "the adapter changed nothing"
    with torch.no_grad():
        torch.testing.assert_close(out(input_ids=IDS).logits, single(input_ids=IDS).logits, rtol=1e-4, atol=1e-4)


def test_in_bfloat16_it_is_rounded_once(model: Make, tmp_path: Path, ulps: Ulps) -> None:
    base = model("base", 1, dtype="bfloat16")
    at = adapter(base, tmp_path / "adapter", r=4, target_modules="all-linear")
    assert {t.dtype for t in load_file(at / "adapter_model.safetensors").values()} == {torch.float32}
    out = AutoModelForCausalLM.from_pretrained(folded(at, base, tmp_path / "out"))
    exact = by_peft(at, base, torch.float64)
    assert out.dtype == torch.bfloat16
    assert all(ulps(weight, exact.get_parameter(name).bfloat16()) <= 1 for name, weight in out.named_parameters())
    wide = AutoModelForCausalLM.from_pretrained(folded(at, base, tmp_path / "wide", dtype="float32"))
    for name, weight in wide.named_parameters():
        torch.testing.assert_close(weight, exact.get_parameter(name).float())


def test_the_base_is_the_one_beside_it_or_the_one_it_names(model: Make, tmp_path: Path) -> None:
    base = model("base", 1)
    at = adapter(base, tmp_path / "adapter", r=2, target_modules=["q_proj"])
    named = folded(at, None, tmp_path / "named")  # peft wrote down the folder that it was loaded from
    config = json.loads((at / "adapter_config.json").read_text())
    (at / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "org/model"}))
    with pytest.raises(Problems) as found:
        folded(at, None, tmp_path / "nowhere")
    assert found.value.lines == [f"--base: {at} belongs to 'org/model', which is not a folder here; give its folder"]
    base.rename(at / "base")
    beside = folded(at, None, tmp_path / "beside")
    assert (named / "model.safetensors").read_bytes() == (beside / "model.safetensors").read_bytes()


def refused(at: Path, base: Path, out: Path) -> list[str]:
    with pytest.raises(Problems) as found:
        folded(at, base, out)
    assert not out.exists()
    return found.value.lines


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"use_dora": True}, "use_dora is True, which W + s B A does not say; use a plain LoRA"),
        ({"lora_bias": True}, "lora_bias is True, which W + s B A does not say; use a plain LoRA"),
        ({"something_new": {"x": 1}}, "something_new is {'x': 1}, which W + s B A does not say; use a plain LoRA"),
        (
            {"init_lora_weights": "pissa"},
            "init_lora_weights is 'pissa', which changes the base too; use a plain LoRA",
        ),
        ({"peft_type": "IA3"}, "is a 'IA3' adapter; use a LORA"),
    ],
)
def test_what_is_more_than_lora_is_refused(change: Any, line: str, model: Make, tmp_path: Path) -> None:
    base = model("base", 1)
    at = adapter(base, tmp_path / "adapter", r=2, target_modules=["q_proj"])
    config = json.loads((at / "adapter_config.json").read_text())
    (at / "adapter_config.json").write_text(json.dumps(config | change))
    (found,) = refused(at, base, tmp_path / "out")
    assert found.removeprefix(f"{at}: ").removeprefix(f"{at} ") == line


def test_an_adapter_of_another_base(model: Make, tmp_path: Path) -> None:
    base, other = model("base", 1), model("other", 1, hidden_size=16, head_dim=4)
    at = adapter(base, tmp_path / "adapter", r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    layer = "model.layers.{}.self_attn.q_proj"
    unlike = "B A is [32, 32] and the base's matrix [16, 16]; use its own base"
    assert refused(at, other, tmp_path / "out") == [
        *(f"{at}: {layer.format(n)}: {unlike}" for n in (0, 1)),
        f"{at}: lm_head.weight is [48, 32] where {other} has [48, 16]; use its own base",
    ]  # fmt: skip
    tensors = load_file(at / "adapter_model.safetensors")
    tensors["base_model.model.model.layers.9.mlp.up_proj.lora_A.weight"] = torch.ones(2, 32)
    tensors["base_model.model.token_adapter"] = torch.ones(2)
    save_file(tensors, at / "adapter_model.safetensors")
    assert refused(at, base, tmp_path / "out") == [
        f"{at}: 'token_adapter', 'model.layers.9.mlp.up_proj' not found in {base}; use its own base"
    ]


def test_one_matrix_in_two_roles_cannot_change_in_one(model: Make, tmp_path: Path) -> None:
    base = model("base", 1, tie_word_embeddings=True)
    at = adapter(base, tmp_path / "adapter", r=2, target_modules=["embed_tokens"])
    assert refused(at, base, tmp_path / "out") == [
        f"{at}: changes model.embed_tokens.weight, which is embedding and output layer in one in {base};"
        " use an adapter of other layers"
    ]


def test_models_in_the_wrong_place(model: Make, tmp_path: Path) -> None:
    base = model("base", 1)
    at = adapter(base, tmp_path / "adapter", r=2, target_modules=["q_proj"])
    assert refused(base, at, tmp_path / "out") == [f"{base}: is a whole model; use the folder of a LoRA adapter"]
    assert refused(at, at, tmp_path / "out") == [f"{at}: is a LoRA adapter; use the folder of a whole model"]
    with pytest.raises(Problems) as found:
        merge(MergeRequest("linear", (str(base), str(at)), tmp_path / "out"), lambda *_: None)
    assert found.value.lines == [f"{at}: is a LoRA adapter; use --method lora to make it a model"]
    tensors = load_file(at / "adapter_model.safetensors")
    name = next(iter(tensors))
    tensors[name][0, 0] = float("nan")
    save_file(tensors, at / "adapter_model.safetensors")
    assert refused(at, base, tmp_path / "out") == [f"{at}: {name!r} not finite; use a model whose numbers are"]
