"""Writes a model's folder: whole and checked, or not at all."""

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

from torch import Tensor

from launcher.core.files import expand_user, fsync_path
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import redact
from launcher.models.weights import INDEX, SINGLE
from launcher.tools.merge.folder import open_model
from launcher.tools.merge.tensors import OnBytes, TensorShape, check_file, write_file

BESIDE = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
"""Endings of what belongs to a model beside its weights."""
_OWN = ("LICENSE", "NOTICE")
_NOT = (INDEX, "trainer_state.json", "merge.json", "training_args.json")
ROOM = 1 << 20  # bytes beyond the files' own that a folder takes
CHUNK = 1 << 22  # bytes copied at a time


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to write: what it is, and its blocks when they are asked for."""

    shape: TensorShape
    blocks: Callable[[], Iterator[Tensor]]


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
    handle = _locked(draft, out)
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


def _locked(draft: Path, out: Path) -> int:
    """Of two processes that make the same folder the second is refused."""
    handle = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):  # finished by the other one just now
            if os.path.samestat(os.fstat(handle), draft.stat()):
                return handle
    except BlockingIOError:
        pass
    os.close(handle)
    raise Problems(Problem("--out", f"{out} is being written by another process", "use another folder", "in-use"))


# ---- weights


def write_weights(folder: Path, pieces: Sequence[OutputTensor], most_bytes: int, on_bytes: OnBytes) -> dict[str, str]:
    """Write the tensors in files of at most `most_bytes`, a larger tensor in one of its own. The files' sha256."""
    shards: list[list[OutputTensor]] = [[]]
    size = 0
    for piece in pieces:
        if shards[-1] and size + piece.shape.bytes > most_bytes:
            shards.append([])
            size = 0
        shards[-1].append(piece)
        size += piece.shape.bytes
    if len(shards) == 1:
        return {SINGLE: write_file(folder / SINGLE, ((piece.shape, piece.blocks()) for piece in pieces), on_bytes)}
    written, place = dict[str, str](), dict[str, str]()
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        written[name] = write_file(folder / name, ((piece.shape, piece.blocks()) for piece in shard), on_bytes)
        place |= {piece.shape.name: name for piece in shard}
    sizes = [piece.shape for piece in pieces]
    total = {"total_parameters": sum(s.count for s in sizes), "total_size": sum(s.bytes for s in sizes)}
    write_json(folder / INDEX, {"metadata": total, "weight_map": dict(sorted(place.items()))})
    return written


def read_back(folder: Path, shapes: Sequence[TensorShape], sha256: Mapping[str, str], on_bytes: OnBytes) -> None:
    """Check the written folder: every tensor is there as planned, every byte is what was written, every number is
    finite. Raises `Problems`."""
    found, problems = open_model(str(folder)), list[Problem]()
    stored = {TensorShape(tensor.name, tensor.dtype, tensor.shape) for tensor in found.tensors.values()}
    if {file.name for file in found.files} != sha256.keys() or stored != set(shapes):
        got = "the tensors that read back are not those that were written"
        problems.append(Problem(folder.name, got, "start again", "changed"))
    for file, tensors in found.files.items():
        digest, not_finite = check_file(file, tensors, on_bytes)
        if digest != sha256.get(file.name):
            got = "checksum mismatch after writing"
            problems.append(Problem(file.name, got, "use another disk", "changed"))
        fix = "use one of a model that exists"
        problems += [Problem(file.name, f"{tensor} is not finite", fix, "not-finite") for tensor in not_finite]
    if problems:
        raise Problems(problems)


# ---- what is beside the weights


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


def copy_file(source: Path, target: Path, on_bytes: OnBytes) -> str:
    """Copy a large file; its sha256 as it was read."""
    sha256 = hashlib.sha256()
    with source.open("rb") as from_file, target.open("xb") as to_file:
        while part := from_file.read(CHUNK):
            to_file.write(part)
            sha256.update(part)
            on_bytes(len(part))
        to_file.flush()
        os.fsync(to_file.fileno())
        os.posix_fadvise(to_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sha256.hexdigest()


def write_json(path: Path, node: Mapping[str, Any]) -> None:
    path.write_text(redact(json.dumps(node, indent=2, ensure_ascii=False)) + "\n", encoding="utf-8")
