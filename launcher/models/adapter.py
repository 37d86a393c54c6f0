"""Checks a folder of LoRA adapters: whether they fit their base model and their own config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from launcher.core.problems import Problem, error_message, short_repr
from launcher.models import config, weights
from launcher.models.pretrained import LAYOUTS, Pretrained, base_folder
from launcher.spec.checkpoint_format import BASE
from launcher.spec.model import Family

_MATRIX = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_OTHER_TASKS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "SEQ_2_SEQ_LM")
"""Tasks of adapters of other models than causal language models."""
CONFIG = LAYOUTS[1]
MATCH_S = 0.5
"""Time limit in seconds for matching the pattern `target_modules` with one layer's name."""
_TO_BASE = f"put the base that it was trained on into base_model_name_or_path in {CONFIG}"


def problems(folder: Path, base: Path | None = None) -> list[Problem]:
    """Why the adapters cannot be applied to their base model, in `base` or where their config says."""
    node = config.read(folder, CONFIG) or {}
    if found := [*_entry_problems(node)]:
        return found
    base = base or base_folder(folder)
    found = [*islice(_matrix_problems(folder, node, base), 1), *tied_problems(node.get("target_modules"), base)]
    return found if base and base != base_folder(folder) else [*found, *_base_problems(folder, node)]


def tied_problems(targets: str | Sequence[str] | None, base: Path | None, tied: bool = False) -> list[Problem]:
    """Problems of adapters on an embedding that is tied to the output layer: merging would change both. `tied` is what
    is known without the folder of the weights."""
    rows = ["model.embed_tokens"]
    if base:
        node = config.read(base) or {}
        rows = _find_token_rows(base, node.get("vocab_size"))
        tied = tied or bool(node.get("tie_word_embeddings")) or len(rows) == 1
    if targets in (None, "all-linear") or not tied:
        return []
    try:
        shared = [name for name in dict.fromkeys([*rows, "lm_head"]) if _is_target(name, targets or ())]
    except ValueError:  # an invalid pattern, which another check reports
        return []
    got = f"{', '.join(shared)} is of one matrix that is embedding and output layer (tied), so adapters of it cannot be"
    return [Problem("", f"{got} merged", "leave it out of target_modules", "not-supported")] if shared else []


def _find_token_rows(base: Path, n_tokens: object) -> list[str]:
    """Names of the matrices outside the layers that have a row for each token."""
    shapes = weights.shapes(base) or {}
    outside = {name: shape for name, shape in shapes.items() if not re.search(r"\.\d+\.", name)}
    return [name.removesuffix(".weight") for name, shape in outside.items() if shape[:1] == (n_tokens,)]


