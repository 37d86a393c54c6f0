"""Weights that do not fit their config.json: named before anything starts, and refused when they are loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from launch_model import Adapter, Model
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from launcher.config.resolve import resolve
from launcher.core.check_result import CheckResult
from launcher.core.problems import Problems
from launcher.core.remembered import cache_folder
from launcher.engines.torch.model import dry_load as program
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.model.whole import load_whole
from launcher.models import config, dry_load, fit, weights
from launcher.models.pretrained import Pretrained
from launcher.preflight.checks import model
from launcher.preflight.checks.context import Context

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing that was remembered elsewhere answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def told(folder: Path, *words: str) -> list[str]:
    """What a plan says of the model in this folder, where it is not all well."""
    run = resolve(["algorithm=sft", "model=hf", f"model.path={folder}", "data=reverse", *words])
    context = Context(run, here=True)
    refused = [CheckResult("FAIL", problem.where, problem.got, problem.fix) for problem in context.model_problems]
    return [f"{result.level} {result.line}" for result in refused or model.check(context) if result.level != "OK"]


WRONG: list[tuple[dict[str, Any], str]] = [
    # what differs from a whole folder, what is named
    ({"rename": {"": "_orig_mod."}}, "they hold others.*_orig_mod.*without those of a wrapper"),
    ({"rename": {"model.layers.": "transformer.h.", "model.": "transformer."}}, r"they hold.*transformer.*model_type"),
    ({"rename": {"model.": ""}, "drop": [r"lm_head\.weight"]}, "no output layer lm_head.*AutoModelForCausalLM"),
    ({"rename": {"lm_head.": "score."}, "config": {"architectures": ["LlamaForSequenceClassification"]}},
     "LlamaForSequenceClassification, with score.weight.*reward=model"),
    ({"drop": [r"model\.layers\.1\.self_attn\.k_proj\.weight"]}, r"1 of 21.*layers\.1\.self_attn\.k_proj.*safetensors"),
    ({"config": {"num_hidden_layers": 4}}, "num_hidden_layers is 4.*have 2 layers.*use num_hidden_layers 2"),
    ({"config": {"hidden_size": 64, "head_dim": 16}}, r"\[92, 32\].*\[92, 64\].*20 more.*sizes in config"),
    ({"config": {"vocab_size": 512}}, r"lm_head.*\[92, 32\].*\[512, 32\].*config.json"),
    ({"dtype": "int8"}, "int8.*quantized.*bfloat16"),
    ({"config": {"quantization_config": {"quant_method": "gptq", "bits": 4}}}, "gptq, 4 bits.*QLoRA.*unquantized"),
    ({"drop": [".*q_proj.weight"], "more": {"model.layers.0.self_attn.q_proj.qweight": [4, 32]}}, "qweight.*unqua"),
    ({"rename": {f"model.layers.{layer}.self_attn.q_proj": f"model.layers.{layer}.self_attn.q_proj.base_layer"
                 for layer in range(2)}, "more": {"model.layers.0.self_attn.q_proj.lora_A.default.weight": [4, 32]}},
     "adapters.*base_layer.*merge_and_unload"),
    ({"more": {f"model.layers.{layer}.self_attn.q_proj.bias": [32] for layer in range(2)}},
     r"2 tensors.*no place for them.*layers\.0\.self_attn\.q_proj\.bias.*config.json that was saved"),
    ({"config_without": ["model_type"]}, "names no model_type.*publisher"),
    ({"config": {"model_type": "qwen9"}}, "no model_type 'qwen9'.*install a transformers"),
    ({"config": {"model_type": "t5", "is_encoder_decoder": True}}, "encoder-decoder.*ForCausalLM"),
    ({"config": {"model_type": "qwen2_5_vl"}}, "qwen2_5_vl.*vision.*ForCausalLM"),
    ({"config": {"num_attention_heads": 5, "num_key_value_heads": 5}, "config_without": ["head_dim"]},
     r"\(32\).*\(5\).*config\.json"),
    ({"config": {"model_type": "mistral", "sliding_window": 0}}, "sliding_window is 0.*use null"),
    ({"config": {"pad_token_id": 50257}}, "pad_token_id is 50257.*vocab_size 92"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), WRONG, ids=[str(row[0])[:70] for row in WRONG])
def test_a_folder_that_cannot_be_trained_is_refused(given: dict[str, Any], expected: str, tmp_path: Path) -> None:
    Model(**given).save(tmp_path / "m")
    found = [line for line in told(tmp_path / "m") if re.search(expected, line)]
    assert found and found[0].startswith("FAIL model.path: ")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"drop": [r"lm_head\.weight"], "config": {"tie_word_embeddings": True}},
        {"rename": {"model.": ""}},  # transformers puts the prefix back
        {
            "more": {"mtp.layers.0.eh_proj.weight": [4, 4], "model.layers.0.self_attn.k_scale": []},
            "config": {"pad_token_id": None, "quantization_config": None, "torch_dtype": "float16", "vocab_size": 128},
            "shapes": {r"(model\.embed_tokens|lm_head)\.weight": [128, 32]},
        },
        {"positions": 8192, "config": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}},
    ],
    ids=str,
)
def test_a_folder_that_is_well_is_not(given: dict[str, Any], tmp_path: Path) -> None:
    Model(**given).save(tmp_path / "m")
    assert told(tmp_path / "m") == []


SMALL: dict[str, dict[str, Any]] = {
    "gpt_neox": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
                 "max_position_embeddings": 64, "vocab_size": 92},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 92, "bos_token_id": 1,
             "eos_token_id": 1},
}  # fmt: skip


def saved(folder: Path, kind: str, more: dict[str, torch.Tensor] | None = None) -> Path:
    """A folder of another family, as transformers saves it, with `more` in its file."""
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL[kind]))
    network.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file({**load_file(file), **(more or {})}, file, metadata={"format": "pt"})
    Model().save_tokenizer(folder)
    return folder


LAYER_0 = "gpt_neox.layers.0"
MASK = torch.ones(1, 1, 64, 64, dtype=torch.bool)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("gpt_neox", {f"{LAYER_0}.attention.bias": MASK, f"{LAYER_0}.attention.masked_bias": torch.tensor(-1e9)}),
        ("gpt2", {"h.0.attn.bias": MASK.byte(), "position_ids": torch.arange(64)}),
    ],
)  # fmt: skip
def test_masks_in_weights_of_before_are_no_quantized_ones(
    kind: str, more: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    folder = saved(tmp_path / "m", kind, more)
    assert told(folder) == []
    load_model(Pretrained(path=str(folder)), 0, CPU)


YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("node", "positions"),
    [
        ({"n_positions": 1024, "n_ctx": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 8192}, "max_position_embeddings": 77}, 8192),
        ({"max_position_embeddings": 2048, "alibi": True}, None),
        ({"max_position_embeddings": -1}, None),
        ({"max_position_embeddings": 4096, "rope_scaling": YARN | {"original_max_position_embeddings": 2048}}, 8192),
        ({"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": 8.0}}, 16384),
        ({"max_position_embeddings": 131072, "rope_scaling": {"type": "longrope", "factor": 32.0}}, 131072),
        ({"model_type": "gemma3_text", "max_position_embeddings": 131072,
          "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 131072),  # scaled already, as vLLM also has it
    ],
)  # fmt: skip
def test_positions_by_the_names_of_families(node: dict[str, Any], positions: int | None) -> None:
    assert config.positions(node) == positions


def test_a_generation_config_that_stops_the_load(tmp_path: Path) -> None:
    Model().save(tmp_path / "m")
    for text, expected in (('{"max_new_tokens": -5}', 1), ('{"temperature": 0.6, "eos_token_id": [1]}', 0)):
        (tmp_path / "m" / "generation_config.json").write_text(text)
        found = told(tmp_path / "m")
        assert len(found) == expected
        assert all("generation_config.json cannot be used: `max_new" in line for line in found)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_place_of_a_file_is_named_at_once(name: str, tmp_path: Path) -> None:
    Model().save(tmp_path / "m")
    (tmp_path / "m" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "m" / name)
    wrong = f"{name}: cannot be read, is a pipe, not a file; use the file"
    assert any(wrong in line for line in told(tmp_path / "m"))


def test_the_engine_trains_no_random_weights(tmp_path: Path) -> None:
    Model(drop=[r"model\.norm\.weight"]).save(tmp_path / "m")
    with pytest.raises(Problems, match=r"model\.path: .*(random numbers|by config\.json)"):
        load_model(Pretrained(path=str(tmp_path / "m")), 0, CPU)


def test_a_judge_without_its_score_is_refused(tmp_path: Path) -> None:
    """By the plan, and where it is loaded: it would score at random."""
    Model().save(tmp_path / "m")
    words = ["reward=model", f"reward.path={tmp_path / 'm'}"]
    line, of_outputs = told(tmp_path / "m", *words)
    assert line.startswith("FAIL reward.path: ") and "score.weight" in line
    assert line.endswith("; use a reward model with one output (AutoModelForSequenceClassification)")
    assert of_outputs.startswith("FAIL reward.path: the model has 2 outputs; use a model with one")
    from transformers import AutoModelForSequenceClassification  # noqa: PLC0415  heavy

    with pytest.raises(Problems, match=r"reward\.path: .*score\.weight"):
        load_whole(AutoModelForSequenceClassification, str(tmp_path / "m"), "reward.path")


def test_adapters_of_layers_that_are_stored_the_other_way_round(tmp_path: Path) -> None:
    """GPT-2's matrices are [in, out]."""
    base = saved(tmp_path / "base", "gpt2")
    adapters = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), adapters).save_pretrained(tmp_path / "m")
    assert told(tmp_path / "m") == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"base": "gone"}, "belong to 'gone', and is neither|belong to 'gone', and there is no folder"),
        ({"config": {"r": 8}}, "r is 8 in adapter_config.json.*rank 4.*use r 4"),
        ({"config": {"task_type": "SEQ_CLS"}}, "task_type SEQ_CLS.*causal"),
        ({"base": "wide"}, r"lora_A.*\[4, 32\].*base has \[64, 64\].*base"),
        ({}, ""),
        ({"config": {"r": 2, "rank_pattern": {"q_proj": 4, "v_proj": 4}}}, ""),
        # what peft would leave out
        ({"rename": (r"\.weight$", ".default.weight")},
         "lora_A.default.weight is not one of peft's names.*left out.*save"),
        ({"rename": ("^base_model.model.", "")}, "is not one of peft's names"),
        ({"rename": ("^base_model.model.", "base_model.model._orig_mod.")},
         "_orig_mod.*layer that its base.*inner module"),
        ({"rename": (r"layers\.1", "layers.7")}, r"layers\.7\..*is of a layer that its base .* does not have"),
        ({"config": {"target_modules": ["q_proj"]}}, r"leaves out .*v_proj.*target_modules \['q_proj', 'v_proj'\]"),
        ({"config": {"target_modules": ["self_attn.q_proj", "v_proj", "o_proj"]}}, ""),
        ({"config": {"target_modules": ".*[qv]_proj"}}, ""),  # a pattern is left to peft
    ],
    ids=str,
)  # fmt: skip
def test_adapters_and_their_base(given: dict[str, Any], expected: str, tmp_path: Path) -> None:
    Model().save(tmp_path / "base")
    Model(shapes={r"model\.layers.*proj\.weight": [64, 64]}).save(tmp_path / "wide")
    base, (old, new) = given.get("base", "base"), given.get("rename", ("", ""))
    values = {name: value for name, value in given.items() if name != "rename"}
    Adapter(**values | {"base": base if base == "gone" else str(tmp_path / base)}).save(tmp_path / "m")
    if old:
        file = tmp_path / "m" / weights.ADAPTER
        save_file({re.sub(old, new, name): held for name, held in load_file(file).items()}, file)
    else:  # as some programs do
        (tmp_path / "m" / "config.json").write_text((tmp_path / "base" / "config.json").read_text())
    found = told(tmp_path / "m")
    assert len(found) == bool(expected) and all(re.search(expected, line) for line in found)


