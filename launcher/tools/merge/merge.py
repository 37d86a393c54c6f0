"""Models become one: several are mixed, or an adapter is added into its base. Streamed, checked before and after.

First every input is looked at and all that is wrong is said at once; then each tensor is computed and written block
after block; then what was written is read back. Only then does the folder get its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import __version__
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import redact
from launcher.tools.merge import output
from launcher.tools.merge.folder import CONFIG, ModelFolder, few
from launcher.tools.merge.plan import SAME, MergePlan, MergeRequest, make_plan
from launcher.tools.merge.tensors import FLOATS, TensorReader, check_file

RECORD = "merge.json"

Show = Callable[[str, int, int], None]
"""Hears what is being done, and how many of how many bytes are done."""


@dataclass(frozen=True)
class MergeResult:
    """What came of it."""

    path: Path
    tensors: int
    bytes: int
    files: Mapping[str, str]
    """sha256 of each."""
    notes: tuple[str, ...]
    """What a person should know."""


def merge(asked: MergeRequest, show: Show) -> MergeResult:
    """Make the folder `asked.out`. Raises `Problems` that name all that is wrong, before anything is written."""
    plan = make_plan(asked)
    shapes = [piece.shape for piece in plan.pieces]
    size = sum(shape.bytes for shape in shapes)
    told = _Count(show, sum(tensor.bytes for at in plan.inputs.values() for tensor in at.tensors.values()) + 2 * size)
    try:
        digests = _examined(plan, told)
        with output.draft_folder(asked.out) as draft:
            files = output.write_weights(draft, plan.pieces, asked.shard_bytes, told.doing("writing"))
            output.copy_neighbours(plan.like.path, output.neighbour_files(plan.like.path), draft)
            if plan.words is not plan.like:
                tokens = [path for path in output.neighbour_files(plan.words.path) if _is_of_words(path)]
                output.copy_neighbours(plan.words.path, tokens, draft)
            _write_config(plan.like, asked.dtype, draft)
            for name, text in asked.texts.items():
                (draft / name).write_text(redact(text), encoding="utf-8")
            output.write_json(draft / RECORD, _record(asked, plan, digests, files))
            output.read_back(draft, shapes, files, told.doing("reading back"))
    finally:
        for reader in plan.readers:
            reader.close()
    return MergeResult(asked.out, len(shapes), size, files, tuple(map(str, plan.notes)))


class _Count:
    """Adds up bytes for whoever watches."""

    def __init__(self, show: Show, total: int) -> None:
        self.show, self.total, self.done = show, total, 0

    def doing(self, what: str) -> Callable[[int], None]:
        def told(more: int) -> None:
            self.done += more
            self.show(what, self.done, self.total)

        return told


# ---- before and after


def _examined(plan: MergePlan, told: _Count) -> dict[str, dict[str, str]]:
    """sha256 of every input's files. Raises `Problems` where numbers are not finite, or whole numbers differ."""
    digests: dict[str, dict[str, str]] = {}
    problems = []
    for role, at in plan.inputs.items():
        digests[role] = {}
        for file, tensors in at.files.items():
            found = check_file(file, tensors, told.doing("reading"))
            digests[role][file.name] = found.sha256
            if found.not_finite:
                problems.append(
                    Problem(at.given, f"{few(found.not_finite)} not finite", "use one of a model that exists")
                )
    problems += _whole_problems([at for role, at in plan.inputs.items() if role != "adapter"])
    if problems:
        raise Problems(problems)
    return digests


def _whole_problems(found: Sequence[ModelFolder]) -> list[Problem]:
    """Whole numbers cannot be mixed, so they have to be the same in all models."""
    problems = []
    for tensor in found[0].tensors.values():
        for at in found[1:] if tensor.dtype not in FLOATS else []:
            with TensorReader() as one, TensorReader() as other:
                pairs = zip(one.parts(tensor), other.parts(at.tensors[tensor.name]), strict=True)
                if any((a != b).any() for a, b in pairs):
                    problems.append(
                        Problem(
                            at.given,
                            f"{tensor.name} ({tensor.dtype}) differs from {found[0].given}'s",
                            "whole numbers cannot be mixed, so use equal ones",
                        )
                    )
    return problems


def _is_of_words(path: Path) -> bool:
    """Whether a file belongs to the tokenizer."""
    named = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "chat_template")
    return path.name.startswith(named) or path.suffix in (".jinja", ".tiktoken")


def _write_config(like: ModelFolder, dtype: str, draft: Path) -> None:
    """The config, saying the format that the weights have now."""
    config = dict(like.config)
    if dtype != SAME:
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
    output.write_json(draft / CONFIG, config)


def _record(
    asked: MergeRequest, plan: MergePlan, digests: Mapping[str, Any], files: Mapping[str, str]
) -> dict[str, Any]:
    """Where the result comes from."""
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
