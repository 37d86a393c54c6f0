"""Safetensors by the block: what a file holds, its numbers as float64, and a file written tensor after tensor.

Nothing here holds a tensor, only BLOCK numbers of it. Files are read by `preadv` and never mapped, so that they
do not count as memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from launcher.core.files import fsync_path
from launcher.core.problems import Problem, Problems, error_message, short_repr

BLOCK = 1 << 17  # numbers: 1 MiB as float64, which stays in the processor's cache
CHUNK = 1 << 22  # bytes that are looked through at a time

FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}  # numpy has no bfloat16
WHOLE = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}
BYTES = {name: np.dtype(kind).itemsize for name, kind in FLOATS.items()} | WHOLE

Block = NDArray[np.float64]
Raw = NDArray[np.uint8]
OnBytes = Callable[[int], None]
"""Hears of so many bytes more that were read or written."""


@dataclass(frozen=True)
class TensorShape:
    """A tensor as it is, wherever it lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * BYTES[self.dtype]


@dataclass(frozen=True)
class StoredTensor(TensorShape):
    """A tensor in a file, from byte `begin` on."""

    file: Path
    begin: int


def read_header(file: Path) -> list[StoredTensor]:
    """The tensors of a file, in the order they lie in it. The library checks that the header speaks the truth."""
    found: list[StoredTensor] = []
    try:
        with file.open("rb") as raw:
            begin = 8 + int.from_bytes(raw.read(8), "little")
        with safe_open(file, framework="numpy") as opened:
            for name in opened.offset_keys():
                part = opened.get_slice(name)
                dtype, shape = str(part.get_dtype()), tuple(part.get_shape())
                if dtype not in BYTES:
                    raise Problems(
                        Problem(str(file), f"{short_repr(name)} is {dtype}", f"expected one of {', '.join(BYTES)}")
                    )
                found.append(StoredTensor(name, dtype, shape, file, begin))
                begin += found[-1].bytes
    except (OSError, SafetensorError) as error:
        raise Problems(
            Problem(
                str(file), f"cannot be read as safetensors, {error_message(error)}", "use a whole file", code="bad-file"
            )
        ) from error
    return found


class TensorReader:
    """Reads the tensors of one model; of its files one is open at a time."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file = -1

    def raw(self, tensor: StoredTensor, first: int, last: int) -> Raw:
        """The bytes of numbers `first` to `last`."""
        if self._path != tensor.file:
            self.close()
            self._file, self._path = os.open(tensor.file, os.O_RDONLY), tensor.file
        size = BYTES[tensor.dtype]
        found = np.empty((last - first) * size, np.uint8)
        _read_into(self._file, found, tensor.begin + first * size, tensor.file)
        return found

    def parts(self, tensor: StoredTensor) -> Iterator[Raw]:
        """All its bytes, block after block."""
        for first in range(0, tensor.count, BLOCK):
            yield self.raw(tensor, first, min(first + BLOCK, tensor.count))

    def values(self, tensor: StoredTensor, block: int = BLOCK) -> Values:
        return Values(self, tensor, block)

    def whole(self, tensor: StoredTensor) -> Block:
        """All numbers of a small tensor, in its shape."""
        return to_float64(self.raw(tensor, 0, tensor.count), tensor.dtype).reshape(tensor.shape)

    def close(self) -> None:
        if self._path is not None:
            os.close(self._file)
            self._path = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_into(file: int, found: Raw, begin: int, path: Path) -> None:
    view, done = found.data, 0
    while done < len(view):
        read = os.preadv(file, [view[done:]], begin + done)
        if not read:
            raise OSError(f"{path} became shorter while it was read")
        done += read


@dataclass(frozen=True)
class Values:
    """A tensor's numbers, block after block in the order of memory; each loop begins at the first."""

    reader: TensorReader
    tensor: StoredTensor
    block: int

    @property
    def count(self) -> int:
        return self.tensor.count

    def __iter__(self) -> Iterator[Block]:
        for first in range(0, self.tensor.count, self.block):
            raw = self.reader.raw(self.tensor, first, min(first + self.block, self.tensor.count))
            yield to_float64(raw, self.tensor.dtype)


