"""Numbers keep their bits on the way through float64, and a file is what its header says or is refused."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from launcher.core.problems import Problems
from launcher.tools.merge.tensors import (
    BLOCK,
    FLOATS,
    TensorReader,
    TensorShape,
    TensorWriter,
    all_finite,
    check_file,
    file_order,
    from_float64,
    read_header,
    to_float64,
)

TORCH = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
EVERY16 = np.arange(1 << 16, dtype=np.uint16)


def nobody(more: int) -> None:
    pass


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_every_16_bit_number_comes_back_by_its_bits(dtype: str) -> None:
    numbers = EVERY16[[all_finite(EVERY16[i : i + 1].view(np.uint8), dtype) for i in range(1 << 16)]]
    wide = to_float64(numbers.view(np.uint8), dtype)
    assert np.array_equal(wide, torch.tensor(numbers).view(TORCH[dtype]).double().numpy())
    assert np.array_equal(from_float64(wide, dtype).view(np.uint16), numbers)  # -0.0 too


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_what_is_not_finite_is_seen_bit_pattern_by_bit_pattern(dtype: str) -> None:
    seen = [all_finite(EVERY16[i : i + 1].view(np.uint8), dtype) for i in range(1 << 16)]
    assert seen == torch.tensor(EVERY16).view(TORCH[dtype]).isfinite().tolist()


def nearest_bfloat16(value: float) -> int:
    """Bits of the nearest bfloat16, the even one of two, by comparing exact values."""
    low = np.array([value], np.float64).astype(np.float32).view(np.uint32)[0] >> 16
    around = [bits for bits in (low - 1, low, low + 1) if 0 <= bits < 1 << 16]
    values = {int(b): to_float64(np.array([b], np.uint16).view(np.uint8), "BF16")[0] for b in around}
    return min((abs(v - value), b & 1, b) for b, v in values.items() if np.isfinite(v))[2]


@given(st.integers(0x0080, 0x7F00), st.sampled_from([0.5, 0.25, 0.75]), st.integers(-2, 2), st.booleans())
def test_bfloat16_is_rounded_once(bits: int, share: float, nudge: int, minus: bool) -> None:
    """Between two neighbours, half-way and a float64's width beside it: where rounding twice goes wrong."""
    low, high = to_float64(np.array([bits, bits + 1], np.uint16).view(np.uint8), "BF16")
    value = low + (high - low) * share
    for _ in range(abs(nudge)):
        value = np.nextafter(value, np.inf if nudge > 0 else -np.inf)
    found = from_float64(np.array([-value if minus else value]), "BF16")[0]
    assert found == nearest_bfloat16(value) | (0x8000 if minus else 0)


def test_too_large_becomes_infinite_and_is_seen() -> None:
    for dtype, large in (("F32", 1e39), ("BF16", 3.4e38), ("F16", 1e5)):
        assert not all_finite(from_float64(np.array([large]), dtype), dtype)


# ---- files


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
    with TensorReader() as reader:
        for tensor in held:
            if tensor.dtype in FLOATS:
                found = np.concatenate([np.empty(0), *reader.values(tensor)])
                assert np.array_equal(found, tensors[tensor.name].double().flatten().numpy())
            else:
                assert b"".join(part.tobytes() for part in reader.parts(tensor)) == tensors["whole"].numpy().tobytes()
    seen = check_file(tmp_path / "x.safetensors", held, nobody)
    assert seen.sha256 == hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).hexdigest()
    assert seen.not_finite == ()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", TORCH)
def test_a_tensor_that_is_not_finite_is_named(dtype: str, bad: float, tmp_path: Path) -> None:
    nonfinite = torch.randn(1000)
    nonfinite[777] = bad
    save_file({"good": torch.ones(9), "spoilt": nonfinite.to(TORCH[dtype])}, tmp_path / "x.safetensors")
    held = read_header(tmp_path / "x.safetensors")
    assert check_file(tmp_path / "x.safetensors", held, nobody).not_finite == ("spoilt",)


def test_it_is_named_wherever_in_the_file_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.tools.merge.tensors.CHUNK", 64)
    for place in (0, 15, 16, 999):
        nonfinite = torch.ones(1000)
        nonfinite[place] = float("nan")
        save_file({"spoilt": nonfinite}, tmp_path / "x.safetensors")
        assert check_file(tmp_path / "x.safetensors", read_header(tmp_path / "x.safetensors"), nobody).not_finite == (
            "spoilt",
        )


def test_what_is_written_the_library_reads(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 5).bfloat16(), "w": torch.randn(2, 2), "i": torch.arange(3), "e": torch.empty(0)}
    names = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64"}
    shapes = file_order([TensorShape(name, names[t.dtype], tuple(t.shape)) for name, t in tensors.items()])
    counted = [0]

    def count(more: int) -> None:
        counted[0] += more

    with TensorWriter(tmp_path / "x.safetensors", shapes, count) as writer:
        for shape in shapes:
            raw = (
                tensors[shape.name].contiguous().view(torch.uint8) if shape.count else torch.empty(0, dtype=torch.uint8)
            )
            writer.add(raw.flatten().numpy())
        digest = writer.finish()
    assert digest == hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).hexdigest()
    found = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items()) and found.keys() == tensors.keys()
    assert counted == [sum(t.nbytes for t in tensors.values())]
    for tensor in read_header(tmp_path / "x.safetensors"):  # readers that map the file need it so
        assert tensor.count == 0 or (tensor.begin - stored_begin(tmp_path)) % tensors[tensor.name].element_size() == 0


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
    with TensorReader() as reader, pytest.raises(OSError, match="became shorter"):
        reader.raw(tensor, 0, 100)
