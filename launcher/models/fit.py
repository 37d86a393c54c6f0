"""Turns a report on loading into problems: how the weights do not fit their config.json, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.core.problems import Problem, short_repr, shortened

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?)\.(\d+)\.")
_SCORERS = re.compile(r"(^|\.)(score|classifier|v_head|value_head|reward_head|regression_head|rm_head)\.")
_PACKED_END = re.compile(r"\.(qweight|qzeros|weight_packed|weight_scale|weight_scale_inv|absmax|quant_state)\b")
"""Suffixes of the parts of a quantized matrix in GPTQ, AWQ, compressed-tensors, FP8 and bitsandbytes."""


@dataclass(frozen=True)
class LoadReport:
    """Report of transformers on loading a folder."""

    step: str = "done"
    """The step at which loading ended: config, class, build, load, generation, memory, time, or done."""
    kind: str = ""
    message: str = ""
    """Text of the error that was raised in that step; `kind` is its class."""
    lasting: bool = True
    """Whether it depends only on the folder and the libraries' versions, so that it may be cached."""
    layers: int | None = None
    """Number of layers of the model."""
    held_layers: int = 0
    """Number of layers in the files."""
    expected: int = 0
    """Number of tensors of the model."""
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    """Names of tensors in the files that the model does not have."""
    surplus: Sequence[str] = ()
    """Unexpected weights in layers that the model has: without them these layers compute something else."""
    mismatched: Sequence[Sequence[Any]] = ()
    """Name, shape in the files and shape in the model of each tensor that differs."""
    not_floats: Sequence[Sequence[str]] = ()
    """Name and safetensors format of each weight that is not stored as floating point."""
    head: str = ""
    """The name of the output layer's weight."""
    labels: int = 1
    """Number of outputs of a classifier."""
    masked: bool = False
    """Whether attention is bidirectional, as in masked language models."""


def problems(report: LoadReport, config: Mapping[str, Any], where: str, files: Sequence[str]) -> list[Problem]:
    """Why the model must not be trained: it cannot be built, or some weights would be random. `files` hold them."""
    if report.step != "done":
        return [_construction_problem(report, config, where)]
    if report.masked:
        got = f"{config.get('model_type')} reads tokens in both directions (masked), so it cannot write"
        return [Problem(where, got, "use a causal language model (...ForCausalLM)", "not-supported")]
    found = []
    if report.missing:
        got, fix = _describe_missing(report, config, where)
        what = files[0] if len(files) == 1 else "the weights"
        fix = fix or f"use all of {what} and the config.json that was saved with it"
        found.append(Problem(where, f"{got}; what is missing would be random numbers", fix, "bad-file"))
    if report.surplus and not report.missing:  # otherwise they are named with the missing ones
        got = f"{len(report.surplus)} tensors of the weights are in layers that have no place for them by config.json"
        fix = f"use the config.json that was saved with these weights (its model_type is {config.get('model_type')})"
        found.append(Problem(where, f"{got}, {_list_first(report.surplus)}", fix, "bad-file"))
    if where == "reward.path" and report.labels != 1:
        got = f"the model has {report.labels} outputs"
        found.append(Problem(where, got, "use a model with one", "not-supported"))
    if report.mismatched:
        name, stored, expected = report.mismatched[0]
        got = f"{name} has shape {list(stored)} in the weights and {list(expected)} by config.json"
        got += f", and {len(report.mismatched) - 1} more tensors differ" if len(report.mismatched) > 1 else ""
        fix = "correct the sizes in config.json, or use the weights that it was saved with"
        found.append(Problem(where, got, fix, "bad-file"))
    if report.not_floats:
        name, kind = report.not_floats[0]
        got = f"{name} is stored as {kind.lower().replace('i', 'int')}, a quantized format, which is not trained"
        found.append(Problem(where, got, "use the unquantized weights (float32, float16 or bfloat16)", "not-supported"))
    return found


def warnings(report: LoadReport, where: str) -> list[Problem]:
    """Warnings of layers in the weights that would not be loaded."""
    has_later_layers = any(_layer_number(name, -1) >= (report.layers or 0) for name in report.unexpected)
    if not has_later_layers or report.missing or report.surplus or report.layers is None:
        return []
    got = f"num_hidden_layers is {report.layers}, and layers.{report.layers} and later ones of the weights are left out"
    return [Problem(where, got, f"use num_hidden_layers {report.held_layers} in config.json, unless that is meant")]


