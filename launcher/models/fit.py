"""What loading found of weights that do not fit their config.json, in words that say what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from launcher.core.problems import Problem, shortened
from launcher.models.config import parts

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers", "decoder_layers")
_SIZES = ("hidden_size", "intermediate_size", "vocab_size", "moe_intermediate_size", "head_dim")
"""Of which each is a dimension of a tensor, or divides one."""
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?)\.(\d+)\.")
_SCORERS = re.compile(r"(^|\.)(score|classifier|v_head|value_head|reward_head|regression_head|rm_head)\.")
_PACKED_END = re.compile(r"\.(qweight|qzeros|weight_packed|weight_scale|weight_scale_inv|absmax|quant_state)\b")
"""How names end that GPTQ, AWQ, compressed-tensors, FP8 and bitsandbytes give to parts of a quantized matrix."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.]+")
_PACKAGES = (r"pip install (?:-U |--upgrade )?([A-Za-z0-9_.-]+)",
             r"[Rr]equires (?:the )?`?([A-Za-z0-9_.-]+)`? (?:library|package)",
             r"No module named '([A-Za-z0-9_-]+)")  # fmt: skip
"""How libraries name a package that they miss."""
_WRAPPERS = {
    "_orig_mod.": "torch.compile", "module.": "DistributedDataParallel", "_fsdp_wrapped_module.": "FSDP",
    "base_model.model.": "peft",
}  # fmt: skip
"""What puts a module into another one, by the name that its weights begin with there."""


@dataclass(frozen=True)
class LoadReport:
    """What transformers found when it loaded a folder; of many names the first."""

    step: str = "done"
    """Where it ended: config, class, build, load, generation, memory, time, or done."""
    kind: str = ""
    message: str = ""
    """What was raised in that step, its class and its text."""
    lasting: bool = True
    """Whether it follows from the folder and the versions of the libraries: then it is remembered."""
    model_class: str = ""
    layers: int | None = None
    """Of the model."""
    held_layers: int = 0
    """Of the file."""
    expected: int = 0
    """Tensors of the model."""
    missing: Sequence[str] = ()
    n_missing: int = 0
    unexpected: Sequence[str] = ()
    """Names of the file that the model does not have."""
    n_unexpected: int = 0
    surplus: Sequence[str] = ()
    """Weights among the unexpected, in layers that the model has: without them a layer computes something else."""
    n_surplus: int = 0
    mismatched: Sequence[Sequence[Any]] = ()
    """Name, shape in the file, shape of the model."""
    n_mismatched: int = 0
    not_floats: Sequence[Sequence[str]] = ()
    """Weights that are stored as other numbers: name, format by its name in safetensors."""
    head: str = ""
    """The name of the output layer's weight."""
    labels: int = 1
    """Of a classifier, its outputs."""
    masked: bool = False
    """It reads tokens in both directions."""


def problems(report: LoadReport, config: Mapping[str, Any], where: str, files: Sequence[str]) -> list[Problem]:
    """Why the model must not be trained: it cannot be made, or weights would be random numbers. `files` hold them."""
    if report.step != "done":
        return [_not_made(report, config, where)]
    if report.masked:
        got = f"{config.get('model_type')} reads tokens in both directions (masked), so it cannot write"
        return [Problem(where, got, "use a causal language model (...ForCausalLM)", "not-supported")]
    found = [_missing(report, config, where, files)] if report.missing else []
    if report.surplus and not report.missing:  # else they are named with what is missing
        got = f"{report.n_surplus} tensors of the weights are in layers that have no place for them by config.json"
        fix = f"use the config.json that was saved with these weights (its model_type is {config.get('model_type')})"
        found.append(Problem(where, f"{got}, {_first(report.surplus)}", fix, "bad-file"))
    if where == "reward.path" and report.labels != 1:
        got = f"the model has {report.labels} outputs"
        found.append(Problem(where, got, "use a model with one", "not-supported"))
    if report.mismatched:
        found.append(_mismatched(report, config, where))
    if report.not_floats:
        name, kind = report.not_floats[0]
        got = f"{name} is stored as {kind.lower().replace('i', 'int')}, a quantized format, which is not trained"
        found.append(Problem(where, got, "use the unquantized weights (float32, float16 or bfloat16)", "not-supported"))
    return found


