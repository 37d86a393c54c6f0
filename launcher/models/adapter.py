"""A folder of LoRA adapters: which weights they belong to, and whether its matrices are those of its config."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from launcher.core.problems import Problem, Problems, short_repr
from launcher.models import config, store, weights
from launcher.models.pretrained import Pretrained, weights_of

_MATRIX = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_OTHERS = {
    "peft_type": ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT"),
    "task_type": ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "SEQ_2_SEQ_LM"),
}
"""Kinds of adapters that are no change of a language model's weights."""
CONFIG, BASE = "adapter_config.json", "base"


def _read(folder: Path) -> dict[str, Any]:
    return config.read(folder, CONFIG) or {}


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of the adapters' matrices."""
    try:
        return {name: shape for name, (_, shape) in weights.tensors(folder, [weights.ADAPTER]).items()}
    except (OSError, ValueError):
        return {}


def problems(folder: Path) -> list[Problem]:
    """Why the adapters cannot be put onto their weights."""
    return [*_kind_problems(folder), *_base_problems(folder), *(_rank_problems(folder) or _shape_problems(folder))]


def base_folder(folder: Path) -> Path | None:
    """The folder of the weights that the adapters belong to; None where it is not here."""
    if (folder / BASE).is_dir():
        return folder / BASE
    base = _read(folder).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        return None
    try:
        return store.find(base) if Pretrained(path=base).on_hub else Path(weights_of(base))
    except Problems:
        return None


def _base_problems(folder: Path) -> list[Problem]:
    if (folder / BASE).is_dir():
        return []
    base = _read(folder).get("base_model_name_or_path")
    fix = f"put the base model's folder into base_model_name_or_path in {CONFIG}"
    if not isinstance(base, str) or not base:
        return [Problem("", f"{folder / CONFIG} names no base model", fix, "bad-file")]
    found = Pretrained(path=base).problems()
    got = f"its adapters belong to {short_repr(base)}, and "
    return [Problem("", got + problem.got, fix, "not-found") for problem in found]


def _kind_problems(folder: Path) -> list[Problem]:
    node = _read(folder)
    found = [(name, node.get(name)) for name, others in _OTHERS.items() if node.get(name) in others]
    fix = "use LoRA adapters of a causal language model, or model.path=BASE model.lora_rank=16 for new ones"
    return [Problem("", f"its adapters are of {name} {value}, which cannot be merged into a language model", fix,
                    "not-supported") for name, value in found]  # fmt: skip


def _shape_problems(folder: Path) -> list[Problem]:
    """Adapters that were made for matrices of other shapes than those of the base that is here."""
    base, adapters = base_folder(folder), _shapes(folder)
    known = (weights.shapes(base) if base else None) or {}
    for name, shape in adapters.items():
        found = _MATRIX.fullmatch(name)
        of = known.get(f"{found['layer']}.weight", ()) if found else ()
        if found and len(of) == len(shape) == 2 and shape[found["side"] == "A"] not in of:  # Conv1D has [in, out]
            got = f"{name} has shape {list(shape)}, and {found['layer']} of its base has {list(of)}"
            return [Problem("", got, f"put the base that it was trained on into {CONFIG}", "bad-file")]
    return []


def _rank_problems(folder: Path) -> list[Problem]:
    """Of LoRA only: experts keep several matrices in one, of a multiple of the rank."""
    node, shapes = _read(folder), _shapes(folder)
    rank, patterns = node.get("r"), node.get("rank_pattern")
    if node.get("peft_type") != "LORA" or not isinstance(rank, int):
        return []
    ranks = {rank, *(patterns.values() if isinstance(patterns, dict) else ())}
    found = {name: shape[0] for name, shape in shapes.items()
             if name.endswith("lora_A.weight") and "experts" not in name and shape}  # fmt: skip
    wrong = {name: of for name, of in found.items() if of not in ranks}
    if not wrong:
        return []
    name, of = next(iter(wrong.items()))
    got = f"r is {rank} in {CONFIG}, and the adapters have rank {of} ({name})"
    fix = f"use r {of} in {CONFIG}" if len({*wrong.values()}) == 1 else f"use the {CONFIG} that was saved with them"
    return [Problem("", got, fix, "bad-file")]
