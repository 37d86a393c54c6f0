"""Tensors are read and written by their bits, and a file is what its header says or is refused."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from launcher.core.problems import Problems
from launcher.tools.merge.tensors import (
    BLOCK,
    DTYPES,
    FLOATS,
    TensorShape,
    check_file,
    read_header,
    round_once,
    write_file,
)


def nobody(more: int) -> None:
    pass


def test_a_file_of_the_library_is_read_by_the_block(tmp_path: Path) -> None:
    tensors = {
        "long": torch.randn(3, BLOCK // 2 + 7),  # more than one block, and not a multiple
        "half": torch.randn(5, 5).bfloat16(),
        "none": torch.empty(0, 4),
        "one": torch.tensor(3.5, dtype=torch.float16),
        "whole": torch.arange(7),
    }
    save_file(tensors, tmp_path / "x.safetensors")
    held = read_header(tmp_path / "x.safetensors")
    assert {t.name: t.shape for t in held} == {name: tuple(value.shape) for name, value in tensors.items()}
    for tensor in held:
        expected = tensors[tensor.name].flatten()
        assert torch.equal(torch.cat([expected[:0], *tensor.blocks()]), expected)
        assert torch.equal(torch.cat([expected[:0].double(), *tensor]), expected.double())
    digest = hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).hexdigest()
    assert check_file(tmp_path / "x.safetensors", held, nobody) == (digest, [])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_a_tensor_that_is_not_finite_is_named(dtype: str, bad: float, tmp_path: Path) -> None:
    nonfinite = torch.randn(1000)
    nonfinite[777] = bad
    save_file({"good": torch.ones(9), "spoilt": nonfinite.to(DTYPES[dtype])}, tmp_path / "x.safetensors")
    held = read_header(tmp_path / "x.safetensors")
    assert check_file(tmp_path / "x.safetensors", held, nobody)[1] == ["spoilt"]


def test_it_is_named_wherever_in_the_file_it_lies(tmp_path: Path) -> None:
    for place in (0, BLOCK - 1, BLOCK, 2 * BLOCK + 7):
        nonfinite = torch.ones(2 * BLOCK + 8)
        nonfinite[place] = float("nan")
        save_file({"spoilt": nonfinite}, tmp_path / "x.safetensors")
        held = read_header(tmp_path / "x.safetensors")
        assert check_file(tmp_path / "x.safetensors", held, nobody)[1] == ["spoilt"]


def test_what_is_written_the_library_reads(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 5).bfloat16(), "w": torch.randn(2, 2), "e": torch.empty(0)}
    tensors |= {f"n{name}": torch.arange(2).to(dtype) for name, dtype in DTYPES.items()}
    names = {dtype: name for name, dtype in DTYPES.items()}
    counted = [0]

    def count(more: int) -> None:
        counted[0] += more

    given = [(TensorShape(name, names[t.dtype], tuple(t.shape)), t.flatten().split(2)) for name, t in tensors.items()]
    digest = write_file(tmp_path / "x.safetensors", given, count)
    assert digest == hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).hexdigest()
    found = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items()) and found.keys() == tensors.keys()
    assert counted == [sum(t.nbytes for t in tensors.values())]
    held = read_header(tmp_path / "x.safetensors")
    for tensor in held:  # readers that map the file need it so
        assert tensor.count == 0 or (tensor.begin - stored_begin(tmp_path)) % tensors[tensor.name].element_size() == 0
    assert check_file(tmp_path / "x.safetensors", held, nobody) == (digest, [])


def stored_begin(folder: Path) -> int:
    return 8 + int.from_bytes((folder / "x.safetensors").read_bytes()[:8], "little")


def file_of(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


LIES: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": b"1234567",
    "a header longer than the file": struct.pack("<Q", 1 << 40) + b"{}",
    "no JSON": file_of(b"\x80\x04pickle"),
    "no object": file_of([1]),
    "cut": file_of({"a": one(0, 16, [4])}, bytes(15)),
    "longer": file_of({"a": one(0, 16, [4])}, bytes(17)),
    "a hole": file_of({"a": one(0, 4, [1]), "b": one(8, 12, [1])}, bytes(12)),
    "over another": file_of({"a": one(0, 8, [2]), "b": one(4, 12, [2])}, bytes(12)),
    "a shape of another size": file_of({"a": one(0, 16, [5])}, bytes(16)),
    "a shape below 0": file_of({"a": one(0, 4, [-1])}, bytes(4)),
    "a size that overflows": file_of({"a": one(0, 16, [1 << 62, 1 << 62])}, bytes(16)),
    "an unknown format": file_of({"a": one(0, 4, [1], "F31")}, bytes(4)),
    "a format that cannot be computed with": file_of({"a": one(0, 4, [4], "F8_E4M3")}, bytes(4)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_is_not_what_it_says_is_refused_by_name(lie: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(LIES[lie])
    with pytest.raises(Problems) as found:
        read_header(tmp_path / "x.safetensors")
    assert found.value.lines[0].startswith(f"{tmp_path}/x.safetensors: ") and len(found.value.lines) == 1


def test_a_file_that_shrinks_while_it_is_read_is_an_error_and_no_garbage(tmp_path: Path) -> None:
    save_file({"a": torch.ones(100)}, tmp_path / "x.safetensors")
    (tensor,) = read_header(tmp_path / "x.safetensors")
    with (tmp_path / "x.safetensors").open("r+b") as file:
        file.truncate(tensor.begin + 40)
    with pytest.raises(OSError, match="became shorter"):
        list(tensor)


# ---- rounding


def nearest(value: float, dtype: torch.dtype) -> Tensor:
    """The nearest number of 16 bits, the even one of two, by exact comparison."""
    near = torch.tensor([value], dtype=torch.float64).to(dtype).view(torch.int16)
    around = [number for number in (near - 1, near, near + 1) if number.view(dtype).isfinite()]
    return min(around, key=lambda bits: (abs(Fraction(bits.view(dtype).item()) - Fraction(value)), int(bits) & 1))


@given(st.integers(0x0400, 0x7700), st.sampled_from([0.5, 0.25, 0.75]), st.integers(-2, 2), st.booleans())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_are_rounded_once(
    dtype: torch.dtype, bits: int, share: float, nudge: int, minus: bool
) -> None:
    """Between two neighbours, half-way and a float64's width beside it: where rounding twice goes wrong."""
    low, high = torch.tensor([bits, bits + 1], dtype=torch.int16).view(dtype).double().tolist()
    value = low + (high - low) * share
    for _ in range(abs(nudge)):
        value = math.nextafter(value, math.inf if nudge > 0 else -math.inf)
    value = -value if minus else value
    found = round_once(torch.tensor([value], dtype=torch.float64), dtype)
    assert found.view(torch.int16).equal(nearest(value, dtype)), (value, found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_of_16_bits_comes_back_by_its_bits(dtype: torch.dtype) -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    numbers = every[~every.isnan()]  # -0.0 and the infinities too
    assert round_once(numbers.double(), dtype).view(torch.int16).equal(numbers.view(torch.int16))
    assert round_once(torch.tensor([math.nan], dtype=torch.float64), dtype).isnan().all()


def test_a_checked_file_has_its_own_sha256(tmp_path: Path) -> None:
    save_file(
        {"long": torch.randn(3, BLOCK // 2 + 7), "whole": torch.arange(9), "none": torch.empty(0)}, tmp_path / "a"
    )
    digest, bad = check_file(tmp_path / "a", read_header(tmp_path / "a"), nobody)
    assert (digest, bad) == (hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest(), [])
