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
_EXPONENTS = {
    "BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F32": ("<u4", 0x7F80 << 16), "F64": ("<u8", 0x7FF0 << 48),
}  # fmt: skip
"""How a number is read as an integer, and its bits that are all set in NaN and infinite numbers (IEEE 754) alone."""


def faults(folder: Path) -> tuple[list[Problem], list[Problem]]:
    """Why the weights of a folder without faults of other kinds must not be trained, and why they hardly can be."""
    import numpy as np  # noqa: PLC0415 - most plans read no weights

    broken, zero = list[str](), True
    for name, dtype, samples in _sampled_tensors(folder):
        zero = zero and all(sample.count(0) == len(sample) for sample in samples)
        kind, bits = _EXPONENTS[dtype]
        if any((np.frombuffer(sample, kind) & bits == bits).any() for sample in samples):
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
            read = sorted(name for name, of in stored.items() if name in shapes and of.dtype in _EXPONENTS)
            for name in read[::step]:
                dtype, _, begin, end = stored[name]
                yield name, dtype, _samples(file.fileno(), begin, end)


def _samples(file: int, begin: int, end: int) -> list[bytes]:
    if end - begin <= 4 * BLOCK:
        return [os.pread(file, end - begin, begin)]
    middle = (begin + end) // 2 // 8 * 8 + begin % 8  # a multiple of every width from its beginning
    return [os.pread(file, BLOCK, place) for place in (begin, middle, end - BLOCK)]
