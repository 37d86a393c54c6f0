"""Merges models: several are mixed, or an adapter is added into its base, one tensor of each model in memory at a time.

First every input is inspected and all problems are reported at once; then each tensor is computed and written; then
what was written is read back. Only then is the folder renamed to its final name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from launcher import __version__
from launcher.core.files import expand_user
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.core.redaction import redact
from launcher.tools.merge import lora, output
from launcher.tools.merge.folder import (
    CONFIG,
    DTYPES,
    ModelFolder,
    StoredTensor,
    find_differences,
    list_few,
    open_model,
)
from launcher.tools.merge.methods import METHODS, Method
from launcher.tools.merge.output import OutputTensor

FORMATS = {str(of).removeprefix("torch."): name for name, of in DTYPES.items() if of.is_floating_point}
"""The formats that a result may have: torch's name and safetensors'."""
LORA, SAME = "lora", "same"
RECORD = "merge.json"

OnMergeProgress = Callable[[str, int, int], None]
"""Takes what is being done, and how many of how many bytes are done."""


@dataclass(frozen=True)
class MergeRequest:
    """What a person wants merged. `options` are the method's parameters that were given, by their names."""

    method: str
    models: tuple[str, ...]
    out: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    base: str | None = None
    dtype: str = SAME
    shard_bytes: int = 5_000_000_000
    texts: Mapping[str, str] = field(default_factory=dict)
    """Text files to write beside the weights, by name."""


@dataclass(frozen=True)
class MergeResult:
    """The model that was written."""

    path: Path
    tensors: int
    bytes: int
    files: Mapping[str, str]
    """sha256 of each."""
    notes: tuple[str, ...]
    """What a person should know."""


@dataclass(frozen=True)
class MergePlan:
    """All that is decided before any number is read."""

    inputs: dict[str, ModelFolder]
    """By their roles: `model 1`, `base`, `adapter`. The result is like the first."""
    pieces: list[OutputTensor]
    parameters: dict[str, Any]
    notes: list[Problem] = field(default_factory=list)


def merge(request: MergeRequest, show: OnMergeProgress) -> MergeResult:
    """Make the folder `request.out`. Raises `Problems`, and then nothing is left there."""
    plan = _plan_adapter(request) if request.method == LORA else _plan_mixing(request)
    size, done = sum(piece.bytes for piece in plan.pieces), 0

    def count(doing: str, more: int) -> None:
        nonlocal done
        done += more
        show(doing, done, 2 * size)

    inputs = [
        {"is": role, "given": at.given, "path": str(at.path.resolve()), "sha256": output.digests(at)}
        for role, at in plan.inputs.items()
    ]
    first = next(iter(plan.inputs.values()))
    config = dict(first.config)
    if request.dtype != SAME:
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = request.dtype
    with output.draft_folder(request.out) as draft:
        files = output.write_weights(draft, plan.pieces, request.shard_bytes, partial(count, "writing"))
        output.copy_neighbours(first.path, draft)
        if "adapter" in plan.inputs:
            output.copy_neighbours(plan.inputs["adapter"].path, draft, only_tokenizer=True)
        output.write_json(draft / CONFIG, config)
        for name, text in request.texts.items():
            (draft / name).write_text(redact(text), encoding="utf-8")
        notes = [str(note) for note in plan.notes]
        output.write_json(
            draft / RECORD,
            {"rlrun": __version__, "method": request.method, "parameters": plan.parameters, "dtype": request.dtype,
             "inputs": inputs, "sha256": files, "notes": notes},
        )  # fmt: skip
        output.read_back(draft, plan.pieces, files, partial(count, "reading back"))
    return MergeResult(request.out, len(plan.pieces), size, files, tuple(notes))


# ---- plans


def _plan_mixing(request: MergeRequest) -> MergePlan:
    method, problems = _method(request)
    folders, unreadable = _open_models([*request.models, *([request.base] if request.base else [])])
    models = [at for at in folders if not at.is_adapter]
    fix = "use --method lora to make it a model"
    problems += unreadable + [Problem(at.given, "is a LoRA adapter", fix) for at in folders if at.is_adapter]
    paths = [at.path.resolve() for at in models]
    repeated = [at for place, at in enumerate(models) if paths[place] in paths[:place]]
    problems += [Problem(at.given, "is given twice", "give each model once") for at in repeated]
    notes: list[Problem] = []
    for at in models[1:]:
        wrong, differences = find_differences(models[0], at)
        problems, notes = problems + wrong, notes + differences
    pieces = [_mixed_tensor(name, models, method, request.dtype) for name in models[0].tensors] if models else []
    problems += _common_problems(request, models, pieces)
    if problems:
        raise Problems(problems)
    roles = [f"model {number}" for number in range(1, len(request.models) + 1)] + ["base"]
    return MergePlan(dict(zip(roles, folders, strict=False)), pieces, asdict(method), notes)


def _plan_adapter(request: MergeRequest) -> MergePlan:
    problems = [_no_such_option(name, LORA) for name in request.options]
    if len(request.models) != 1:
        got = f"adds one adapter, got {len(request.models)}"
        problems.append(Problem("--method lora", got, "merge one after the other"))
    found, unreadable = _open_models(request.models[:1])
    fix = "use the folder of a LoRA adapter"
    problems += unreadable + [Problem(at.given, "is a whole model", fix) for at in found if not at.is_adapter]
    if problems:
        raise Problems(problems)
    (adapter,) = found
    base = open_model(request.base or _find_base(adapter))
    if base.is_adapter:
        raise Problems(Problem(base.given, "is a LoRA adapter", "use the folder of a whole model"))
    fit = lora.fit_adapter(adapter, base)
    pieces = [_tensor_with_adapter(tensor, base, adapter, fit, request.dtype) for tensor in base.tensors.values()]
    if problems := fit.problems + _common_problems(request, [base, adapter], pieces):
        raise Problems(problems)
    return MergePlan(
        {"base": base, "adapter": adapter}, pieces, {"folded": len(fit.deltas), "placed": len(fit.replaced)}
    )


