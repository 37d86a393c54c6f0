"""What a model's config.json says, read without the library that would run it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from launcher.core.bounded_parse import parse_json
from launcher.core.files import read_file
from launcher.core.problems import Problem, error_message, short_repr
from launcher.core.settings import from_node
from launcher.spec.model import Architecture, Family

_PLAIN = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
TEXTS = (
    "config.json", "adapter_config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json",
)  # fmt: skip
_NUMBERS = (*_PLAIN, "num_key_value_heads", "head_dim")
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
_SCALED = ("linear", "dynamic", "yarn")
"""Kinds of rotary embeddings whose `factor` makes the model know more positions."""
_MOST_SCALED = 2**20
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "model_type": ("a string", (str,)), "dtype": ("a string", (str, dict)), "torch_dtype": ("a string", (str, dict)),
    "rope_theta": ("a number", (int, float, list)), "rope_scaling": ("an object", (dict,)),
    "rope_parameters": ("an object", (dict,)), "quantization_config": ("an object", (dict,)),
}  # fmt: skip
"""Types of entries of a config.json, where they are not null."""
_NAME = 200  # characters of a model_type at most
_SIZES = ("hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size", "head_dim")
_LARGEST = (
    dict.fromkeys(_SIZES, 2**24)
    | dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 2_000)
    | {"num_labels": 2**16}
)
"""More than any model has; of other numbers of things, such as heads, 2^20, and of all else 2^40."""
_COUNT = re.compile(r"num_|n_layers?$")
LONGEST = 2 * 2**20
"""Bytes of a config; libraries take seconds for larger ones, and real ones have thousands."""
LONGEST_TOKENIZER = 16 * 2**20  # the tokens that were added to it are many


def read(folder: Path, name: str = "config.json") -> dict[str, Any] | None:
    """The JSON object in a file of the folder; None where there is none that can be read."""
    try:
        node = parse_json(_text(folder / name))
    except (OSError, ValueError):
        return None
    return node if isinstance(node, dict) else None


def own_tokenizer(folder: Path) -> str:
    """The class that tokenizer_config.json names and that lies in a Python file; empty where there is none."""
    named = (read(folder, "tokenizer_config.json") or {}).get("auto_map")
    named = named.get("AutoTokenizer") if isinstance(named, dict) else named
    names = named if isinstance(named, list) else [named]
    return next((name for name in names if isinstance(name, str)), "")


def _text(path: Path) -> bytes:
    return read_file(path, LONGEST_TOKENIZER if path.name == "tokenizer_config.json" else LONGEST)


def faults(folder: Path) -> list[Problem]:
    """Which of the folder's small texts no loader could, or should, read, and what lies there that is no file."""
    texts = {path for path in (folder / name for name in TEXTS) if os.path.lexists(path)}  # a link may lead nowhere
    wrong = {path: fault for path in sorted(texts | _no_files(folder)) if (fault := _fault(path))}
    wrong |= {path: fault for path, fault in _template_faults(folder) if path not in wrong}
    fix = "use the file as its publisher saved it"
    return [Problem(str(path), fault, fix, "bad-file") for path, fault in wrong.items()]


def _template_faults(folder: Path) -> Iterator[tuple[Path, str]]:
    """Chat templates that are not UTF-8, or not strings."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            read_file(path, LONGEST_TOKENIZER).decode("utf-8")
        except (OSError, ValueError) as error:
            yield path, f"the chat template cannot be read, {error_message(error)}"
    given = (read(folder, "tokenizer_config.json") or {}).get("chat_template")
    named = given if isinstance(given, list) else []
    texts = all(isinstance(one, dict) and {type(one.get("name")), type(one.get("template"))} == {str} for one in named)
    if not texts or not isinstance(given, str | list | dict | None):
        yield folder / "tokenizer_config.json", f"its chat_template is {short_repr(given, 60)}, which is not a string"


def _no_files(folder: Path) -> set[Path]:
    """Pipes, sockets and devices: a loader would wait for them."""
    with suppress(OSError):
        return {path for path in folder.iterdir() if path.exists() and not path.is_file() and not path.is_dir()}
    return set()


def _fault(path: Path) -> str:
    try:
        return "" if isinstance(parse_json(_text(path)), dict) else "is not a JSON object"
    except (OSError, ValueError) as error:
        return f"cannot be read, {error_message(error)}"


def content_faults(config: Mapping[str, Any]) -> list[Problem]:
    """Why no model can be made from a config.json, or none that is trained here: quantized weights, impossible
    numbers."""
    checks = (_of_other_kinds, _impossible, _out_of_range)
    return [*_quantized(config), *(fault for part in parts(config) for check in checks for fault in check(part))]


def parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The config, and that of the language model within a composite one."""
    inner = config.get("text_config")
    return [config, inner] if isinstance(inner, dict) else [config]


def _quantized(config: Mapping[str, Any]) -> Iterator[Problem]:
    for node in (node.get(name) for node in parts(config) for name in ("quantization_config", "compression_config")):
        if not isinstance(node, dict):
            continue
        bits = 4 if node.get("load_in_4bit") else 8 if node.get("load_in_8bit") else node.get("bits")
        method = node.get("quant_method") or ("bitsandbytes" if bits else None)
        if method is None:
            continue
        how = f"{method}, {bits} bits" if bits else method
        got = f"the weights are quantized ({how}), which are not trained here, nor do adapters (QLoRA) train on them"
        fix = "use the unquantized checkpoint (bfloat16); model.lora_rank trains adapters on that in less memory"
        yield Problem("", got, fix, "not-supported")
        return


