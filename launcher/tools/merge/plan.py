"""What a merge will do, decided and checked before a number is read: which tensors, from where, by which formula."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from launcher.core.files import expand_user
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.tools.merge import lora
from launcher.tools.merge.folder import ModelFolder, few, find_differences, open_model
from launcher.tools.merge.mixing import METHODS, Method
from launcher.tools.merge.output import OutputTensor, out_problems
from launcher.tools.merge.tensors import (
    FLOATS,
    Block,
    StoredTensor,
    TensorReader,
    TensorShape,
    all_finite,
    from_float64,
)

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
NAMES = {ours: name for name, ours in DTYPES.items()}
LORA, SAME = "lora", "same"


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
    """Files of text that are to stand beside the weights, by name."""


@dataclass
class MergePlan:
    """All that is decided before anything is read."""

    inputs: dict[str, ModelFolder]
    """By what they are: `model 1`, `base`, `adapter`."""
    like: ModelFolder
    """Whose config, tokenizer and order of tensors the result has."""
    pieces: list[OutputTensor]
    readers: list[TensorReader]
    parameters: dict[str, Any]
    notes: list[Problem] = field(default_factory=list)

    @property
    def words(self) -> ModelFolder:
        """Whose tokenizer the result has, where it brings one."""
        return self.inputs.get("adapter", self.like)


def make_plan(asked: MergeRequest) -> MergePlan:
    """Raises `Problems` that name all that is wrong with what was asked."""
    return _adapter_plan(asked) if asked.method == LORA else _mixing_plan(asked)


def _mixing_plan(asked: MergeRequest) -> MergePlan:
    method, problems = _method(asked)
    problems += _asked_problems(asked)
    found, more = _opened([*asked.models, *([asked.base] if asked.base else [])])
    problems += more
    problems += [
        Problem(at.given, "is a LoRA adapter", "use --method lora to make it a model") for at in found if at.is_adapter
    ]
    whole = [at for at in found if not at.is_adapter]
    problems += _twice(whole)
    notes: list[Problem] = []
    for at in whole[1:]:
        wrong, known = find_differences(whole[0], at)
        problems, notes = problems + wrong, notes + known
    problems += _format_problems(whole, asked.dtype)
    if whole:
        problems += out_problems(asked.out, [at.path for at in found], _size(whole[0], asked.dtype))
    if problems or method is None:
        raise Problems(problems)
    names = [f"model {number}" for number in range(1, len(asked.models) + 1)] + ["base"]
    readers = [TensorReader() for _ in found]
    pieces = [_mixed(tensor, found, readers, method, asked.dtype) for tensor in found[0].tensors.values()]
    inputs = dict(zip(names, found, strict=False))
    return MergePlan(inputs, found[0], pieces, readers, asdict(method), notes)


def _adapter_plan(asked: MergeRequest) -> MergePlan:
    problems = [Problem(f"--{name.replace('_', '-')}", "lora takes none", "leave it out") for name in asked.options]
    problems += _asked_problems(asked)
    if len(asked.models) != 1:
        problems.append(
            Problem("--method lora", f"adds one adapter, got {len(asked.models)}", "merge one after the other")
        )
    found, more = _opened(asked.models[:1])
    problems += more
    problems += [
        Problem(at.given, "is a whole model", "use the folder of a LoRA adapter") for at in found if not at.is_adapter
    ]
    if problems or not found:
        raise Problems(problems)
    (adapter,) = found
    base = open_model(asked.base or _base_of(adapter))
    if base.is_adapter:
        raise Problems(Problem(base.given, "is a LoRA adapter", "use the folder of a whole model"))
    fit = lora.fit_adapter(adapter, base)
    problems = fit.problems + _format_problems([base], asked.dtype)
    problems += out_problems(asked.out, [adapter.path, base.path], _size(base, asked.dtype))
    if problems:
        raise Problems(problems)
    readers = (TensorReader(), TensorReader())
    pieces = [_with_adapter(tensor, fit, readers, asked.dtype) for tensor in base.tensors.values()]
    inputs = {"adapter": adapter, "base": base}
    return MergePlan(inputs, base, pieces, list(readers), {"folded": len(fit.folds), "placed": len(fit.placed)})


def _base_of(adapter: ModelFolder) -> str:
    """The base beside an adapter, or the one that its config names."""
    if (adapter.path / "base").is_dir():
        return str(adapter.path / "base")
    named = adapter.config.get("base_model_name_or_path")
    if not isinstance(named, str) or not expand_user(named).is_dir():
        raise Problems(
            Problem(
                "--base",
                f"{adapter.given} belongs to {short_repr(named)}, which is no folder here",
                "give its folder",
                code="not-found",
            )
        )
    return named


def _method(asked: MergeRequest) -> tuple[Method | None, list[Problem]]:
    if asked.method not in METHODS:
        known_methods = suggest(asked.method, [*METHODS, LORA])
        return None, [Problem("--method", f"no method {short_repr(asked.method)}", known_methods, "unknown-choice")]
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
        problems.append(
            Problem("--base", f"{asked.method} needs the model that the others came from", "give its folder")
        )
    if asked.base and not kind.with_base:
        problems.append(Problem("--base", f"{asked.method} looks at none", "leave it out"))
    return method, problems


def _asked_problems(asked: MergeRequest) -> list[Problem]:
    found = []
    if asked.dtype not in (SAME, *DTYPES):
        found.append(Problem("--dtype", f"got {short_repr(asked.dtype)}", suggest(asked.dtype, [SAME, *DTYPES])))
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


def _twice(found: Sequence[ModelFolder]) -> list[Problem]:
    paths = [at.path.resolve() for at in found]
    return [
        Problem(at.given, "is given twice", "give each model once")
        for place, at in enumerate(found)
        if paths[place] in paths[:place]
    ]


def _format_problems(found: Sequence[ModelFolder], dtype: str) -> list[Problem]:
    """Where it is not clear which number format the result has, or numbers cannot be computed with."""
    problems = [
        Problem(at.given, "is quantized", "use the model before quantization", code="bad-file")
        for at in found
        if at.config.get("quantization_config")
    ]
    for at in found[1:]:
        both = [(tensor, at.tensors[name]) for name, tensor in found[0].tensors.items() if name in at.tensors]
        other = [f"{a.name} {b.dtype} for {a.dtype}" for a, b in both if a.dtype != b.dtype]
        if other and (dtype == SAME or any({a.dtype, b.dtype} - FLOATS.keys() for a, b in both if a.dtype != b.dtype)):
            problems.append(
                Problem(at.given, f"other formats than {found[0].given}'s: {few(other)}", "use --dtype float32")
            )
    return problems


# ---- tensors


def _mixed(
    tensor: StoredTensor, found: Sequence[ModelFolder], readers: Sequence[TensorReader], method: Method, dtype: str
) -> OutputTensor:
    if tensor.dtype not in FLOATS:
        return OutputTensor(_shape(tensor, dtype), partial(readers[0].parts, tensor))
    shape = _shape(tensor, dtype)

    def blocks() -> Iterator[NDArray[Any]]:
        values = [reader.values(at.tensors[tensor.name]) for reader, at in zip(readers, found, strict=True)]
        base = values.pop() if method.with_base else None
        return _narrowed(shape, method.mixed(values, base))

    return OutputTensor(shape, blocks)


def _with_adapter(
    tensor: StoredTensor, fit: lora.Adapter, readers: tuple[TensorReader, TensorReader], dtype: str
) -> OutputTensor:
    of_base, of_adapter = readers
    source = fit.placed.get(tensor.name, tensor)
    reader = of_base if source is tensor else of_adapter
    if tensor.dtype not in FLOATS:
        return OutputTensor(_shape(tensor, dtype), partial(reader.parts, source))
    shape = _shape(tensor, dtype)
    fold = fit.folds.get(tensor.name)

    def blocks() -> Iterator[NDArray[Any]]:
        values = lora.add_adapter(source, reader, fold, of_adapter) if fold else reader.values(source)
        return _narrowed(shape, iter(values))

    return OutputTensor(shape, blocks)


def _shape(tensor: TensorShape, dtype: str) -> TensorShape:
    """As it is written. Whole numbers stay as they are."""
    return TensorShape(
        tensor.name, DTYPES.get(dtype, tensor.dtype) if tensor.dtype in FLOATS else tensor.dtype, tensor.shape
    )


def _size(like: ModelFolder, dtype: str) -> int:
    return sum(_shape(tensor, dtype).bytes for tensor in like.tensors.values())


def _narrowed(shape: TensorShape, blocks: Iterator[Block]) -> Iterator[NDArray[Any]]:
    """In the format that is written. Raises `Problems` where a number has become too large for it."""
    for block in blocks:
        found = from_float64(block, shape.dtype)
        if not all_finite(found, shape.dtype):
            raise Problems(
                Problem(shape.name, f"a number is too large for {NAMES[shape.dtype]}", "use --dtype float32")
            )
        yield found