def absent(config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], where: str) -> list[Problem]:
    """More layers or experts in config.json than the weights have, by far, or a size of more numbers than any tensor
    has: the model is not made, which would take long, or more than torch can count."""
    numbers = [of for name in shapes if (of := _layer(name)) is not None]
    held, sizes = max(numbers, default=0) + 1, {size for shape in shapes.values() for size in shape}
    largest = max([*map(prod, shapes.values()), 2**20])  # others are named by tensors of other shapes
    found = []
    for name, count in ((name, count) for part in parts(config) for name, count in part.items()):
        if type(count) is not int:
            continue
        if name in _LAYERS and numbers and count > held + 100:
            got = f"{name} is {count} in config.json, and the weights have {held} layers"
            fix = f"use {name} {held} in config.json, or the weights of all layers"
            found.append(Problem(where, got, fix, "bad-file"))
        elif "experts" in name and count > max(len(shapes), 1000) and count not in sizes:  # a router has a row for each
            got = f"{name} is {count} in config.json, and no tensor of the weights has a size of {count}"
            found.append(Problem(where, got, f"use {name} as its publisher has it", "bad-file"))
        elif name in _SIZES and shapes and count > largest:
            got = f"{name} is {count} in config.json, and no tensor of the weights has more than {largest:,} numbers"
            found.append(Problem(where, got, f"use {name} as its publisher has it", "bad-file"))
    return found


def warnings(report: LoadReport, where: str) -> list[Problem]:
    """What is in the weights and would not be loaded, where that is a part of the model."""
    over = any((_layer(name) or -1) >= (report.layers or 0) for name in report.unexpected)
    if not over or report.missing or report.surplus or not report.layers:
        return []
    got = f"num_hidden_layers is {report.layers}, and layers.{report.layers} and later ones of the weights are left out"
    return [Problem(where, got, f"use num_hidden_layers {report.held_layers} in config.json, unless that is meant")]