def _of_other_kinds(config: Mapping[str, Any]) -> Iterator[Problem]:
    for name, (kind, kinds) in _KINDS.items():
        value = config.get(name)
        long = name == "model_type" and isinstance(value, str) and len(value) > _NAME
        if value is not None and (long or not isinstance(value, kinds) or isinstance(value, bool)):
            got = f"{name} is {short_repr(value, 30)} in config.json"
            yield Problem("", got, f"use {kind} for {name}, as its publisher has it", "bad-file")


def _impossible(config: Mapping[str, Any]) -> Iterator[Problem]:
    known = config.get("model_type") in get_args(Family)  # others may have layers without attention
    counts = [name for name, value in config.items() if type(value) is int and _COUNT.match(name)]
    needed = set(_PLAIN) & config.keys() if known else set[str]()
    for name in dict.fromkeys((*_NUMBERS, *counts)):
        value, least = config.get(name), int(known) if name in _NUMBERS else -1
        most = _LARGEST.get(name, 2**20 if name.startswith("num_") else 2**40)
        if isinstance(value, list) or (value is None and name not in needed):
            continue  # a list: one for each layer, in some families
        if type(value) is not int or not least <= value <= most:
            shown = "null" if value is None else short_repr(value, 30)
            fix = f"use a whole number of at most {most:,} for {name}, as its publisher has it"
            yield Problem("", f"{name} is {shown} in config.json", fix, "bad-file")


_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (".*(dropout|pdrop)", lambda x: 0 <= x < 0.9, "{name} as its publisher has it, such as 0 or 0.1"),  # little is left
    (".*(norm_eps|norm_epsilon)", lambda x: 0 <= x <= 0.1, "{name} of about 1e-6, as its publisher has it"),
    ("rope_theta", lambda x: 0 < x < inf, "{name} above 0, as its publisher has it"),
    (
        "factor",
        lambda x: 0 < x < _MOST_SCALED,
        f"{{name}} above 0 and of at most {_MOST_SCALED:,}, as its publisher has it",
    ),
    (".*(eps|epsilon)", lambda x: 0 <= x < inf, "a finite {name}, as its publisher has it"),
    (".*", lambda x: x == x, "a finite {name}, as its publisher has it"),  # not NaN
)  # fmt: skip
"""Of the numbers whose names fit a pattern (the first one counts): whether one is possible, and what to use."""


def _out_of_range(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Numbers with which every result would be NaN or an error."""
    parts = {"": config}
    parts |= {f"{key}.": of for key in ("rope_parameters", "rope_scaling") if isinstance(of := config.get(key), dict)}
    for place, name, value in ((place, *item) for place, part in parts.items() for item in part.items()):
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        _, possible, advice = next(rule for rule in _RANGES if re.fullmatch(rule[0], name, re.DOTALL))
        if not possible(value):
            got = f"{place}{name} is {short_repr(value, 30)} in config.json"
            yield Problem("", got, f"use {advice.format(name=name)}", "bad-file")
    if config.get("sliding_window") == 0 and config.get("use_sliding_window") is not False:
        got = "sliding_window is 0 in config.json, so that no token would be seen"
        yield Problem("", got, "use null where all tokens are seen", "bad-file")
    yield from _contradictions(config)


def _contradictions(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Numbers that do not fit each other."""
    heads, shared = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if type(heads) is int and type(shared) is int and heads > 0 < shared and heads % shared:
        got = (
            f"num_attention_heads is {heads} in config.json, and num_key_value_heads {shared}, which does not divide it"
        )
        yield Problem("", got, "use num_key_value_heads as its publisher has it", "bad-file")
    taken = config.get("num_experts_per_tok")
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        most = config.get(name)
        if isinstance(taken, int) and isinstance(most, int) and taken > most > 0:
            got = f"num_experts_per_tok is {taken} in config.json, and {name} {most}"
            yield Problem("", got, f"use num_experts_per_tok of at most {most}", "bad-file")


def architecture(config: dict[str, Any]) -> Architecture | None:
    """Its numbers; None for a family that is not counted here, or where a number is missing."""
    if [*_impossible(config)]:
        return None
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


def positions(config: Mapping[str, Any]) -> int | None:
    """Tokens of the longest sequence, by the names that families have for it; None where nothing bounds it."""
    if config.get("alibi") or config.get("position_embedding_type") == "alibi":
        return None  # distances, which have no end
    for part in reversed(parts(config)):
        for name in _POSITIONS:
            value = part.get(name)
            if type(value) is int and 0 < value <= 2**40:
                return _scaled(part, value)
    return None


def _scaled(config: Mapping[str, Any], known: int) -> int:
    """`known` positions, or those that rotary embeddings are scaled to, as vLLM also counts them: of yarn
    max_position_embeddings may be the scaled ones already; of llama3 and longrope they always are."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if str(config.get("model_type")).startswith("gemma3"):  # whose are scaled already
        return known
    if not isinstance(scaling, dict) or (kind := scaling.get("rope_type", scaling.get("type"))) not in _SCALED:
        return known
    factor, before = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    start = before if kind == "yarn" and isinstance(before, int) else known
    if not isinstance(factor, int | float) or not 1 <= factor <= _MOST_SCALED or not 0 < start <= 2**40:
        return known
    return max(known, int(start * factor))


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
