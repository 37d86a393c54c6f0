"""Low-rank adapters (LoRA, arXiv:2106.09685) as peft saves them, added into the weights they belong to.

W + s B A, with s = alpha / r, or alpha / sqrt(r) for rsLoRA (arXiv:2312.03732); where W is transposed
(`fan_in_fan_out`, embeddings), B A is transposed too. Tensors that were trained whole (`modules_to_save`, biases)
replace the base's. Kinds of adapters that are more than this (DoRA and others) are refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from launcher.core.problems import Problem, short_repr
from launcher.tools.merge.folder import ModelFolder, StoredTensor, list_few

PREFIX = "base_model.model."  # peft's name for what it wraps
_PART = re.compile(r"(?P<layer>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(\.weight)?")
_HARMLESS = (
    "r", "lora_alpha", "use_rslora", "fan_in_fan_out", "alpha_pattern", "rank_pattern", "bias", "lora_dropout",
    "target_modules", "modules_to_save", "peft_type", "task_type", "base_model_name_or_path", "auto_mapping",
    "inference_mode", "revision", "layers_to_transform", "layers_pattern", "exclude_modules", "init_lora_weights",
    "peft_version", "megatron_core", "qalora_group_size", "eva_config",
)  # fmt: skip
"""Settings that do not change the formula. Any other that is set may, so it is refused."""
_STARTS = (True, False, "gaussian", "eva", "orthogonal", None)
"""Initialisations that leave the base as it is; the others (PiSSA, OLoRA, LoftQ, ...) change it."""
OWN_BASE = "use its own base"


@dataclass(frozen=True)
class LoraDelta:
    """What is added to one matrix."""

    a: StoredTensor  # [r, in]
    b: StoredTensor  # [out, r]
    scale: float
    transposed: bool
    """Whether the matrix is [in, out]."""

    def add_to(self, matrix: Tensor, a: Tensor, b: Tensor) -> Tensor:
        a, b = a.to(matrix.dtype), b.to(matrix.dtype)
        return matrix.addmm(a.T, b.T, alpha=self.scale) if self.transposed else matrix.addmm(b, a, alpha=self.scale)


@dataclass
class Adapter:
    """How an adapter changes the base's tensors, by their names."""

    deltas: dict[str, LoraDelta] = field(default_factory=dict)
    replaced: dict[str, StoredTensor] = field(default_factory=dict)
    """Trained whole, in place of the base's."""
    problems: list[Problem] = field(default_factory=list)


def fit_adapter(adapter: ModelFolder, base: ModelFolder) -> Adapter:
    """Find the tensor of the base that each tensor of the adapter belongs to."""
    found = Adapter(problems=_config_problems(adapter))
    sides: dict[tuple[str, bool], dict[str, StoredTensor]] = {}
    unknown = []
    for tensor in adapter.tensors.values():
        name = tensor.name.removeprefix(PREFIX)
        if part := _PART.fullmatch(name):
            sides.setdefault((part["layer"], bool(part["embedding"])), {})[part["side"]] = tensor
        elif place := _name_in_base(name.replace(".base_layer.", "."), base):
            found.replaced[place] = tensor
        else:
            unknown.append(name)
    for (layer, embedding), pair in sides.items():
        place = _name_in_base(f"{layer}.weight", base)
        if place is None or len(pair) < 2:
            unknown.append(layer)
            continue
        delta = _delta(adapter.config, layer, pair["A"], pair["B"], base.tensors[place], embedding)
        if isinstance(delta, Problem):
            found.problems.append(delta.within(adapter.given))
        else:
            found.deltas[place] = delta
    if unknown:
        got = f"{list_few(unknown)} not found in {base.given}"
        found.problems.append(Problem(adapter.given, got, OWN_BASE, code="not-found"))
    for name, tensor in found.replaced.items():
        if tensor.shape != base.tensors[name].shape:
            got = f"{name} is {list(tensor.shape)} where {base.given} has {list(base.tensors[name].shape)}"
            found.problems.append(Problem(adapter.given, got, OWN_BASE))
    if base.config.get("tie_word_embeddings"):
        found.problems += _tied_problems(found, adapter, base)
    return found


def _name_in_base(name: str, base: ModelFolder) -> str | None:
    """Files of a bare decoder leave out the first part of a name (`transformer.h.0` is `h.0`)."""
    return next((known for known in (name, name.partition(".")[2]) if known in base.tensors), None)


def _delta(
    config: dict[str, Any], layer: str, a: StoredTensor, b: StoredTensor, matrix: StoredTensor, embedding: bool
) -> LoraDelta | Problem:
    """What is added to `matrix`, or why it cannot be."""
    matrices = len(a.shape) == len(b.shape) == 2 and a.is_float and b.is_float and a.bytes and b.bytes
    if not matrices or a.shape[0] != b.shape[1]:
        sides = f"A {a.dtype} {list(a.shape)} and B {b.dtype} {list(b.shape)}"
        return Problem(layer, f"{sides} make no matrix", "use the tensors as peft saved them", "bad-file")
    straight = (b.shape[0], a.shape[1])
    if matrix.shape not in (straight, straight[::-1]):
        return Problem(layer, f"B A is {list(straight)} and the base's matrix {list(matrix.shape)}", OWN_BASE)
    square = straight[0] == straight[1]
    transposed = bool(embedding or config.get("fan_in_fan_out")) if square else matrix.shape != straight
    patterns = (config.get("alpha_pattern") or {}).items()  # the first that the layer's name ends with, as in peft
    alphas = (alpha for key, alpha in patterns if re.match(rf"(.*\.)?({key})$", layer))
    rank = math.sqrt(a.shape[0]) if config.get("use_rslora") else a.shape[0]
    return LoraDelta(a, b, next(alphas, config.get("lora_alpha", 8)) / rank, transposed)


def _config_problems(adapter: ModelFolder) -> list[Problem]:
    given, config = adapter.given, adapter.config
    if config.get("peft_type") != "LORA":
        return [Problem(given, f"is a {short_repr(config.get('peft_type'))} adapter", "use a LORA")]
    found = [
        Problem(given, f"{key} is {short_repr(config[key])}, which W + s B A does not say", "use a plain LoRA")
        for key in sorted(key for key, value in config.items() if value and key not in _HARMLESS)
    ]
    if (start := config.get("init_lora_weights")) not in _STARTS:
        got = f"init_lora_weights is {short_repr(start)}, which changes the base too"
        found.append(Problem(given, got, "use a plain LoRA"))
    return found


def _tied_problems(found: Adapter, adapter: ModelFolder, base: ModelFolder) -> list[Problem]:
    """The embedding that is the output layer too cannot change in one of its two places only."""
    size = base.config.get("vocab_size")
    outside_layers = [name for name in (*found.deltas, *found.replaced) if not re.search(r"\.[0-9]+\.", name)]
    touched = [name for name in outside_layers if base.tensors[name].shape[:1] == (size,)]
    got = "changes {}, which is embedding and output layer in one in {}"
    fix = "use an adapter of other layers"
    return [
        Problem(adapter.given, got.format(name, base.given), fix)
        for name in touched
        if len(base.tensors[name].shape) == 2
    ]
