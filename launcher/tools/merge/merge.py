"""Merges models: several are mixed, or an adapter is added into its base. Streamed, checked before and after.

First every input is inspected and all problems are reported at once; then each tensor is computed and written block
after block; then what was written is read back. Only then is the folder renamed to its final name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
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
from launcher.tools.merge.folder import CONFIG, ModelFolder, few, find_differences, open_model
from launcher.tools.merge.mixing import METHODS, Method
from launcher.tools.merge.output import OutputTensor
from launcher.tools.merge.tensors import DTYPES, FLOATS, StoredTensor, TensorShape, check_file, round_once

NAMES = {str(DTYPES[dtype]).removeprefix("torch."): dtype for dtype in FLOATS}
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
    """By their roles: `model 1`, `base`, `adapter`."""
    like: ModelFolder
    """Whose config, tokenizer and order of tensors the result has."""
    pieces: list[OutputTensor]
    parameters: dict[str, Any]
    notes: list[Problem] = field(default_factory=list)


def merge(asked: MergeRequest, show: OnMergeProgress) -> MergeResult:
    """Make the folder `asked.out`. Raises `Problems` that name all that is wrong, before anything is written."""
    plan = _adapter_plan(asked) if asked.method == LORA else _mixing_plan(asked)
    shapes = [piece.shape for piece in plan.pieces]
    size, done = sum(shape.bytes for shape in shapes), 0
    total = sum(tensor.bytes for at in plan.inputs.values() for tensor in at.tensors.values()) + 2 * size

    def count(doing: str, more: int) -> None:
        nonlocal done
        done += more
        show(doing, done, total)

    with _one_thread():
        digests = _check_numbers(plan, partial(count, "reading"))
        with output.draft_folder(asked.out) as draft:
            files = output.write_weights(draft, plan.pieces, asked.shard_bytes, partial(count, "writing"))
            output.copy_neighbours(plan.like.path, draft)
            if "adapter" in plan.inputs:
                output.copy_neighbours(plan.inputs["adapter"].path, draft, only_tokenizer=True)
            config = dict(plan.like.config)
            if asked.dtype != SAME:
                config["torch_dtype" if "torch_dtype" in config else "dtype"] = asked.dtype
            output.write_json(draft / CONFIG, config)
            for name, text in asked.texts.items():
                (draft / name).write_text(redact(text), encoding="utf-8")
            output.write_json(draft / RECORD, _record(asked, plan, digests, files))
            output.read_back(draft, shapes, files, partial(count, "reading back"))
    return MergeResult(asked.out, len(shapes), size, files, tuple(map(str, plan.notes)))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Blocks are small: threads that wait for each other would cost more time than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_numbers(plan: MergePlan, on_bytes: Callable[[int], None]) -> dict[str, dict[str, str]]:
    """sha256 of every input's files. Raises `Problems` where numbers are not finite, or integers differ."""
    digests: dict[str, dict[str, str]] = {}
    problems = []
    for role, at in plan.inputs.items():
        checked = {file.name: check_file(file, tensors, on_bytes) for file, tensors in at.files.items()}
        digests[role] = {name: sha256 for name, (sha256, _) in checked.items()}
        problems += [
            Problem(at.given, f"{few(bad)} not finite", "use one of a model that exists", "not-finite")
            for _, bad in checked.values()
            if bad
        ]
    first, *others = (at for role, at in plan.inputs.items() if role != "adapter")
    fix = "whole numbers cannot be mixed, so use equal ones"
    for tensor in (tensor for tensor in first.tensors.values() if not tensor.is_float):
        for at in others:
            pairs = zip(tensor.blocks(), at.tensors[tensor.name].blocks(), strict=True)
            if not all(a.equal(b) for a, b in pairs):
                got = f"{tensor.name} ({tensor.dtype}) differs from {first.given}'s"
                problems.append(Problem(at.given, got, fix))
    if problems:
        raise Problems(problems)
    return digests


