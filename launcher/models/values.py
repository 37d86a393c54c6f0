"""Checks samples of weights for NaN, infinite and all-zero values; of any folder a plan reads some megabytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from launcher.core.problems import Problem
from launcher.models import weights

TENSORS = 1000
"""Most tensors of a folder that are sampled; of more, evenly spread ones."""
BLOCK = 2**14
"""Bytes read at the beginning, in the middle and at the end of a tensor; up to four blocks are read whole."""
_EXPONENTS = {"BF16": (0x7F, 0x80), "F32": (0x7F, 0x80), "F16": (0x7C, 0x00), "F64": (0x7F, 0xF0)}
"""Bits of the two most significant bytes that are all set in NaN and infinite numbers (IEEE 754) and in no other."""
_WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}


def faults(folder: Path) -> tuple[list[Problem], list[Problem]]:
    """Why the weights of a folder without other faults must not be trained, and warnings of doubtful ones."""
    nonfinite, all_zero = list[str](), True
    for name, dtype, samples in _sampled_tensors(folder):
        all_zero = all_zero and all(sample.count(0) == len(sample) for sample in samples)
        if any(_has_nonfinite(sample, dtype) for sample in samples):
            nonfinite.append(name)
    if nonfinite:
        others = f" and {len(nonfinite) - 1} other tensors hold" if len(nonfinite) > 1 else " holds"
        got = f"{nonfinite[0]}{others} NaN or infinite numbers"
        return [Problem(str(folder), got, "use an earlier checkpoint, or download it again", "bad-file")], []
    if all_zero:
        got = "all weights that were looked at are 0"
        return [], [Problem(str(folder), got, "use the folder as it was saved, or download it again", "bad-file")]
    return [], []


def _sampled_tensors(folder: Path) -> Iterator[tuple[str, str, list[bytes]]]:
    """Name, number format and samples of tensors, without masks and scalars, which older versions stored beside the
    weights."""
    shapes = {name: shape for name, shape in (weights.shapes(folder) or {}).items() if 0 < len(shape) < 4}
    step = max(1, -(-len(shapes) // TENSORS))
    for file_name in weights.read_by_a_loader(folder):
        header = weights.read_header(folder / file_name)
        with (folder / file_name).open("rb", buffering=0) as file:
            for name in sorted(name for name, of in header.items() if name in shapes and of.dtype in _WIDTHS)[::step]:
                dtype, _, begin, end = header[name]
                yield name, dtype, _read_samples(file.fileno(), begin, end)


def _read_samples(file: int, begin: int, end: int) -> list[bytes]:
    if end - begin <= 4 * BLOCK:
        return [os.pread(file, end - begin, begin)]
    middle = (begin + end) // 2 // 8 * 8 + begin % 8  # offset from `begin`: a multiple of every width
    return [os.pread(file, BLOCK, offset) for offset in (begin, middle, end - BLOCK)]


def _has_nonfinite(sample: bytes, dtype: str) -> bool:
    """Whether any number has all exponent bits set, as NaN and infinity have. Numbers are little-endian."""
    width, (high, low) = _WIDTHS[dtype], _EXPONENTS[dtype]
    high_bits = sample[width - 1 :: width].translate(_bits_set_table(high))
    low_bits = sample[width - 2 :: width].translate(_bits_set_table(low))
    return (int.from_bytes(high_bits) & int.from_bytes(low_bits)) != 0


def _bits_set_table(bits: int) -> bytes:
    """Translation table: 1 for bytes with all of these bits set, otherwise 0."""
    return bytes(byte & bits == bits for byte in range(256))