# ---- number formats


def to_float64(raw: Raw, dtype: str) -> Block:
    """Numbers of any float format as float64, which holds each of them exactly."""
    if dtype == "BF16":  # the upper half of a float32
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.view(FLOATS[dtype]).astype(np.float64)


def from_float64(values: Block, dtype: str) -> NDArray[Any]:
    """float64 rounded once, to the nearest, ties to even. What is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return _bfloat16(values) if dtype == "BF16" else values.astype(FLOATS[dtype])


def _bfloat16(values: Block) -> NDArray[np.uint16]:
    """By way of float32. Where that came to lie half-way between two bfloat16, it is moved to the side that the
    number was on, so that it is not rounded twice."""
    single = values.astype(np.float32)
    bits = single.view(np.uint32)
    halves = np.flatnonzero((bits & 0xFFFF) == 0x8000)
    exact, near = np.abs(values[halves]), np.abs(single[halves]).astype(np.float64)
    bits[halves] += (exact > near).astype(np.uint32)
    bits[halves] -= (exact < near).astype(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def all_finite(raw: Raw | NDArray[Any], dtype: str) -> bool:
    """Whether every number is finite; whole numbers are."""
    if dtype == "BF16":
        return not ((raw.view(np.uint16) & 0x7F80) == 0x7F80).any()
    return dtype not in FLOATS or bool(np.isfinite(raw.view(FLOATS[dtype])).all())


# ---- whole files


@dataclass(frozen=True)
class FileCheck:
    sha256: str
    not_finite: tuple[str, ...]
    """Names of tensors with NaN or infinity."""


def check_file(file: Path, tensors: Sequence[StoredTensor], told: OnBytes) -> FileCheck:
    """Read a file once, from its first byte to its last; `tensors` are all it holds, in their order."""
    sha256, bad = hashlib.sha256(), list[str]()
    with TensorReader() as reader:
        header = tensors[0].begin if tensors else file.stat().st_size
        sha256.update(reader.raw(StoredTensor("header", "U8", (header,), file, 0), 0, header).data)
        for tensor in tensors:
            step, good = CHUNK // BYTES[tensor.dtype], True
            for first in range(0, tensor.count, step):
                raw = reader.raw(tensor, first, min(first + step, tensor.count))
                sha256.update(raw.data)
                good = good and all_finite(raw, tensor.dtype)
                told(len(raw))
            if not good:
                bad.append(tensor.name)
    return FileCheck(sha256.hexdigest(), tuple(bad))


class TensorWriter:
    """A file that comes into being. Its tensors are known beforehand and are written in that order."""

    def __init__(self, path: Path, tensors: Sequence[TensorShape], told: OnBytes) -> None:
        self.path, self.told = path, told
        self._left = sum(tensor.bytes for tensor in tensors)
        self._sha256 = hashlib.sha256()
        self._file: BinaryIO = path.open("xb")
        self._write(_header(tensors))

    def add(self, block: NDArray[Any]) -> None:
        self._left -= block.nbytes
        self._write(block.data)
        self.told(block.nbytes)

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._sha256.update(data)

    def finish(self) -> str:
        """Make it durable; its sha256. It is dropped from the cache, so that who reads it back asks the disk."""
        assert self._left == 0, f"{self.path.name}: {self._left} bytes were not given"
        self._file.flush()
        os.fsync(self._file.fileno())
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._file.close()
        fsync_path(self.path.parent)
        return self._sha256.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def file_order(tensors: Sequence[TensorShape]) -> list[TensorShape]:
    """In the order of a file: wide formats first, so that every tensor begins at a multiple of its format's size."""
    return sorted(tensors, key=lambda tensor: -BYTES[tensor.dtype])


def _header(tensors: Sequence[TensorShape]) -> bytes:
    node: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file that does not say so
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.bytes
        node[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(node, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
