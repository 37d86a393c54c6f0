"""A folder of LoRA adapters: which weights they belong to, and whether its matrices are those of its config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from launcher.core.problems import Problem, short_repr
from launcher.models import config, weights
from launcher.models.pretrained import LAYOUTS, Pretrained, base_folder
from launcher.spec.checkpoint_format import FORMAT
from launcher.spec.model import Family

_MATRIX = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_OTHERS = {
    "peft_type": ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT"),
    "task_type": ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "SEQ_2_SEQ_LM"),
}
"""Kinds of adapters that are no change of a language model's weights."""
CONFIG = LAYOUTS[1]
MATCH_S = 0.5  # of a pattern and one name: some patterns take for ever
_LAYER = re.compile(r"layers\.\d+\..+")


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
    if found := [*_entry_problems(_read(folder))]:
        return found
    of_matrices = _rank_problems(folder) or _name_problems(folder) or _shape_problems(folder)
    return [*_kind_problems(folder), *_base_problems(folder), *of_matrices]


def _entry_problems(node: Mapping[str, Any]) -> Iterator[Problem]:
    """Entries that peft could not use."""
    kind, rank, targets = (node.get(name) for name in ("peft_type", "r", "target_modules"))
    if not isinstance(kind, str) or not _known_to_peft(kind):
        yield Problem("", f"peft_type is {short_repr(kind, 60)} in {CONFIG}", "use LoRA adapters (LORA)", "bad-file")
    if kind == "LORA" and rank is not None and (type(rank) is not int or rank < 1):
        fix = "use r as it was when they were saved"
        yield Problem("", f"r is {short_repr(rank, 30)} in {CONFIG}, and a rank is at least 1", fix, "bad-file")
    listed = isinstance(targets, list) and all(isinstance(name, str) for name in targets)
    if not listed and not isinstance(targets, str | None):
        fix = "use a list of the names of layers"
        yield Problem("", f"target_modules is {short_repr(targets, 60)} in {CONFIG}", fix, "bad-file")


def _known_to_peft(kind: str) -> bool:
    """Whether the installed peft has adapters of this kind; it is not loaded."""
    library = find_spec("peft")
    for root in (library.submodule_search_locations if library else None) or ():
        with suppress(OSError):
            return f'"{kind}"' in (Path(root) / "utils" / "peft_types.py").read_text()
    return True


def _base_problems(folder: Path) -> list[Problem]:
    if (folder / FORMAT.base).is_dir():
        return []
    base = _read(folder).get("base_model_name_or_path")
    fix = f"put the base model's folder into base_model_name_or_path in {CONFIG}"
    if not isinstance(base, str) or not base:
        return [Problem("", f"{folder / CONFIG} names no base model", fix, "bad-file")]
    found = Pretrained(path=base).problems()
    got = f"its adapters belong to {short_repr(base)}, and "
    of_base = [fix if problem.code == "not-found" else f"{problem.fix}; {fix}" for problem in found]
    return [Problem("", got + each.got, of, each.code) for each, of in zip(found, of_base, strict=True)]


def _kind_problems(folder: Path) -> list[Problem]:
    node = _read(folder)
    found = [(name, node.get(name)) for name, others in _OTHERS.items() if node.get(name) in others]
    fix = "use LoRA adapters of a causal language model, or model.path=BASE model.lora_rank=16 for new ones"
    return [Problem("", f"its adapters are of {name} {value}, which cannot be merged into a language model", fix,
                    "not-supported") for name, value in found]  # fmt: skip


def _name_problems(folder: Path) -> list[Problem]:
    """Of LoRA: matrices that peft would leave out without an error, so that the adapters do nothing, or half."""
    node, names = _read(folder), [name for name in _shapes(folder) if re.search(r"\.lora_[AB]\.(?!bias$)", name)]
    if node.get("peft_type") != "LORA" or not names:
        return []
    layers = {name: found["layer"] for name in names if (found := _MATRIX.fullmatch(name))}
    if other := next((name for name in names if name not in layers), None):
        got = f"{other} is not one of peft's names (base_model.model.LAYER.lora_A.weight), so it would be left out"
        return [Problem("", got, "save them by save_pretrained of peft's model", "bad-file")]
    targets = node.get("target_modules")
    if isinstance(targets, list) or (isinstance(targets, str) and targets != "all-linear"):
        import regex  # noqa: PLC0415  late: most folders have no adapters

        try:
            lost = [name for name, layer in layers.items() if not _among(layer, targets)]
        except (regex.error, TimeoutError) as error:
            got = f"target_modules is {short_repr(targets, 60)} in {CONFIG}, a pattern that cannot be used: {error}"
            return [Problem("", got, "use a list of the names of layers", "bad-file")]
        if lost:
            before = targets if isinstance(targets, list) else ()
            named = sorted({layers[name].rpartition(".")[2] for name in lost} | {*map(str, before)})
            got = f"target_modules in {CONFIG} leaves out {lost[0]}"
            return [Problem("", got, f"use target_modules {short_repr(named, 200)} in {CONFIG}", "bad-file")]
    return _without_base_layer(folder, layers)


def _among(layer: str, targets: Sequence[object]) -> bool:
    """As peft matches: a string is a regular expression."""
    if isinstance(targets, str):
        import regex  # noqa: PLC0415  late: most folders have no adapters

        return regex.fullmatch(targets, layer, timeout=MATCH_S) is not None
    return any(layer == target or layer.endswith(f".{target}") for target in targets)


def _without_base_layer(folder: Path, layers: dict[str, str]) -> list[Problem]:
    """Adapters of layers that their base does not have, where the names of its layers are known."""
    base = base_folder(folder)
    if base is None or (config.read(base) or {}).get("model_type") not in get_args(Family):
        return []
    known = {found[0] for name in weights.shapes(base) or {} if (found := _LAYER.search(name))}
    for name, layer in layers.items():
        found = _LAYER.search(layer)
        experts = "experts" in layer  # some files hold all of a layer in one tensor
        if known and found and not experts and (f"{found[0]}.weight" not in known or layer != f"model.{found[0]}"):
            got = f"{name} is of a layer that its base {base} does not have"
            fix = f"put the base that it was trained on into base_model_name_or_path in {CONFIG}, or save the adapters"
            return [Problem("", got, f"{fix} of the inner module", "bad-file")]
    return []


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