def _record(
    asked: MergeRequest, plan: MergePlan, digests: Mapping[str, Any], files: Mapping[str, str]
) -> dict[str, Any]:
    """Which inputs and parameters the result was made from."""
    return {
        "rlrun": __version__,
        "method": asked.method,
        "parameters": plan.parameters,
        "dtype": asked.dtype,
        "inputs": [
            {"is": role, "given": at.given, "path": str(at.path.resolve()), "sha256": digests[role]}
            for role, at in plan.inputs.items()
        ],
        "sha256": dict(files),
        "notes": [str(note) for note in plan.notes],
    }


# ---- plans


def _mixing_plan(asked: MergeRequest) -> MergePlan:
    method, problems = _method(asked)
    problems += _format_problems(asked)
    found, more = _opened([*asked.models, *([asked.base] if asked.base else [])])
    problems += more
    fix = "use --method lora to make it a model"
    problems += [Problem(at.given, "is a LoRA adapter", fix) for at in found if at.is_adapter]
    whole = [at for at in found if not at.is_adapter]
    paths = [at.path.resolve() for at in whole]
    twice = [at for place, at in enumerate(whole) if paths[place] in paths[:place]]
    problems += [Problem(at.given, "is given twice", "give each model once") for at in twice]
    notes: list[Problem] = []
    for at in whole[1:]:
        wrong, known = find_differences(whole[0], at)
        problems, notes = problems + wrong, notes + known
    problems += _dtype_problems(whole, asked.dtype)
    pieces: list[OutputTensor] = []
    if whole:
        pieces = [_mixed(tensor, whole, method, asked.dtype) for tensor in whole[0].tensors.values()]
        problems += _out_problems(asked, found, pieces)
    if problems:
        raise Problems(problems)
    names = [f"model {number}" for number in range(1, len(asked.models) + 1)] + ["base"]
    return MergePlan(dict(zip(names, found, strict=False)), found[0], pieces, asdict(method), notes)


def _adapter_plan(asked: MergeRequest) -> MergePlan:
    problems = [Problem(f"--{name.replace('_', '-')}", "lora takes none", "leave it out") for name in asked.options]
    problems += _format_problems(asked)
    if len(asked.models) != 1:
        got = f"adds one adapter, got {len(asked.models)}"
        problems.append(Problem("--method lora", got, "merge one after the other"))
    found, more = _opened(asked.models[:1])
    problems += more
    fix = "use the folder of a LoRA adapter"
    problems += [Problem(at.given, "is a whole model", fix) for at in found if not at.is_adapter]
    if problems or not found:
        raise Problems(problems)
    (adapter,) = found
    base = open_model(asked.base or _base_of(adapter))
    if base.is_adapter:
        raise Problems(Problem(base.given, "is a LoRA adapter", "use the folder of a whole model"))
    fit = lora.fit_adapter(adapter, base)
    pieces = [_with_adapter(tensor, fit, asked.dtype) for tensor in base.tensors.values()]
    problems = fit.problems + _dtype_problems([base], asked.dtype) + _out_problems(asked, [adapter, base], pieces)
    if problems:
        raise Problems(problems)
    parameters = {"folded": len(fit.deltas), "placed": len(fit.replaced)}
    return MergePlan({"adapter": adapter, "base": base}, base, pieces, parameters)


def _base_of(adapter: ModelFolder) -> str:
    """The base beside an adapter, or the one that its config names."""
    if (adapter.path / "base").is_dir():
        return str(adapter.path / "base")
    named = adapter.config.get("base_model_name_or_path")
    if not isinstance(named, str) or not expand_user(named).is_dir():
        got = f"{adapter.given} belongs to {short_repr(named)}, which is not a folder here"
        raise Problems(Problem("--base", got, "give its folder", "not-found"))
    return named


