"""Safetensors in blocks: what a file has, its numbers as float64, and a file written tensor after tensor.

At most BLOCK numbers of a tensor are in memory. Files are read, not mapped: a mapped file counts as memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from launcher.core import checkpoints
from launcher.core.files import fsync_path
from launcher.core.problems import Problem, Problems, error_message, short_repr

BLOCK = 1 << 17  # numbers: 1 MiB as float64, which stays in the cache

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The formats of tensors by safetensors' names."""
FLOATS = [name for name, dtype in DTYPES.items() if dtype.is_floating_point]

OnBytes = Callable[[int], None]
"""Takes how many bytes more were read or written."""


@dataclass(frozen=True)
class TensorShape:
    """A tensor's name, format and shape, wherever it is stored."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * DTYPES[self.dtype].itemsize

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


@dataclass(frozen=True)
class StoredTensor(TensorShape):
    """A tensor in a file, from byte `begin` on. A loop over it gives its blocks in float64."""

    file: Path
    begin: int

    def blocks(self, size: int = BLOCK) -> Iterator[Tensor]:
        """Its numbers as they are stored, flat, at most `size` at a time. Raises `OSError` where the file has fewer."""
        with self.file.open("rb") as file:
            file.seek(self.begin)
            for first in range(0, self.count, size):
                data = bytearray(min(size, self.count - first) * DTYPES[self.dtype].itemsize)
                if file.readinto(data) != len(data):
                    raise OSError(f"{self.file} became shorter while it was read")
                yield torch.frombuffer(data, dtype=DTYPES[self.dtype])

    def __iter__(self) -> Iterator[Tensor]:
        return (block.double() for block in self.blocks())


def _bytes_of(block: Tensor) -> memoryview:
    return block.view(torch.uint8).numpy().data


def round_once(block: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 numbers in `dtype`, rounded to nearest even.

    Torch narrows to 16 bits by way of float32, which rounds twice. So the float32 is first rounded to odd: of its two
    neighbours an inexact number takes the one that ends in 1 (Boldo and Melquiond, "Emulation of FMA and correctly
    rounded sums", 2008).
    """
    if dtype.itemsize > 2:
        return block.to(dtype)
    single = block.float()
    wide = single.double()
    bits = single.view(torch.int32) - (wide.abs() > block.abs()).int()
    return (bits | (wide != block).int()).view(torch.float32).to(dtype)


def read_header(file: Path) -> list[StoredTensor]:
    """The tensors of a file, in the order of their bytes. The library checks the header against the file."""
    found: list[StoredTensor] = []
    try:
        with file.open("rb") as raw:
            begin = 8 + int.from_bytes(raw.read(8), "little")
        with safe_open(file, framework="pt") as opened:
            for name in opened.offset_keys():
                part = opened.get_slice(name)
                dtype, shape = str(part.get_dtype()), tuple(part.get_shape())
                if dtype not in DTYPES:
                    got = f"{short_repr(name)} is {dtype}"
                    raise Problems(Problem(str(file), got, f"expected one of {', '.join(DTYPES)}"))
                found.append(StoredTensor(name, dtype, shape, file, begin))
                begin += found[-1].bytes
    except (OSError, SafetensorError) as error:
        got = f"cannot be read as safetensors, {error_message(error)}"
        raise Problems(Problem(str(file), got, "use a whole file", "bad-file")) from error
    return found


def check_file(file: Path, tensors: Sequence[StoredTensor], on_bytes: OnBytes) -> tuple[str, list[str]]:
    """A file's sha256, and the names of those of its tensors that have a NaN or an infinity."""
    if not tensors:
        return checkpoints.sha256(file), []
    bad, sha256 = [], hashlib.sha256()
    with file.open("rb") as raw:
        sha256.update(raw.read(tensors[0].begin))
    for tensor in tensors:  # one after the other, to the end of the file
        finite = True
        for block in tensor.blocks():
            sha256.update(_bytes_of(block))
            finite = finite and bool(block.isfinite().all())
            on_bytes(block.nbytes)
        if not finite:
            bad.append(tensor.name)
    return sha256.hexdigest(), bad


def write_file(path: Path, tensors: Iterable[tuple[TensorShape, Iterable[Tensor]]], on_bytes: OnBytes) -> str:
    """Write a new file of these tensors, given in blocks; its sha256.

    Wide formats come first, so that every tensor begins at a multiple of its format's size. The file is synced and
    dropped from the page cache, so that reading it back reads the disk.
    """
    ordered = sorted(tensors, key=lambda tensor: -DTYPES[tensor[0].dtype].itemsize)
    sha256 = hashlib.sha256()
    with path.open("xb") as file:

        def write(data: bytes | memoryview) -> None:
            file.write(data)
            sha256.update(data)

        write(_header([shape for shape, _ in ordered]))
        for shape, blocks in ordered:
            end = file.tell() + shape.bytes
            for block in blocks:
                write(_bytes_of(block))
                on_bytes(block.nbytes)
            assert file.tell() == end, f"{shape.name}: {end - file.tell()} bytes were not given"
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    fsync_path(path.parent)
    return sha256.hexdigest()


def _header(tensors: Sequence[TensorShape]) -> bytes:
    node: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file that does not say so
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.bytes
        node[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(node, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
