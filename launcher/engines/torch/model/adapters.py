"""Low-rank adapters (LoRA, arXiv:2106.09685), by peft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from launcher.core.problems import Problem, Problems
from launcher.engines.torch.model.whole import load_whole
from launcher.models.pretrained import weights_of
from launcher.spec.model import Model


def add_adapters(
    module: PreTrainedModel, model: Model, seed: int, path: str | None, saved: Path | None
) -> PreTrainedModel:
    """Freeze the model and add adapters: new ones, or those in the folder `saved`.

    `path` is the address of the frozen weights, stored with the adapters.
    """
    if saved:
        return cast("PreTrainedModel", PeftModel.from_pretrained(module, str(saved), is_trainable=True))
    config = LoraConfig(
        r=model.lora_rank, lora_alpha=model.lora_alpha, task_type="CAUSAL_LM", base_model_name_or_path=path,
        target_modules=model.peft_targets,
    )  # fmt: skip
    torch.manual_seed(seed)
    try:
        adapted = get_peft_model(module, config)
    except ValueError as error:
        raise Problems(Problem("model.target_modules", " ".join(str(error).split()), code="not-supported")) from error
    # peft would take the name that the weights were loaded by; where no folder has them they are saved beside
    adapted.peft_config["default"].base_model_name_or_path = path or "base"
    return cast("PreTrainedModel", adapted)


def load_merged(folder: Path, dtype: torch.dtype, more: Mapping[str, Any]) -> Any:
    """The base model named in an adapter's folder, with the adapter merged into its weights."""
    base = folder / "base"
    path = str(base) if base.is_dir() else LoraConfig.from_pretrained(str(folder)).base_model_name_or_path
    module = load_whole(AutoModelForCausalLM, weights_of(str(path)), "model.path", dtype=dtype, **more)
    return cast("Any", PeftModel.from_pretrained(module, str(folder))).merge_and_unload().requires_grad_(True)


def adapter_weights(module: PreTrainedModel) -> Mapping[str, Tensor]:
    """The adapters' weights, by peft's names."""
    return cast("Mapping[str, Tensor]", get_peft_model_state_dict(module, save_embedding_layers=False))


def base_weights(base: PreTrainedModel) -> Mapping[str, Tensor]:
    """The frozen weights, by their names without adapters."""
    adapters, every = ("lora_A.", "lora_B.", "lora_embedding_"), base.state_dict(keep_vars=True).items()
    frozen = {name: value for name, value in every if not any(part in name for part in adapters)}
    return {name.replace(".base_layer.", "."): value for name, value in frozen.items()}


def merged_weight(base: PreTrainedModel, name: str, weight: Tensor) -> Tensor:
    """The weight `name` with its adapter merged; sharded if the weight is."""
    path, _, kind = name.rpartition(".")
    layer = base.get_submodule(path)
    if kind != "weight" or not isinstance(layer, LoraLayer):
        return weight
    (adapter,) = cast("Any", layer).active_adapters
    return (weight + cast("Any", layer).get_delta_weight(adapter)).to(weight.dtype)