def _find_base(adapter: ModelFolder) -> str:
    """The base beside an adapter, or the one that its config names."""
    if (adapter.path / "base").is_dir():
        return str(adapter.path / "base")
    named = adapter.config.get("base_model_name_or_path")
    if not isinstance(named, str) or not expand_user(named).is_dir():
        got = f"{adapter.given} belongs to {short_repr(named)}, which is not a folder here"
        raise Problems(Problem("--base", got, "give its folder", "not-found"))
    return named


def _no_such_option(name: str, method: str) -> Problem:
    return Problem(f"--{name.replace('_', '-')}", f"{method} takes none", "leave it out")


def _method(request: MergeRequest) -> tuple[Method, list[Problem]]:
    """The method with its parameters, and what is wrong with them; any method where there is none of that name."""
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


def _open_models(given: Sequence[str]) -> tuple[list[ModelFolder], list[Problem]]:
    found, problems = [], list[Problem]()
    for name in given:
        try:
            found.append(open_model(name))
        except Problems as wrong:
            problems += wrong.problems
    return found, problems


def _common_problems(
    request: MergeRequest, folders: Sequence[ModelFolder], pieces: Sequence[OutputTensor]
) -> list[Problem]:
    """What is wrong with the number formats and with the place of the result, whatever the method."""
    found = []
    if request.dtype not in (SAME, *FORMATS):
        fix = suggest(request.dtype, [SAME, *FORMATS])
        found.append(Problem("--dtype", f"got {short_repr(request.dtype)}", fix))
    if request.shard_bytes < 1:
        found.append(Problem("--max-shard-size", f"got {request.shard_bytes} bytes", "use more"))
    size = sum(piece.bytes for piece in pieces)
    places = output.out_problems(request.out, [at.path for at in folders], size)
    return [*found, *_dtype_problems(folders, request.dtype), *places]


def _dtype_problems(folders: Sequence[ModelFolder], dtype: str) -> list[Problem]:
    """Where it is not clear which number format the result has, or numbers cannot be computed with."""
    quantized = [at for at in folders if at.config.get("quantization_config")]
    fix = "use the model before quantization"
    found = [Problem(at.given, "is quantized", fix, "bad-file") for at in quantized]
    for at in folders[1:]:
        pairs = [(tensor, at.tensors[name]) for name, tensor in folders[0].tensors.items() if name in at.tensors]
        unlike = [(a, b) for a, b in pairs if a.dtype != b.dtype]
        if unlike and (dtype == SAME or not all(a.is_float and b.is_float for a, b in unlike)):
            names = list_few(f"{a.name} {b.dtype} for {a.dtype}" for a, b in unlike)
            got = f"other formats than {folders[0].given}'s: {names}"
            found.append(Problem(at.given, got, "use --dtype float32"))
    return found


# ---- tensors


def _mixed_tensor(name: str, folders: Sequence[ModelFolder], method: Method, dtype: str) -> OutputTensor:
    first = folders[0].tensors[name]

    def compute() -> Tensor:
        values = [_load(at.tensors[name], at) for at in folders]
        if first.is_float:
            base = values.pop() if method.with_base else None
            return method.mix(values, base)
        for at, value in zip(folders, values, strict=True):
            if not value.equal(values[0]):
                got = f"{name} ({first.dtype}) differs from {folders[0].given}'s"
                raise Problems(Problem(at.given, got, "whole numbers cannot be mixed, so use equal ones"))
        return values[0]

    return _rounded(first, dtype, compute)


def _tensor_with_adapter(
    stored: StoredTensor, base: ModelFolder, adapter: ModelFolder, fit: lora.Adapter, dtype: str
) -> OutputTensor:
    if delta := fit.deltas.get(stored.name):
        return _rounded(
            stored, dtype, lambda: delta.add_to(_load(stored, base), _load(delta.a, adapter), _load(delta.b, adapter))
        )
    if replaced := fit.replaced.get(stored.name):
        like = replace(replaced, name=stored.name, dtype=stored.dtype if replaced.is_float else replaced.dtype)
        return _rounded(like, dtype, lambda: _load(replaced, adapter))
    return _rounded(stored, dtype, lambda: _load(stored, base))


def _load(tensor: StoredTensor, folder: ModelFolder) -> Tensor:
    """The tensor in a format to compute with: half formats as float32, float32 as float64, integers as they are.

    Raises `Problems` where a number is not finite.
    """
    values = tensor.load()
    if not tensor.is_float:
        return values
    if not values.isfinite().all():
        got = f"{short_repr(tensor.name)} not finite"
        raise Problems(Problem(folder.given, got, "use a model whose numbers are", "not-finite"))
    return values.to(torch.float32 if values.dtype.itemsize == 2 else torch.float64)


def _rounded(like: StoredTensor, dtype: str, compute: Callable[[], Tensor]) -> OutputTensor:
    """A tensor of the name, shape and (if `dtype` is `same`) format of `like`; its numbers are what `compute` returns,
    rounded. Raises `Problems` when one is too large for the format."""
    stored_as = FORMATS.get(dtype, like.dtype) if like.is_float else like.dtype

    def finite() -> Tensor:
        values = compute().to(DTYPES[stored_as])
        if like.is_float and not values.isfinite().all():
            name = str(values.dtype).removeprefix("torch.")
            raise Problems(Problem(like.name, f"a number is too large for {name}", "use --dtype float32"))
        return values

    return OutputTensor(like.name, stored_as, like.shape, finite)
