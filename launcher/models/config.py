"""Reads and checks a model's config.json without loading transformers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from launcher.core.bounded_parse import parse_json
from launcher.core.files import read_file
from launcher.core.problems import Problem, error_message, short_repr
from launcher.core.settings import from_node
from launcher.spec.model import Architecture, Family

_REQUIRED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
TEXTS = (
    "config.json", "adapter_config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json",
)  # fmt: skip
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
_SCALING_TYPES = ("linear", "dynamic", "yarn")
"""Types of RoPE scaling whose `factor` extends the number of positions."""
_MAX_SCALING = 2**20
_POSITIVE = (*_REQUIRED, "num_key_value_heads", "head_dim")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(most: int) -> tuple[Callable[[Any], bool], str]:
    """A whole number, or a list of one for each layer, as in some families."""
    return lambda v: isinstance(v, list) or (type(v) is int and 0 <= v <= most), f"a whole number of at most {most:,}"


def _number(valid: Callable[[float], bool], what: str) -> tuple[Callable[[Any], bool], str]:
    """If it is a number: a valid one."""
    return lambda v: not _is_number(v) or valid(v), what


_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("model_type", lambda v: isinstance(v, str) and len(v) <= 200, "a string"),
    ("(torch_)?dtype", lambda v: isinstance(v, str | dict), "a string"),
    ("rope_scaling|rope_parameters|quantization_config", lambda v: isinstance(v, dict), "an object"),
    ("rope_theta", lambda v: isinstance(v, list) or (_is_number(v) and 0 < v < inf), "a number above 0"),
    ("hidden_size|intermediate_size|moe_intermediate_size|vocab_size|head_dim", *_whole(2**24)),
    ("num_hidden_layers", *_whole(2_000)),
    ("num_(attention|key_value)_heads", *_whole(2**20)),
    ("max_position_embeddings", *_whole(2**40)),
    ("num_layers|n_layers?", *_number(lambda x: -1 <= x <= 2_000, "a number of at most 2,000")),
    ("num_labels", *_number(lambda x: -1 <= x <= 2**16, "a number of at most 65,536")),
    ("num_.*", *_number(lambda x: -1 <= x <= 2**20, "a number of at most 1,048,576")),
    (".*(dropout|pdrop)", *_number(lambda x: 0 <= x < 0.9, "0 or 0.1, say,")),  # of more, little would be left
    (".*(norm_eps|norm_epsilon)", *_number(lambda x: 0 <= x <= 0.1, "about 1e-6")),
    ("factor", *_number(lambda x: 0 < x < _MAX_SCALING, f"a number above 0 and of at most {_MAX_SCALING:,}")),
    (".*(eps|epsilon)", *_number(lambda x: 0 <= x < inf, "a finite number")),
    (".*", *_number(lambda x: x == x, "a finite number")),  # not NaN
)
"""Rules for entries of a config.json by name (the first pattern that matches counts): which values are valid, and what
to use. Bounds are above those of any model; with values beyond, every forward pass would give NaN or an error."""
LONGEST = 2 * 2**20
"""Most bytes of a config; libraries take seconds for larger ones, and real ones have thousands."""
LONGEST_TOKENIZER = 16 * 2**20  # it may list many added tokens


def read(folder: Path, name: str = "config.json") -> dict[str, Any] | None:
    """The JSON object in a file of the folder; None where the file is missing or unreadable."""
    try:
        node = parse_json(_text(folder / name))
    except (OSError, ValueError):
        return None
    return node if isinstance(node, dict) else None


def own_tokenizer(folder: Path) -> str:
    """The custom tokenizer class that tokenizer_config.json names in `auto_map`; empty where there is none."""
    entry = (read(folder, "tokenizer_config.json") or {}).get("auto_map")
    entry = entry.get("AutoTokenizer") if isinstance(entry, dict) else entry
    names = entry if isinstance(entry, list) else [entry]
    return next((name for name in names if isinstance(name, str)), "")


def _text(path: Path) -> bytes:
    return read_file(path, LONGEST_TOKENIZER if path.name == "tokenizer_config.json" else LONGEST)


def faults(folder: Path) -> list[Problem]:
    """Problems of the folder's small files that no loader can, or should, read, and of its pipes and devices."""
    files = {path for path in (folder / name for name in TEXTS) if os.path.lexists(path)}  # a link may lead nowhere
    with suppress(OSError):  # a loader would wait forever for pipes, sockets and devices
        files |= {path for path in folder.iterdir() if path.exists() and not path.is_file() and not path.is_dir()}
    wrong = dict[Path, str]()
    for path in sorted(files):
        try:
            if not isinstance(parse_json(_text(path)), dict):
                wrong[path] = "is not a JSON object"
        except (OSError, ValueError) as error:
            wrong[path] = f"cannot be read, {error_message(error)}"
    wrong |= {path: fault for path, fault in _template_faults(folder) if path not in wrong}
    fix = "use the file as its publisher saved it"
    return [Problem(str(path), fault, fix, "bad-file") for path, fault in wrong.items()]


