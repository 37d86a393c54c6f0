"""Merges models: several are mixed, or an adapter is added into its base by peft.

First every input is inspected and all problems are reported at once; then the result is computed, as a whole in memory,
and written. Only then is the folder renamed to its final name.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from launcher.core.problems import Problem, Problems, error_message, short_repr, shortened, suggest
from launcher.engines.torch.model.whole import load_whole
from launcher.models.adapter import problems as adapter_problems
from launcher.models.pretrained import base_folder
from launcher.tools.merge.folder import (
    CONFIG,
    DTYPES,
    ModelFolder,
    copy_neighbours,
    draft_folder,
    find_differences,
    list_few,  # fmt: skip
    open_model,
    out_problems,
    write_json,
)
from launcher.tools.merge.methods import METHODS, Method

LORA = "lora"
SHARD = "5GB"  # largest size of a file of weights

OnMergeProgress = Callable[[str, int, int], None]
"""Takes what is being done, and how many of how many bytes are done."""


@dataclass(frozen=True)
class MergeRequest:
    """What to merge, and how. `options` are the method's parameters that the user gave, by name."""

    method: str
    models: tuple[str, ...]
    out: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    base: str | None = None


@dataclass(frozen=True)
class MergeResult:
    """The model that was written."""

    path: Path
    tensors: int
    bytes: int
    files: Mapping[str, str]
    """sha256 of each."""
    notes: tuple[str, ...]
    """Notes for the user."""


def merge(request: MergeRequest, show: OnMergeProgress) -> MergeResult:
    """Make the folder `request.out`. Raises `Problems`, and then nothing is left there."""
    return _merge_adapter(request, show) if request.method == LORA else _mix_models(request, show)


# ---- several models


def _mix_models(request: MergeRequest, show: OnMergeProgress) -> MergeResult:
    method, problems = _parse_method(request)
    given = [*request.models, *([request.base] if request.base else [])]
    models, unusable = _open_models(given, adapters=False, fix="use --method lora to make it a model")
    problems += unusable + _compare_models(models)
    formats = {name: DTYPES[tensor.dtype] for name, tensor in (models[0].tensors if models else {}).items()}
    sizes = {name: prod(models[0].tensors[name].shape) * dtype.itemsize for name, dtype in formats.items()}
    if problems := [*problems, *_common_problems(request, models, sum(sizes.values()))]:
        raise Problems(problems)

    with draft_folder(request.out) as draft:
        mixed, done = dict[str, Tensor](), 0
        for name, dtype in formats.items():
            mixed[name] = _mix_tensor(name, models, method).to(dtype)
            done += sizes[name]
            show("mixing", done, sum(sizes.values()))
        save_torch_state_dict(mixed, draft, max_shard_size=SHARD)
        copy_neighbours(models[0].path, draft)
        write_json(draft / CONFIG, models[0].config)
        return _finish(request, draft, models)


def _compare_models(models: Sequence[ModelFolder]) -> list[Problem]:
    """Why the models cannot be mixed with each other."""
    paths = [model.path.resolve() for model in models]
    repeated = [model for index, model in enumerate(models) if paths[index] in paths[:index]]
    problems = [Problem(model.given, "is given twice", "give each model once") for model in repeated]
    return problems + [difference for model in models[1:] for difference in find_differences(models[0], model)]


def _parse_method(request: MergeRequest) -> tuple[Method, list[Problem]]:
    """The method with its parameters, and what is wrong with them; `linear` where there is none of that name."""
    if request.method not in METHODS:
        fix = suggest(request.method, [*METHODS, LORA])
        problem = Problem("--method", f"no method {short_repr(request.method)}", fix, "unknown-choice")
        return METHODS["linear"](), [problem]
    kind = METHODS[request.method]
    known = {parameter.name for parameter in fields(kind)}
    problems = [_no_such_option(name, request.method) for name in request.options if name not in known]
    method = kind(**{name: value for name, value in request.options.items() if name in known})
    problems += method.problems(len(request.models))
    if kind.with_base and not request.base:
        got = f"{request.method} needs the model that the others came from"
        problems.append(Problem("--base", got, "give its folder"))
    if request.base and not kind.with_base:
        problems.append(Problem("--base", f"{request.method} looks at none", "leave it out"))
    return method, problems


def _mix_tensor(name: str, folders: Sequence[ModelFolder], method: Method) -> Tensor:
    """One tensor of the result: 16-bit floats are mixed in float32, others in float64. Raises `Problems` where integers
    differ."""
    first, values = folders[0].tensors[name], [folder.tensors[name].load() for folder in folders]
    if not first.is_float:
        for folder, value in zip(folders, values, strict=True):
            if not value.equal(values[0]):
                got = f"{name} ({first.dtype}) differs from {folders[0].given}'s"
                raise Problems(Problem(folder.given, got, "whole numbers cannot be mixed, so use equal ones"))
        return values[0]
    wide = torch.float32 if all(value.dtype.itemsize == 2 for value in values) else torch.float64
    upcast = [value.to(wide) for value in values]
    base = upcast.pop() if method.with_base else None
    return method.mix(upcast, base)


# ---- an adapter and its base