def _method(asked: MergeRequest) -> tuple[Method, list[Problem]]:
    """The method with its parameters, and what is wrong with them; any method where there is none of that name."""
    if asked.method not in METHODS:
        known_methods = suggest(asked.method, [*METHODS, LORA])
        problem = Problem("--method", f"no method {short_repr(asked.method)}", known_methods, "unknown-choice")
        return METHODS["linear"](), [problem]
    kind = METHODS[asked.method]
    known = {one.name for one in fields(kind)}
    problems = [
        Problem(f"--{name.replace('_', '-')}", f"{asked.method} takes none", "leave it out")
        for name in asked.options
        if name not in known
    ]
    method = kind(**{name: value for name, value in asked.options.items() if name in known})
    problems += method.problems(len(asked.models))
    if kind.with_base and not asked.base:
        got = f"{asked.method} needs the model that the others came from"
        problems.append(Problem("--base", got, "give its folder"))
    if asked.base and not kind.with_base:
        problems.append(Problem("--base", f"{asked.method} looks at none", "leave it out"))
    return method, problems


def _format_problems(asked: MergeRequest) -> list[Problem]:
    found = []
    if asked.dtype not in (SAME, *NAMES):
        found.append(Problem("--dtype", f"got {short_repr(asked.dtype)}", suggest(asked.dtype, [SAME, *NAMES])))
    if asked.shard_bytes < 1:
        found.append(Problem("--max-shard-size", f"got {asked.shard_bytes} bytes", "use more"))
    return found


def _opened(given: Sequence[str]) -> tuple[list[ModelFolder], list[Problem]]:
    found, problems = [], list[Problem]()
    for name in given:
        try:
            found.append(open_model(name))
        except Problems as wrong:
            problems += wrong.problems
    return found, problems


def _dtype_problems(found: Sequence[ModelFolder], dtype: str) -> list[Problem]:
    """Where it is not clear which number format the result has, or numbers cannot be computed with."""
    problems = [
        Problem(at.given, "is quantized", "use the model before quantization", code="bad-file")
        for at in found
        if at.config.get("quantization_config")
    ]
    for at in found[1:]:
        both = [(tensor, at.tensors[name]) for name, tensor in found[0].tensors.items() if name in at.tensors]
        other = [(a, b) for a, b in both if a.dtype != b.dtype]
        if other and (dtype == SAME or not all(a.is_float and b.is_float for a, b in other)):
            names = few(f"{a.name} {b.dtype} for {a.dtype}" for a, b in other)
            problems.append(Problem(at.given, f"other formats than {found[0].given}'s: {names}", "use --dtype float32"))
    return problems


def _out_problems(asked: MergeRequest, found: Sequence[ModelFolder], pieces: Sequence[OutputTensor]) -> list[Problem]:
    return output.out_problems(asked.out, [at.path for at in found], sum(piece.shape.bytes for piece in pieces))


# ---- tensors


def _mixed(tensor: StoredTensor, found: Sequence[ModelFolder], method: Method, dtype: str) -> OutputTensor:
    def values() -> Iterator[Tensor]:
        models = [at.tensors[tensor.name] for at in found]
        base = models.pop() if method.with_base else None
        return method.mixed(models, base)

    return _rounded(tensor, tensor, values, dtype)


def _with_adapter(tensor: StoredTensor, fit: lora.Adapter, dtype: str) -> OutputTensor:
    if delta := fit.deltas.get(tensor.name):
        return _rounded(tensor, tensor, partial(lora.add_adapter, tensor, delta), dtype)
    source = fit.replaced.get(tensor.name, tensor)
    return _rounded(tensor, source, lambda: source, dtype)


def _rounded(
    like: TensorShape, source: StoredTensor, values: Callable[[], Iterable[Tensor]], dtype: str
) -> OutputTensor:
    """`values` rounded to the format `dtype`, by default that of `like`; integers of `source` as they are.

    Raises `Problems` when a number is too large for the format.
    """
    if not source.is_float:
        return OutputTensor(TensorShape(like.name, source.dtype, source.shape), source.blocks)
    shape = TensorShape(like.name, NAMES.get(dtype, like.dtype), like.shape)

    def blocks() -> Iterator[Tensor]:
        for block in values():
            found = round_once(block, DTYPES[shape.dtype])
            if not found.isfinite().all():
                name = str(found.dtype).removeprefix("torch.")
                raise Problems(Problem(shape.name, f"a number is too large for {name}", "use --dtype float32"))
            yield found

    return OutputTensor(shape, blocks)