def _template_faults(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files whose chat template is not UTF-8, or not a string, each with its fault."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            read_file(path, LONGEST_TOKENIZER).decode("utf-8")
        except (OSError, ValueError) as error:
            yield path, f"the chat template cannot be read, {error_message(error)}"
    value = (read(folder, "tokenizer_config.json") or {}).get("chat_template")
    named = value if isinstance(value, list) else []
    valid = all(isinstance(one, dict) and {type(one.get("name")), type(one.get("template"))} == {str} for one in named)
    if not valid or not isinstance(value, str | list | dict | None):
        yield folder / "tokenizer_config.json", f"its chat_template is {short_repr(value, 60)}, which is not a string"


def content_faults(config: Mapping[str, Any]) -> list[Problem]:
    """Why a config.json describes no model, or none that can be trained here: quantized weights, impossible
    numbers."""
    faults = ((*_invalid_entries(part), *_contradictions(part)) for part in parts(config))
    return [*_quantized(config), *chain.from_iterable(faults)]


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


def _invalid_entries(config: Mapping[str, Any]) -> Iterator[Problem]:
    is_known = config.get("model_type") in get_args(Family)  # other families may lack attention
    entries = dict(config)
    for key in ("rope_parameters", "rope_scaling"):
        scaling = config.get(key)
        entries |= {f"{key}.{name}": value for name, value in scaling.items()} if isinstance(scaling, dict) else {}
    for path, value in entries.items():
        name = path.rpartition(".")[2]
        _, is_valid, what = next(rule for rule in _RULES if re.fullmatch(rule[0], name, re.DOTALL))
        is_missing = is_known and value in (None, 0) and path in (_REQUIRED if value is None else _POSITIVE)
        if is_missing or (value is not None and not is_valid(value)):
            got = f"{path} is {'null' if value is None else short_repr(value, 30)} in config.json"
            yield Problem("", got, f"use {what} for {name}, as its publisher has it", "bad-file")


def _contradictions(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Numbers with which nothing could be computed, as they contradict each other."""
    if config.get("sliding_window") == 0 and config.get("use_sliding_window") is not False:
        got = "sliding_window is 0 in config.json, so that no token would be seen"
        yield Problem("", got, "use null where all tokens are seen", "bad-file")
    heads, shared = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if type(heads) is int and type(shared) is int and heads > 0 < shared and heads % shared:
        got = (
            f"num_attention_heads is {heads} in config.json, and num_key_value_heads {shared}, which does not divide it"
        )
        yield Problem("", got, "use num_key_value_heads as its publisher has it", "bad-file")
    per_token = config.get("num_experts_per_tok")
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        n_experts = config.get(name)
        if isinstance(per_token, int) and isinstance(n_experts, int) and per_token > n_experts > 0:
            got = f"num_experts_per_tok is {per_token} in config.json, and {name} {n_experts}"
            yield Problem("", got, f"use num_experts_per_tok of at most {n_experts}", "bad-file")


def architecture(config: dict[str, Any]) -> Architecture | None:
    """The sizes in a config.json; None for an unsupported family, or where a number is missing or impossible."""
    if [*_invalid_entries(config)]:
        return None
    family = config.get("model_type")
    moe = family == "qwen3_moe"
    if moe and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        return None  # some of its layers have no experts
    try:
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        node = {name: config[name] for name in _REQUIRED} | {
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
    """Tokens of the longest sequence, under any family's name for it; None where nothing bounds it."""
    if config.get("alibi") or config.get("position_embedding_type") == "alibi":
        return None  # ALiBi biases by distance, without a limit
    for part in reversed(parts(config)):
        for name in _POSITIONS:
            value = part.get(name)
            if type(value) is int and 0 < value <= 2**40:
                return _scale_positions(part, value)
    return None


def _scale_positions(config: Mapping[str, Any], unscaled: int) -> int:
    """The positions after RoPE scaling, counted as vLLM does: with yarn `max_position_embeddings` may be scaled
    already, with llama3 and longrope it always is."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if str(config.get("model_type")).startswith("gemma3"):  # its number is scaled already
        return unscaled
    if not isinstance(scaling, dict) or (kind := scaling.get("rope_type", scaling.get("type"))) not in _SCALING_TYPES:
        return unscaled
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    start = original if kind == "yarn" and isinstance(original, int) else unscaled
    if not isinstance(factor, int | float) or not 1 <= factor <= _MAX_SCALING or not 0 < start <= 2**40:
        return unscaled
    return max(unscaled, int(start * factor))


def foreign_code(config: dict[str, Any]) -> str:
    """The class defined only by Python code that comes with the model; empty where transformers has the family.

    Many repositories name code (`auto_map`) for a family that transformers has added since, whose code is then used.
    """
    auto_map = config.get("auto_map")
    if not isinstance(auto_map, dict) or not auto_map:
        return ""
    library = find_spec("transformers")  # found without importing it
    roots = library.submodule_search_locations if library else None
    family = str(config.get("model_type", ""))
    if family.isidentifier() and any((Path(root) / "models" / family).is_dir() for root in roots or ()):
        return ""
    return str(next(iter(auto_map.values())))