def _architectures(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    return ", ".join(map(str, named)) if isinstance(named, list) else ""


# ---- a model that cannot be made


def _not_made(report: LoadReport, config: Mapping[str, Any], where: str) -> Problem:
    family, message = config.get("model_type"), " ".join(report.message.split())
    fix = "use the config.json as its publisher saved it"
    if report.step == "class":
        named = _architectures(config) or family
        kind = "an encoder-decoder" if config.get("is_encoder_decoder") else "a vision, audio or encoder model"
        wanted = "a sequence classifier" if where == "reward.path" else "a causal language model (...ForCausalLM)"
        got = f"{named} (model_type {family}) is {kind}, which cannot be loaded as {wanted}"
        return Problem(where, got, f"use {wanted}", "not-supported")
    if report.step in ("time", "memory"):
        got = f"making the model that config.json describes takes too much {report.step}"
        return Problem(where, got, "correct num_hidden_layers and the other numbers in config.json", "bad-file")
    if report.kind == "ImportError":
        return _not_installed(message, family, where)
    if not family:
        fix = "use the config.json as its publisher saved it, with its model_type"
        return Problem(where, "config.json names no model_type", fix, "bad-file")
    if report.step == "generation":
        got = f"generation_config.json cannot be used: {shortened(message, 200)}"
        return Problem(where, got, "correct it, or remove the file", "bad-file")
    if "does not recognize this architecture" in message:
        got = f"the installed transformers has no model_type {family!r}"
        return Problem(where, got, "correct model_type in config.json, or install a transformers that has it",
                       "not-supported")  # fmt: skip
    if "Padding_idx" in message:
        pad, known = config.get("pad_token_id"), config.get("vocab_size")
        got = f"pad_token_id is {pad} in config.json, and vocab_size {known}"
        return Problem(where, got, "use a pad_token_id below vocab_size, or null, in config.json", "bad-file")
    named = _entry(config, message)
    text = re.sub(r"^(Class v|V)alidation error for \w+ '\w+': (\w+: )?", "", message).rstrip(".")
    text = f"there is no {text}" if report.kind == "KeyError" else text
    what = "the weights cannot be loaded" if report.step == "load" else "no model can be made from config.json"
    got = f"{what}: {shortened(text, 200)}"
    if named:
        got, fix = f"{got} ({named[0]} is {named[1]!r})", f"correct {named[0]} in config.json"
    return Problem(where, got, fix, "bad-file")


def _not_installed(message: str, family: Any, where: str) -> Problem:
    named = next((found for pattern in _PACKAGES if (found := re.search(pattern, message))), None)
    got = f"{family} needs {named[1]}, which is not installed" if named else f"{family} needs a package: {message}"
    return Problem(where, shortened(got, 200), f"pip install {named[1]}" if named else "install it", "not-found")


def _entry(config: Mapping[str, Any], message: str, above: str = "") -> tuple[str, Any] | None:
    """The entry of config.json that an error speaks of: by its name, or else by its text."""
    for name, value in config.items():
        if re.search(rf"\b{re.escape(str(name))}\b", message) and not isinstance(value, dict):
            return f"{above}{name}", value
    for name, value in config.items():
        if isinstance(value, str) and value and repr(value) in message:
            return f"{above}{name}", value
        if isinstance(value, dict) and (found := _entry(value, message, f"{above}{name}.")):
            return found
    return None


# ---- weights that are not there


def _missing(report: LoadReport, config: Mapping[str, Any], where: str, files: Sequence[str]) -> Problem:
    got = f"{report.n_missing} of {report.expected} tensors are not in the weights, {_first(report.missing)}"
    fix = f"use all of {files[0] if len(files) == 1 else 'the weights'} and the config.json that was saved with it"
    held = report.held_layers
    if added := _added(report):
        begins = f"whose names have {added!r} in them"
        got = f"{got}: the weights hold {shortened(report.unexpected[0], 200)}, {begins}"
        adapted = any("lora_" in name for name in report.unexpected)
        fix = "save the model after merge_and_unload() of peft" if adapted else _renaming(added, files)
    elif packed := next((name for name in report.unexpected if _PACKED_END.search(name)), None):
        got = f"{got}: the weights are quantized, they hold {packed}"
        fix = "use the unquantized checkpoint (bfloat16)"
    elif where == "reward.path" and all(_SCORERS.search(name) for name in report.missing):
        got = f"{got}: no layer of the weights gives a score"
        fix = "use a reward model with one output (AutoModelForSequenceClassification)"
    elif [*report.missing] == [report.head]:
        got, fix = _without_head(report, config)
    elif held and all((_layer(name) or 0) >= held for name in report.missing):
        got = f"num_hidden_layers is {report.layers} in config.json, and the weights have {held} layers: {got}"
        fix = f"use num_hidden_layers {held} in config.json, or the weights of all layers"
    elif report.unexpected:
        got = f"{got}; they hold others, {_first(report.unexpected)}"
        fix = f"use the config.json that was saved with these weights (its model_type is {config.get('model_type')})"
    return Problem(where, f"{got}; what is missing would be random numbers", fix, "bad-file")


def _without_head(report: LoadReport, config: Mapping[str, Any]) -> tuple[str, str]:
    """What was found, and what to use."""
    got, named = f"the weights have no output layer {report.head}", _architectures(config)
    scorer = next((name for name in report.unexpected if _SCORERS.search(name)), None)
    if scorer or (named and "CausalLM" not in named):
        got = f"{got}: they are those of {named or 'another kind of model'}" + (f", with {scorer}" if scorer else "")
        return got, "use a language model (...ForCausalLM); a reward model belongs to reward=model reward.path"
    return got, ("use weights saved by AutoModelForCausalLM; where the embedding is the output layer, set"
                 " tie_word_embeddings to true in config.json")  # fmt: skip


def _first(names: Sequence[str], count: int = 3) -> str:
    return "such as " * (len(names) > count) + ", ".join(names[:count])


def _layer(name: str) -> int | None:
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _added(report: LoadReport) -> str:
    """What the names of the file have more than those of the model, for most of what is missing."""
    more = Counter(added for name in report.unexpected for added in _between(name, report.missing))
    (added, count), *_ = more.most_common(1) or [("", 0)]
    return added if count * 2 > len(report.missing) else ""


def _between(name: str, missing: Sequence[str]) -> set[str]:
    """`x.` of `a.x.b` where `a.b` is missing."""
    parts, found = name.split("."), set[str]()
    for start in range(len(parts)):
        for end in range(start + 1, min(start + 4, len(parts))):
            if ".".join((*parts[:start], *parts[end:])) in missing:
                found.add(".".join(parts[start:end]) + ".")
    return found


def _renaming(added: str, files: Sequence[str]) -> str:
    wrapper = _WRAPPERS.get(added)
    of = f"of the inner module, not of the one that {wrapper} made" if wrapper else "of the text model alone"
    if [*files] != ["model.safetensors"] or not _PLAIN_NAME.fullmatch(added):  # what is printed is typed into a shell
        return f"save the weights {of}, so that names are without {added!r}"
    line = (
        "python -c \"from safetensors.torch import *; p = 'model.safetensors';"
        f" save_file({{n.replace('{added}', '', 1): w for n, w in load_file(p).items()}}, p, {{'format': 'pt'}})\""
    )
    return f"save the weights {of}, or take the prefix away in the model's folder with {line}"


# ---- weights of other shapes


def _mismatched(report: LoadReport, config: Mapping[str, Any], where: str) -> Problem:
    name, found, expected = report.mismatched[0]
    got = f"{name} has shape {list(found)} in the weights and {list(expected)} by config.json"
    if report.n_mismatched > 1:
        got = f"{got}, and {report.n_mismatched - 1} more tensors differ"
    fix = f"correct {' or '.join(_sizes(report, config))} in config.json, or use the weights that it was saved with"
    return Problem(where, got, fix, "bad-file")


def _sizes(report: LoadReport, config: Mapping[str, Any]) -> list[str]:
    """The entries of config.json that the differing dimensions come from, as far as names and numbers tell."""
    names = [str(name) for name, *_ in report.mismatched]
    if all(_SCORERS.search(name) for name in names):
        return ["num_labels"]
    if all(re.search(r"\b[kv]_proj\b", name) for name in names):
        return ["num_key_value_heads"]
    differing = {wanted for _, found, expected in report.mismatched
                 for here, wanted in zip(found, expected, strict=False) if here != wanted}  # fmt: skip
    return [name for name in _SIZES if config.get(name) in differing] or ["the sizes"]