def _merge_adapter(request: MergeRequest, show: OnMergeProgress) -> MergeResult:
    """Adds an adapter into its base in float32, by peft and transformers, which hold the whole model in memory."""
    problems = [_no_such_option(name, LORA) for name in request.options]
    if len(request.models) != 1:
        got = f"adds one adapter, got {len(request.models)}"
        problems.append(Problem("--method lora", got, "merge one after the other"))
    adapters, unusable = _open_models(request.models[:1], adapters=True, fix="use the folder of a LoRA adapter")
    if problems := [*problems, *unusable]:
        raise Problems(problems)
    (adapter,) = adapters
    if not (place := request.base or base_folder(adapter.path)):
        name = short_repr(adapter.config.get("base_model_name_or_path"))
        got = f"{adapter.given} belongs to {name}, which is not a folder here"
        raise Problems(Problem("--base", got, "give its folder", "not-found"))
    bases, unusable = _open_models([str(place)], adapters=False, fix="use the folder of a whole model")
    if unusable:
        raise Problems(unusable)
    (base,) = bases
    stored = Counter(tensor.dtype for tensor in base.tensors.values() if tensor.is_float).most_common(1)
    dtype = DTYPES[stored[0][0] if stored else "F32"]
    size = sum(prod(tensor.shape) for tensor in base.tensors.values()) * dtype.itemsize
    problems = [problem.within(adapter.given) for problem in adapter_problems(adapter.path, base.path)]
    if problems := [*problems, *_common_problems(request, [base, adapter], size)]:
        raise Problems(problems)
    model = _merged_model(adapter, base).to(dtype)
    with draft_folder(request.out) as draft:
        model.save_pretrained(draft, max_shard_size=SHARD)
        copy_neighbours(base.path, draft)
        copy_neighbours(adapter.path, draft, only_tokenizer=True)
        show("writing", size, size)
        return _finish(request, draft, [base, adapter], _note_lost(draft, base))


def _note_lost(draft: Path, base: ModelFolder) -> list[Problem]:
    """A note on the tensors of the base that the written model lacks; none where it has all."""
    written = open_model(str(draft)).tensors
    lost = [name for name in base.tensors if name not in written]
    got = f"the result lacks {list_few(lost)}, which transformers does not write for this model"
    return [Problem(base.given, got, "add them from the base if they are needed")] if lost else []


def _merged_model(adapter: ModelFolder, base: ModelFolder) -> Any:
    """The merged model. What peft only warns of (omitted weights or settings, tied embeddings) raises `Problems`."""
    from peft import PeftModel  # noqa: PLC0415  # late: half a second, only for adapters

    disable_progress_bar()
    module = load_whole(AutoModelForCausalLM, str(base.path), base.given, dtype=torch.float32)
    try:
        with warnings.catch_warnings(action="error", category=UserWarning):
            return PeftModel.from_pretrained(module, str(adapter.path)).merge_and_unload(safe_merge=True)
    except (UserWarning, ValueError, RuntimeError, KeyError) as error:
        got = f"peft cannot merge it into {base.given}: {shortened(error_message(error), 300)}"
        fix = "use its own base, and the adapter as peft saved it"
        raise Problems(Problem(adapter.given, got, fix, "bad-file")) from error


# ---- both


def _finish(
    request: MergeRequest, draft: Path, inputs: Sequence[ModelFolder], notes: Sequence[Problem] = ()
) -> MergeResult:
    """Read the weights back. Raises `Problems` for NaN and inf."""
    merged = open_model(str(draft))
    for name, tensor in merged.tensors.items():
        if not tensor.load().isfinite().all():
            holders = (model for model in inputs if name in model.tensors)
            at_fault = next((model for model in holders if not model.tensors[name].load().isfinite().all()), None)
            where = f"{at_fault.given}: {name}" if at_fault else name
            fix = "use models whose numbers are finite, in float32 where a sum is too large"
            raise Problems(Problem(where, f"a number is not finite in {tensor.dtype}", fix, "not-finite"))
    size = sum(prod(tensor.shape) * DTYPES[tensor.dtype].itemsize for tensor in merged.tensors.values())
    return MergeResult(request.out, len(merged.tensors), size, merged.digests(), tuple(map(str, notes)))


def _no_such_option(name: str, method: str) -> Problem:
    return Problem(f"--{name.replace('_', '-')}", f"{method} takes none", "leave it out")


def _open_models(given: Sequence[str], *, adapters: bool, fix: str) -> tuple[list[ModelFolder], list[Problem]]:
    """The models that are `adapters`, or whole ones, and what is wrong with the others; `fix` is for the other kind."""
    folders, problems = [], list[Problem]()
    for name in given:
        try:
            folder = open_model(name)
        except Problems as invalid:
            problems += invalid.problems
        else:
            if folder.is_adapter == adapters:
                folders.append(folder)
            else:
                kind = "a LoRA adapter" if folder.is_adapter else "a whole model"
                problems.append(Problem(name, f"is {kind}", fix))
    return folders, problems


def _common_problems(request: MergeRequest, folders: Sequence[ModelFolder], size: int) -> list[Problem]:
    """Problems of any method: with quantized inputs, and the folder of the result."""
    fix = "use the model before quantization"
    quantized = [one for one in folders if one.config.get("quantization_config")]
    problems = [Problem(one.given, "is quantized", fix, "bad-file") for one in quantized]
    return [*problems, *out_problems(request.out, [folder.path for folder in folders], size)]
