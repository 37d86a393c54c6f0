"""Whether a field of verl's takes a value, by the text of its type as verl's source has it."""

from __future__ import annotations

import ast
from typing import Any

_SCALARS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}
WHOLE = frozenset([
    "data.train_batch_size", "data.gen_batch_size", "data.val_batch_size", "data.max_prompt_length",
    "data.max_response_length", "data.micro_batch_size_per_gpu", "data.max_token_len_per_gpu", "data.max_length",
    "data.train_max_samples", "data.val_max_samples", "data.dataloader_num_workers", "data.num_workers", "data.seed",
    "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", "trainer.total_training_steps",
    "trainer.critic_warmup", "ray_kwargs.ray_init.num_cpus", "ray_kwargs.ray_init.num_gpus",
])  # fmt: skip
"""Whole numbers among the settings that no dataclass types."""
EXCEPTIONS = {
    "clip_ratio_low": "Optional[float]", "clip_ratio_high": "Optional[float]", "rollout_is_threshold": "float | str",
    "max_off_policy_threshold": "Optional[int]",
}  # fmt: skip
"""What verl takes of settings whose type says less, by the last part of the key."""
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}


def accepts(annotation: str, value: object) -> bool:
    """Whether a field of this type takes the value. Whole numbers are taken for fractions, 0 and 1 for a bool, and what
    is not known of a type is not judged."""
    return _accepts(ast.parse(annotation, mode="eval").body, value)


def is_class(annotation: str) -> bool:
    """Whether the type is not a plain one: a section of its own."""
    names = {node.id for node in ast.walk(ast.parse(annotation)) if isinstance(node, ast.Name)}
    return any(name[0].isupper() and name not in ("Any", "Optional", "Literal", "Iterable") for name in names)


def words_of(annotation: str) -> str:
    """The type in words: `a whole number`."""
    plain = annotation.removeprefix("Optional[").removesuffix("]")
    return "[A,B]" if plain.startswith("list") else _WORDS.get(plain.partition(" ")[0], plain)


def kind_of_default(key: str, default: Any) -> str:
    """The type of a setting that no dataclass of verl has, by its default."""
    last = key.rpartition(".")[2]
    if key in WHOLE or last.endswith(("_size", "_per_gpu")):
        return "Optional[int]" if default is None or last == "image_patch_size" else "int"
    if isinstance(default, bool):
        return "Optional[bool]"
    if isinstance(default, int | float):
        return "float | str" if last in ("save_freq", "test_freq") else "float"
    if isinstance(default, list) or last in ("train_files", "val_files", "logger"):
        return "Optional[list | str]"
    if isinstance(default, str) and not default.startswith("${"):
        return "Optional[str | int | float | bool]"
    return "Optional[str]" if default is None and last.endswith(("path", "name", "_key", "_dir")) else "Any"


def _accepts(node: ast.expr, value: object) -> bool:
    match node:
        case ast.Constant(value=None):
            return value is None
        case ast.BinOp(left=left, right=right):
            return _accepts(left, value) or _accepts(right, value)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return value is None or _accepts(inner, value)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            return value in ast.literal_eval(inner if isinstance(inner, ast.Tuple) else ast.Tuple([inner], ast.Load()))
        case ast.Subscript(value=ast.Name(id="list"), slice=inner) if isinstance(value, list):
            return all(_accepts(inner, element) for element in value)
        case ast.Subscript(value=ast.Name(id=name)) | ast.Name(id=name):
            return _is_a(name, value)
    return True


def _is_a(name: str, value: object) -> bool:
    if name in ("list", "tuple"):
        return isinstance(value, list)
    if name == "dict":
        return value is None or isinstance(value, dict)
    if name == "bool":
        return isinstance(value, bool) or value in (0, 1)
    if name in _SCALARS:
        return isinstance(value, _SCALARS[name]) and not isinstance(value, bool)
    return True
