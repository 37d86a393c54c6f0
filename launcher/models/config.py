"""What a model's config.json says, read without the library that would run it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.core.bounded_parse import parse_json
from launcher.core.problems import Problem, error_message
from launcher.core.settings import from_node
from launcher.spec.model import Architecture

_PLAIN = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
TEXTS = (
    "config.json", "adapter_config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
)  # fmt: skip
LONGEST = 16 * 2**20  # bytes; the tokens that were added to a tokenizer are many


def read(folder: Path) -> dict[str, Any] | None:
    """The folder's config.json; None where there is none that can be read."""
    try:
        node = parse_json((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return node if isinstance(node, dict) else None


def faults(folder: Path) -> list[Problem]:
    """Which of the folder's small texts no loader could, or should, read."""
    wrong = {path: fault for path in (folder / name for name in TEXTS) if path.is_file() and (fault := _fault(path))}
    fix = "use the file as its publisher saved it"
    return [Problem(str(path), fault, fix, "bad-file") for path, fault in wrong.items()]


def _fault(path: Path) -> str:
    try:
        if path.stat().st_size > LONGEST:
            return f"has more than {LONGEST:,} bytes"
        return "" if isinstance(parse_json(path.read_bytes()), dict) else "is no JSON object"
    except (OSError, ValueError) as error:
        return f"cannot be read, {error_message(error)}"


def architecture(config: dict[str, Any]) -> Architecture | None:
    """Its numbers; None for a family that is not counted here, or where a number is missing."""
    family = config.get("model_type")
    moe = family == "qwen3_moe"
    if moe and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        return None  # some of its layers have no experts
    try:
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        node = {name: config[name] for name in _PLAIN} | {
            "model_type": family,
            "num_key_value_heads": config.get("num_key_value_heads") or heads,
            "head_dim": config.get("head_dim") or hidden // heads,
            "tie_word_embeddings": config.get("tie_word_embeddings", False),
            "attention_bias": "qkv" if family == "qwen2" else "qkvo" if config.get("attention_bias") else "none",
            "mlp_bias": bool(config.get("mlp_bias")),
            "qk_norm": family in ("qwen3", "qwen3_moe"),
        }
        if moe:
            node |= {name: config[name] for name in ("num_experts_per_tok", "moe_intermediate_size")}
            node["num_experts"] = config.get("num_experts") or config["num_local_experts"]  # hub's name, library's name
        return from_node(Architecture, node)
    except (KeyError, TypeError, ZeroDivisionError, ValidationError):
        return None


def foreign_code(config: dict[str, Any]) -> str:
    """The class that only Python code which comes with the model defines; empty where the library has its own.

    Many repositories name code (`auto_map`) for a family that the library has learnt since: then its own is used.
    """
    named = config.get("auto_map")
    if not isinstance(named, dict) or not named:
        return ""
    library = find_spec("transformers")  # found, not imported
    roots = library.submodule_search_locations if library else None
    family = str(config.get("model_type", ""))
    if family.isidentifier() and any((Path(root) / "models" / family).is_dir() for root in roots or ()):
        return ""
    return str(next(iter(named.values())))
