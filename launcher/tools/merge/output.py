"""A model's folder comes into being: whole and checked, or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from launcher.core.files import expand_user, fsync_path
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import redact
from launcher.tools.merge.folder import INDEX, WEIGHTS, open_model
from launcher.tools.merge.tensors import CHUNK, OnBytes, TensorShape, TensorWriter, check_file, file_order

BESIDE = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
"""Endings of what belongs to a model beside its weights."""
_OWN = ("LICENSE", "NOTICE")
_NOT = (INDEX, "trainer_state.json", "merge.json", "training_args.json")
ROOM = 1 << 20  # bytes beyond the files' own that a folder takes


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to write: what it is, and its bytes when they are asked for."""

    shape: TensorShape
    blocks: Callable[[], Iterator[NDArray[Any]]]


def out_problems(out: Path, inputs: Sequence[Path], needed: int) -> list[Problem]:
    """Why a folder of so many bytes cannot be made at `out`."""
    final = expand_user(out).resolve()
    for path in inputs:
        source = path.resolve()
        if final == source or source in final.parents or final in source.parents:
            how = "is one with" if final == source else "is within" if source in final.parents else "holds"
            return [Problem("--out", f"{out} {how} {path}", "use another folder")]
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        return [Problem("--out", f"{out} is there already", "use a new folder")]
    place = next(path for path in final.parents if path.exists())
    if not place.is_dir():
        return [Problem("--out", f"{place} is a file", "use a folder")]
    if not os.access(place, os.W_OK):
        return [Problem("--out", f"{place} cannot be written", "use another place")]
    free = shutil.disk_usage(place).free
    if needed + ROOM > free:
        return [
            Problem(
                "--out",
                f"{place} has {_mb(free)} free, and {_mb(needed + ROOM)} are needed",
                "free some space or use another disk",
                code="not-enough",
            )
        ]
    return []


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


@contextmanager
def draft_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` when all went well. After an error nothing of it remains; what a kill
    leaves has another name, and goes when `out` is made again."""
    final = expand_user(out).resolve()
    final.parent.mkdir(parents=True, exist_ok=True)
    draft = final.with_name(f".{final.name}.unfinished")
    draft.mkdir(mode=0o700, exist_ok=True)
    handle = _held(draft, out)
    try:
        try:
            for old in draft.iterdir():
                shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
            yield draft
            for path in sorted(draft.rglob("*"), reverse=True):
                fsync_path(path)
            fsync_path(draft)
            draft.rename(final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        fsync_path(final.parent)
    finally:
        os.close(handle)


def _held(draft: Path, out: Path) -> int:
    """The draft is ours alone: of two that make the same folder the second is refused."""
    handle = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):  # finished by the other one just now
            if os.path.samestat(os.fstat(handle), draft.stat()):
                return handle
    except BlockingIOError:
        pass
    os.close(handle)
    raise Problems(Problem("--out", f"{out} is being written by another process", "use another folder"))


# ---- weights


def write_weights(folder: Path, pieces: Sequence[OutputTensor], most_bytes: int, told: OnBytes) -> dict[str, str]:
    """Write the tensors in files of at most `most_bytes`, a larger tensor in one of its own. The files' sha256."""
    shards = _shards(pieces, most_bytes)
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [WEIGHTS]
    written = {}
    for name, shard in zip(names, shards, strict=True):
        by_name = {piece.shape.name: piece for piece in shard}
        order = file_order([piece.shape for piece in shard])
        with TensorWriter(folder / name, order, told) as writer:
            for shape in order:
                for block in by_name[shape.name].blocks():
                    writer.add(block)
            written[name] = writer.finish()
    if len(shards) > 1:
        sizes = [piece.shape for piece in pieces]
        total = {"total_parameters": sum(s.count for s in sizes), "total_size": sum(s.bytes for s in sizes)}
        place = {piece.shape.name: name for name, shard in zip(names, shards, strict=True) for piece in shard}
        write_json(folder / INDEX, {"metadata": total, "weight_map": dict(sorted(place.items()))})
    return written


def _shards(pieces: Sequence[OutputTensor], most_bytes: int) -> list[list[OutputTensor]]:
    shards: list[list[OutputTensor]] = [[]]
    size = 0
    for piece in pieces:
        if shards[-1] and size + piece.shape.bytes > most_bytes:
            shards.append([])
            size = 0
        shards[-1].append(piece)
        size += piece.shape.bytes
    return shards


def read_back(folder: Path, shapes: Sequence[TensorShape], sha256: Mapping[str, str], told: OnBytes) -> None:
    """Look at the folder as a stranger would: every tensor is there as planned, every byte is what was written, every
    number is finite. Raises `Problems`."""
    found, wrong = open_model(str(folder)), list[str]()
    held = [TensorShape(tensor.name, tensor.dtype, tensor.shape) for tensor in found.tensors.values()]
    if {file.name for file in found.files} != sha256.keys() or set(held) != set(shapes):
        wrong.append(f"{folder.name}: the tensors that read back are not those that were written; start again")
    for file, tensors in found.files.items():
        seen = check_file(file, tensors, told)
        if seen.sha256 != sha256.get(file.name):
            wrong.append(f"{file.name}: reads back with other bytes than were written; use another disk")
        wrong += [f"{file.name}: {tensor} is not finite; use one of a model that exists" for tensor in seen.not_finite]
    if wrong:
        raise Problems(wrong)


# ---- what stands beside the weights


def neighbour_files(folder: Path) -> list[Path]:
    """Config, tokenizer, templates, code and licence of a model."""
    found = [
        path for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in _NOT
        and (path.suffix in BESIDE or path.name.startswith(_OWN)) and not path.name.startswith(".")
    ]  # fmt: skip
    return found + sorted((folder / "additional_chat_templates").glob("*.jinja"))


def copy_neighbours(source: Path, files: Sequence[Path], folder: Path) -> None:
    for path in files:
        target = folder / path.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)


def copy_file(source: Path, target: Path, told: OnBytes) -> str:
    """Copy a large file; its sha256 as it was read."""
    sha256 = hashlib.sha256()
    with source.open("rb") as from_file, target.open("xb") as to_file:
        while part := from_file.read(CHUNK):
            to_file.write(part)
            sha256.update(part)
            told(len(part))
        to_file.flush()
        os.fsync(to_file.fileno())
        os.posix_fadvise(to_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sha256.hexdigest()


def write_json(path: Path, node: Mapping[str, Any]) -> None:
    path.write_text(redact(json.dumps(node, indent=2, ensure_ascii=False)) + "\n", encoding="utf-8")