def _architectures(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


# ---- a model that cannot be made


def _construction_problem(report: LoadReport, config: Mapping[str, Any], where: str) -> Problem:
    family, message = config.get("model_type"), " ".join(report.message.split())
    fix = "use the config.json as its publisher saved it"
    if report.step == "class":
        named = _architectures(config) or family
        kind = "an encoder-decoder" if config.get("is_encoder_decoder") else "a vision, audio or encoder model"
        expected = "a sequence classifier" if where == "reward.path" else "a causal language model (...ForCausalLM)"
        got = f"{named} (model_type {family}) is {kind}, which cannot be loaded as {expected}"
        return Problem(where, got, f"use {expected}", "not-supported")
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
        pad, vocab_size = config.get("pad_token_id"), config.get("vocab_size")
        got = f"pad_token_id is {pad} in config.json, and vocab_size {vocab_size}"
        return Problem(where, got, "use a pad_token_id below vocab_size, or null, in config.json", "bad-file")
    text = re.sub(r"^(Class v|V)alidation error for \w+ '\w+': (\w+: )?", "", message).rstrip(".")
    text = f"there is no {text}" if report.kind == "KeyError" else text
    what = "the weights cannot be loaded" if report.step == "load" else "no model can be made from config.json"
    got = f"{what}: {shortened(text, 200)}"
    if named := _find_quoted_entry(config, message):
        got, fix = f"{got} ({named[0]} is {short_repr(named[1])})", f"correct {named[0]} in config.json"
    return Problem(where, got, fix, "bad-file")


def _find_quoted_entry(config: Mapping[str, Any], message: str, prefix: str = "") -> tuple[str, str] | None:
    """The dotted name and value of the config.json entry that an error message quotes; None if there is none."""
    for name, value in config.items():
        if isinstance(value, dict) and (entry := _find_quoted_entry(value, message, f"{prefix}{name}.")):
            return entry
        if isinstance(value, str) and value and repr(value) in message:
            return f"{prefix}{name}", value
    return None


# ---- weights that are not there


def _describe_missing(report: LoadReport, config: Mapping[str, Any], where: str) -> tuple[str, str]:
    """What is missing, and what to use; the second is empty where no specific advice is known."""
    got = f"{len(report.missing)} of {report.expected} tensors are not in the weights, {_list_first(report.missing)}"
    held = report.held_layers
    if any("lora_" in name for name in report.unexpected):
        return (
            f"{got}; they hold adapters, {_list_first(report.unexpected)}",
            "save the model after merge_and_unload() of peft",
        )
    if packed := next((name for name in report.unexpected if _PACKED_END.search(name)), None):
        return f"{got}: the weights are quantized, they hold {packed}", "use the unquantized checkpoint (bfloat16)"
    if where == "reward.path" and all(_SCORERS.search(name) for name in report.missing):
        fix = "use a reward model with one output (AutoModelForSequenceClassification)"
        return f"{got}: no layer of the weights gives a score", fix
    if [*report.missing] == [report.head]:
        return _describe_missing_head(report, config)
    if held and all(_layer_number(name, 0) >= held for name in report.missing):
        fix = f"use num_hidden_layers {held} in config.json, or the weights of all layers"
        return f"num_hidden_layers is {report.layers} in config.json, and the weights have {held} layers: {got}", fix
    if report.unexpected:
        fix = f"use names as in the model (its model_type is {config.get('model_type')}), without those of a wrapper"
        return f"{got}; they hold others, {_list_first(report.unexpected)}", fix
    return got, ""


def _describe_missing_head(report: LoadReport, config: Mapping[str, Any]) -> tuple[str, str]:
    """What is missing, and what to use, where it is the output layer."""
    got, named = f"the weights have no output layer {report.head}", _architectures(config)
    scorer = next((name for name in report.unexpected if _SCORERS.search(name)), None)
    if scorer or (named and "CausalLM" not in named):
        got = f"{got}: they are those of {named or 'another kind of model'}" + (f", with {scorer}" if scorer else "")
        return got, "use a language model (...ForCausalLM); a reward model belongs to reward=model reward.path"
    return got, ("use weights saved by AutoModelForCausalLM; where the embedding is the output layer, set"
                 " tie_word_embeddings to true in config.json")  # fmt: skip


def _list_first(names: Sequence[str], count: int = 3) -> str:
    return "such as " * (len(names) > count) + ", ".join(names[:count])


def _layer_number(name: str, default: int) -> int:
    match = _LAYER.search(name)
    return int(match[1]) if match else default
