"""What loading found of weights that do not fit their config.json, in words that say what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.core.problems import Problem, short_repr, shortened

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?)\.(\d+)\.")
_SCORERS = re.compile(r"(^|\.)(score|classifier|v_head|value_head|reward_head|regression_head|rm_head)\.")
_PACKED_END = re.compile(r"\.(qweight|qzeros|weight_packed|weight_scale|weight_scale_inv|absmax|quant_state)\b")
"""How names end that GPTQ, AWQ, compressed-tensors, FP8 and bitsandbytes give to parts of a quantized matrix."""


@dataclass(frozen=True)
class LoadReport:
    """What transformers found when it loaded a folder."""

    step: str = "done"
    """Where it ended: config, class, build, load, generation, memory, time, or done."""
    kind: str = ""
    message: str = ""
    """What was raised in that step, its class and its text."""
    lasting: bool = True
    """Whether it follows from the folder and the versions of the libraries: then it is remembered."""
    layers: int | None = None
    """Of the model."""
    held_layers: int = 0
    """Of the file."""
    expected: int = 0
    """Tensors of the model."""
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    """Names of the file that the model does not have."""
    surplus: Sequence[str] = ()
    """Weights among the unexpected, in layers that the model has: without them a layer computes something else."""
    mismatched: Sequence[Sequence[Any]] = ()
    """Name, shape in the file, shape of the model."""
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
        got = f"{len(report.surplus)} tensors of the weights are in layers that have no place for them by config.json"
        fix = f"use the config.json that was saved with these weights (its model_type is {config.get('model_type')})"
        found.append(Problem(where, f"{got}, {_first(report.surplus)}", fix, "bad-file"))
    if where == "reward.path" and report.labels != 1:
        got = f"the model has {report.labels} outputs"
        found.append(Problem(where, got, "use a model with one", "not-supported"))
    if report.mismatched:
        found.append(_mismatched(report, where))
    if report.not_floats:
        name, kind = report.not_floats[0]
        got = f"{name} is stored as {kind.lower().replace('i', 'int')}, a quantized format, which is not trained"
        found.append(Problem(where, got, "use the unquantized weights (float32, float16 or bfloat16)", "not-supported"))
    return found


def warnings(report: LoadReport, where: str) -> list[Problem]:
    """What is in the weights and would not be loaded, where that is a part of the model."""
    over = any(_layer(name, -1) >= (report.layers or 0) for name in report.unexpected)
    if not over or report.missing or report.surplus or report.layers is None:
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
        got = f"{family} needs a package that is not installed: {shortened(message, 200)}"
        return Problem(where, got, "install it (pip install)", "not-found")
    if not family:
        fix = "use the config.json as its publisher saved it, with its model_type"
        return Problem(where, "config.json names no model_type", fix, "bad-file")
    if report.step == "generation":
        got = f"generation_config.json cannot be used: {shortened(message, 200)}"
        return Problem(where, got, "correct it, or remove the file", "bad-file")
    if "does not recognize this architecture" in message:
        got = f"the installed transformers has no model_type {short_repr(family)}"
        return Problem(where, got, "correct model_type in config.json, or install a transformers that has it",
                       "not-supported")  # fmt: skip
    if "Padding_idx" in message:
        pad, known = config.get("pad_token_id"), config.get("vocab_size")
        got = f"pad_token_id is {pad} in config.json, and vocab_size {known}"
        return Problem(where, got, "use a pad_token_id below vocab_size, or null, in config.json", "bad-file")
    text = re.sub(r"^(Class v|V)alidation error for \w+ '\w+': (\w+: )?", "", message).rstrip(".")
    text = f"there is no {text}" if report.kind == "KeyError" else text
    what = "the weights cannot be loaded" if report.step == "load" else "no model can be made from config.json"
    got = f"{what}: {shortened(text, 200)}"
    if named := _entry(config, message):
        got, fix = f"{got} ({named[0]} is {short_repr(named[1])})", f"correct {named[0]} in config.json"
    return Problem(where, got, fix, "bad-file")


def _entry(config: Mapping[str, Any], message: str, above: str = "") -> tuple[str, str] | None:
    """The entry of config.json whose text an error quotes, with the names above it."""
    for name, value in config.items():
        if isinstance(value, dict) and (found := _entry(value, message, f"{above}{name}.")):
            return found
        if isinstance(value, str) and value and repr(value) in message:
            return f"{above}{name}", value
    return None


# ---- weights that are not there


def _missing(report: LoadReport, config: Mapping[str, Any], where: str, files: Sequence[str]) -> Problem:
    got, fix = _what_is_missing(report, config, where)
    if not fix:
        fix = f"use all of {files[0] if len(files) == 1 else 'the weights'} and the config.json that was saved with it"
    return Problem(where, f"{got}; what is missing would be random numbers", fix, "bad-file")


def _what_is_missing(report: LoadReport, config: Mapping[str, Any], where: str) -> tuple[str, str]:
    """What was found, and what to use; the second is empty where no more is known."""
    got = f"{len(report.missing)} of {report.expected} tensors are not in the weights, {_first(report.missing)}"
    held = report.held_layers
    if any("lora_" in name for name in report.unexpected):
        return (
            f"{got}; they hold adapters, {_first(report.unexpected)}",
            "save the model after merge_and_unload() of peft",
        )
    if packed := next((name for name in report.unexpected if _PACKED_END.search(name)), None):
        return f"{got}: the weights are quantized, they hold {packed}", "use the unquantized checkpoint (bfloat16)"
    if where == "reward.path" and all(_SCORERS.search(name) for name in report.missing):
        fix = "use a reward model with one output (AutoModelForSequenceClassification)"
        return f"{got}: no layer of the weights gives a score", fix
    if [*report.missing] == [report.head]:
        return _without_head(report, config)
    if held and all(_layer(name, 0) >= held for name in report.missing):
        fix = f"use num_hidden_layers {held} in config.json, or the weights of all layers"
        return f"num_hidden_layers is {report.layers} in config.json, and the weights have {held} layers: {got}", fix
    if report.unexpected:
        fix = f"use names as in the model (its model_type is {config.get('model_type')}), without those of a wrapper"
        return f"{got}; they hold others, {_first(report.unexpected)}", fix
    return got, ""


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


def _layer(name: str, otherwise: int) -> int:
    found = _LAYER.search(name)
    return int(found[1]) if found else otherwise


# ---- weights of other shapes


def _mismatched(report: LoadReport, where: str) -> Problem:
    name, found, expected = report.mismatched[0]
    got = f"{name} has shape {list(found)} in the weights and {list(expected)} by config.json"
    if len(report.mismatched) > 1:
        got = f"{got}, and {len(report.mismatched) - 1} more tensors differ"
    fix = "correct the sizes in config.json, or use the weights that it was saved with"
    return Problem(where, got, fix, "bad-file")