def _entry_problems(node: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of entries with which the adapters are none of LoRA, or of another kind of model."""
    kind, task, rank, targets = (node.get(name) for name in ("peft_type", "task_type", "r", "target_modules"))
    if kind != "LORA":
        yield Problem("", f"peft_type is {short_repr(kind, 60)} in {CONFIG}", "use LoRA adapters (LORA)", "bad-file")
    if task in _OTHER_TASKS:
        got = f"its adapters are of task_type {task}, which cannot be merged into a language model"
        fix = "use LoRA adapters of a causal language model, or model.path=BASE model.lora_rank=16 for new ones"
        yield Problem("", got, fix, "not-supported")
    if rank is not None and (type(rank) is not int or rank < 1):
        fix = "use r as it was when they were saved"
        yield Problem("", f"r is {short_repr(rank, 30)} in {CONFIG}, and a rank is at least 1", fix, "bad-file")
    listed = isinstance(targets, list) and all(isinstance(name, str) for name in targets)
    if not listed and not isinstance(targets, str | None):
        fix = "use a list of the names of layers"
        yield Problem("", f"target_modules is {short_repr(targets, 60)} in {CONFIG}", fix, "bad-file")


def _base_problems(folder: Path, node: Mapping[str, Any]) -> list[Problem]:
    if (folder / BASE).is_dir():
        return []
    base = node.get("base_model_name_or_path")
    fix = f"put the base model's folder into base_model_name_or_path in {CONFIG}"
    if not isinstance(base, str) or not base:
        return [Problem("", f"{folder / CONFIG} names no base model", fix, "bad-file")]
    faults = Pretrained(path=base).problems()
    got = f"its adapters belong to {short_repr(base)}, and "
    fixes = [fix if problem.code == "not-found" else f"{problem.fix}; {fix}" for problem in faults]
    return [Problem("", got + problem.got, advice, problem.code) for problem, advice in zip(faults, fixes, strict=True)]


def _matrix_problems(folder: Path, node: Mapping[str, Any], base: Path | None) -> Iterator[Problem]:
    """Problems of matrices of another rank, layer or shape: peft skips them without an error, so that adapters have no
    effect, or only a part."""
    try:
        adapters = {name: shape for name, (_, shape) in weights.tensors(folder, [weights.ADAPTER]).items()}
    except (OSError, ValueError):
        return
    base_shapes = (weights.shapes(base) if base else None) or {}
    complete = bool(base and base_shapes) and (config.read(base or folder) or {}).get("model_type") in get_args(Family)
    for name, shape in adapters.items():
        if not re.search(r"\.lora_[AB]\.(?!bias$)", name):
            continue
        if matrix := _MATRIX.fullmatch(name):
            yield from _config_problems(matrix, shape, node)
            yield from _layer_problems(matrix, shape, base_shapes, f"its base {base}" if complete else "")
        else:
            got = f"{name} is not one of peft's names (base_model.model.LAYER.lora_A.weight), so it would be left out"
            yield Problem("", got, "save them by save_pretrained of peft's model", "bad-file")


def _config_problems(matrix: re.Match[str], shape: Sequence[int], node: Mapping[str, Any]) -> Iterator[Problem]:
    layer, patterns, targets = matrix["layer"], node.get("rank_pattern"), node.get("target_modules")
    ranks = {node.get("r"), *(patterns.values() if isinstance(patterns, dict) else ())}
    # fused experts have a multiple of the rank
    if matrix["side"] == "A" and "experts" not in layer and shape and shape[0] not in ranks:
        got = f"r is {node.get('r')} in {CONFIG}, and the adapters have rank {shape[0]} ({matrix[0]})"
        yield Problem("", got, f"use r {shape[0]} in {CONFIG}, or the one that was saved with them", "bad-file")
    try:
        is_target = targets in (None, "all-linear") or _is_target(layer, targets)
    except ValueError as error:
        got = f"target_modules is {short_repr(targets, 60)} in {CONFIG}, a pattern that cannot be used: {error}"
        yield Problem("", got, "use a list of the names of layers", "bad-file")
        return
    if not is_target:
        listed = targets if isinstance(targets, list) else ()
        all_targets = short_repr(sorted({layer.rpartition(".")[2], *listed}), 200)
        got = f"target_modules in {CONFIG} leaves out {matrix[0]}"
        yield Problem("", got, f"use target_modules {all_targets} in {CONFIG}", "bad-file")


def _is_target(layer: str, targets: str | Sequence[str]) -> bool:
    """Whether peft would match: a string is a pattern. Raises `ValueError` if it is invalid or takes too long."""
    if isinstance(targets, str):
        import regex  # noqa: PLC0415  late: most folders have no adapters

        try:
            return regex.fullmatch(targets, layer, timeout=MATCH_S) is not None
        except (regex.error, TimeoutError) as error:
            raise ValueError(error_message(error)) from error
    return any(f".{layer}".endswith(f".{target}") for target in targets)


def _layer_problems(
    matrix: re.Match[str], shape: Sequence[int], base_shapes: Mapping[str, Sequence[int]], base: str
) -> Iterator[Problem]:
    """Problems of one matrix and its layer. `base` names the base model if its files have all layers' names."""
    layer = matrix["layer"]
    base_shape = base_shapes.get(f"{layer}.weight", ())
    if base and not base_shape and "experts" not in layer:
        got = f"{matrix[0]} is of a layer that {base} does not have"
        yield Problem("", got, f"{_TO_BASE}, or save the adapters of the inner module", "bad-file")
    if len(base_shape) == len(shape) == 2 and shape[matrix["side"] == "A"] not in base_shape:  # Conv1D has [in, out]
        got = f"{matrix[0]} has shape {list(shape)}, and {layer} of its base has {list(base_shape)}"
        yield Problem("", got, _TO_BASE, "bad-file")