def test_what_was_found_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look at the same config and headers starts no process; another config is looked at again."""
    started: list[Any] = []
    answer = {"step": "done", "expected": 21}
    monkeypatch.setattr(dry_load, "_in_a_process", lambda asked: started.append(asked) or answer)
    Model().save(tmp_path / "m")
    first = dry_load.dry_load(tmp_path / "m", "AutoModelForCausalLM")
    assert dry_load.dry_load(tmp_path / "m", "AutoModelForCausalLM") == first and len(started) == 1
    (kept,) = cache_folder(dry_load.CACHE_NAME).iterdir()
    kept.write_text("[]")  # spoilt
    assert dry_load.dry_load(tmp_path / "m", "AutoModelForCausalLM") == first and len(started) == 2
    (tmp_path / "m" / "config.json").write_text("{}")
    dry_load.dry_load(tmp_path / "m", "AutoModelForCausalLM")
    assert len(started) == 3


def test_what_depends_on_the_machine_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is missing is named, and looked for again; so is a file that could not be read."""
    Model().save(tmp_path / "m")
    text = "FalconMamba requires the mamba_ssm library but it was not found. `pip install mamba-ssm`"
    for error, cause, expected in (
        (RuntimeError(), ModuleNotFoundError("No module named 'kernels.cuda'"), "No module named 'kernels.cuda'"),
        (RuntimeError(), ImportError(text), "mamba-ssm.*; install it"),
        (OSError("busy"), None, "busy"),
    ):
        error.__cause__ = cause
        with monkeypatch.context() as patch:
            patch.setattr(program.AutoConfig, "from_pretrained", Mock(side_effect=error))
            assert re.search(expected, told(tmp_path / "m")[0])
        assert not cache_folder(dry_load.CACHE_NAME).exists()
    assert told(tmp_path / "m") == []


def test_the_process_says_the_same_and_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights_process: Any
) -> None:
    monkeypatch.setattr(dry_load, "_in_a_process", weights_process)
    Model(drop=[r"model\.norm\.weight"]).save(tmp_path / "m")
    found = dry_load.dry_load(tmp_path / "m", "AutoModelForCausalLM")
    tensors = weights.tensors(tmp_path / "m")
    node = program.dry_load(str(tmp_path / "m"), "AutoModelForCausalLM", tensors)
    assert found == fit.LoadReport(**node)
    assert config.read(tmp_path / "m")
    monkeypatch.setattr(dry_load, "PROGRAM", tmp_path / "hangs.py")
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.setattr(dry_load, "WALL_S", 0.1)
    assert dry_load._in_a_process({}) is None
