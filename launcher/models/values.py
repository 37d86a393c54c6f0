"""Whether the values of weights can be those of a model, by samples: a plan reads some megabytes of any folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from launcher.core.problems import Problem
from launcher.models import weights

TENSORS = 1000
"""Of a folder, that are looked at; of more, as many evenly spread."""
BLOCK = 2**14
"""Bytes read at the beginning, in the middle and at the end of a tensor; all of one that is not much larger."""
_EXPONENTS = {"BF16": (0x7F, 0x80), "F32": (0x7F, 0x80), "F16": (0x7C, 0x00), "F64": (0x7F, 0xF0)}
"""Bits of the two most significant bytes that are all set in NaN and infinite numbers (IEEE 754) and in no other."""
_WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}


def faults(folder: Path) -> tuple[list[Problem], list[Problem]]:
    """Why the weights of a folder without faults of other kinds must not be trained, and why they hardly can be."""
    broken, zero = list[str](), True
    for name, dtype, samples in _sampled_tensors(folder):
        zero = zero and all(sample.count(0) == len(sample) for sample in samples)
        if any(_not_finite(sample, dtype) for sample in samples):
            broken.append(name)
    if broken:
        others = f" and {len(broken) - 1} other tensors hold" if len(broken) > 1 else " holds"
        got = f"{broken[0]}{others} NaN or infinite numbers"
        return [Problem(str(folder), got, "use an earlier checkpoint, or download it again", "bad-file")], []
    if zero:
        got = "all weights that were looked at are 0"
        return [], [Problem(str(folder), got, "use the folder as it was saved, or download it again", "bad-file")]
    return [], []


def _sampled_tensors(folder: Path) -> Iterator[tuple[str, str, list[bytes]]]:
    """Name, number format and samples of tensors; none of masks and single numbers, which older versions kept beside
    the weights."""
    shapes = {name: shape for name, shape in (weights.shapes(folder) or {}).items() if 0 < len(shape) < 4}
    step = max(1, -(-len(shapes) // TENSORS))
    for file_name in weights.read_by_a_loader(folder):
        stored = weights.read_header(folder / file_name)
        with (folder / file_name).open("rb", buffering=0) as file:
            for name in sorted(name for name, of in stored.items() if name in shapes and of.dtype in _WIDTHS)[::step]:
                dtype, _, begin, end = stored[name]
                yield name, dtype, _samples(file.fileno(), begin, end)


def _samples(file: int, begin: int, end: int) -> list[bytes]:
    if end - begin <= 4 * BLOCK:
        return [os.pread(file, end - begin, begin)]
    middle = (begin + end) // 2 // 8 * 8 + begin % 8  # a multiple of every width from its beginning
    return [os.pread(file, BLOCK, place) for place in (begin, middle, end - BLOCK)]


def _not_finite(sample: bytes, dtype: str) -> bool:
    """Whether the exponent of any number has all bits set. Numbers are little-endian."""
    width, (high, low) = _WIDTHS[dtype], _EXPONENTS[dtype]
    first = sample[width - 1 :: width].translate(_table(high))
    second = sample[width - 2 :: width].translate(_table(low))
    return (int.from_bytes(first) & int.from_bytes(second)) != 0


def _table(bits: int) -> bytes:
    """1 for a byte that has all of these bits set."""
    return bytes(byte & bits == bits for byte in range(256))
