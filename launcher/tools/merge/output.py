"""Writes a model's folder: whole and checked, or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from launcher.core import checkpoints
from launcher.core.files import expand_user, fsync_path
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import redact
from launcher.models.weights import INDEX, SINGLE
from launcher.tools.merge.folder import DTYPES, ModelFolder, TensorShape, open_model

BESIDE = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
"""Endings of what belongs to a model beside its weights."""
_OWN = ("LICENSE", "NOTICE")
_NOT = (INDEX, "trainer_state.json", "merge.json", "training_args.json")
ROOM = 1 << 20  # bytes beyond the files' own that a folder takes

OnBytes = Callable[[int], None]
"""Takes how many bytes more were read or written."""


@dataclass(frozen=True)
class OutputTensor(TensorShape):
    """A tensor to write, and how it is computed when its turn comes."""

    compute: Callable[[], Tensor]


def digests(folder: ModelFolder) -> dict[str, str]:
    """sha256 of each file of weights."""
    return {file.name: checkpoints.sha256(file) for file in folder.files}


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
    free, needed = shutil.disk_usage(place).free, needed + ROOM
    if needed > free:
        got = f"{place} has {free / 1e6:,.1f} MB free, and {needed / 1e6:,.1f} MB are needed"
        return [Problem("--out", got, "free some space or use another disk", "not-enough")]
    return []


@contextmanager
def draft_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which is renamed to `out` at the end. After an error nothing of it remains; what a kill leaves
    has another name, and is removed when `out` is made again."""
    final = expand_user(out).resolve()
    final.parent.mkdir(parents=True, exist_ok=True)
    draft = final.with_name(f".{final.name}.unfinished")
    draft.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for old in draft.iterdir():
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        try:
            yield draft
            for path in [*sorted(draft.rglob("*"), reverse=True), draft]:
                fsync_path(path)
            draft.rename(final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        fsync_path(final.parent)
    except BlockingIOError:
        got = f"{out} is being written by another process"
        raise Problems(Problem("--out", got, "use another folder", "in-use")) from None
    finally:
        os.close(lock)


def write_weights(folder: Path, pieces: Sequence[OutputTensor], most_bytes: int, on_bytes: OnBytes) -> dict[str, str]:
    """Write the tensors in files of at most `most_bytes`, a larger tensor in one of its own. The files' sha256."""
    shards: list[list[OutputTensor]] = [[]]
    size = 0
    for piece in pieces:
        if shards[-1] and size + piece.bytes > most_bytes:
            shards.append([])
            size = 0
        shards[-1].append(piece)
        size += piece.bytes
    if len(shards) == 1:
        return {SINGLE: _write_file(folder / SINGLE, pieces, on_bytes)}
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    place = {piece.name: name for name, shard in zip(names, shards, strict=True) for piece in shard}
    total = {"total_size": sum(piece.bytes for piece in pieces)}
    write_json(folder / INDEX, {"metadata": total, "weight_map": dict(sorted(place.items()))})
    return {name: _write_file(folder / name, shard, on_bytes) for name, shard in zip(names, shards, strict=True)}


def _write_file(path: Path, pieces: Sequence[OutputTensor], on_bytes: OnBytes) -> str:
    """Write a safetensors file tensor after tensor, so that the memory holds only one; its sha256.

    Wide formats come first, so that every tensor begins at a multiple of its format's size.
    """
    ordered = sorted(pieces, key=lambda piece: -DTYPES[piece.dtype].itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file that does not say so
    end = 0
    for piece in ordered:
        begin, end = end, end + piece.bytes
        header[piece.name] = {"dtype": piece.dtype, "shape": list(piece.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sha256 = hashlib.sha256()
    with path.open("xb") as file:

        def write(data: bytes | memoryview) -> None:
            file.write(data)
            sha256.update(data)

        write(len(text).to_bytes(8, "little") + text)
        for piece in ordered:
            tensor = piece.compute().contiguous()
            assert tensor.nbytes == piece.bytes, piece.name
            write(tensor.flatten().view(torch.uint8).numpy().data)
            on_bytes(tensor.nbytes)
        file.flush()
        os.fsync(file.fileno())
    return sha256.hexdigest()


def read_back(folder: Path, shapes: Sequence[TensorShape], sha256: Mapping[str, str], on_bytes: OnBytes) -> None:
    """Check the written folder: every tensor is there as planned, and every byte is what was written.

    Raises `Problems`.
    """
    found = open_model(str(folder))
    stored = {TensorShape(tensor.name, tensor.dtype, tensor.shape) for tensor in found.tensors.values()}
    expected = {TensorShape(shape.name, shape.dtype, shape.shape) for shape in shapes}
    if {file.name for file in found.files} != sha256.keys() or stored != expected:
        got = "the tensors that read back are not those that were written"
        raise Problems(Problem(folder.name, got, "start again", "changed"))
    for file in found.files:
        if checkpoints.sha256(file) != sha256[file.name]:
            raise Problems(Problem(file.name, "checksum mismatch after writing", "use another disk", "changed"))
        on_bytes(sum(tensor.bytes for tensor in found.tensors.values() if tensor.file == file))


def copy_neighbours(source: Path, folder: Path, *, only_tokenizer: bool = False) -> None:
    """Copy a model's config, tokenizer, templates, code and licence; no weights and no index of them."""
    names = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "chat_template", "generation_config")
    for path in [*source.iterdir(), *(source / "additional_chat_templates").glob("*.jinja")]:
        belongs = path.suffix in BESIDE or path.name.startswith(_OWN)
        if not path.is_file() or path.name in _NOT or path.name.startswith(".") or not belongs:
            continue
        if only_tokenizer and not (path.name.startswith(names) or path.suffix in (".jinja", ".tiktoken")):
            continue
        target = folder / path.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)


def write_json(path: Path, node: Mapping[str, Any]) -> None:
    path.write_text(redact(json.dumps(node, indent=2, ensure_ascii=False)) + "\n", encoding="utf-8")
