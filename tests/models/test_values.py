"""Numbers that no trained weight is are seen in every format, wherever a sample is taken."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from launcher.models.values import BLOCK, faults

LARGEST = {dtype: torch.finfo(dtype).max for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_what_is_not_finite_is_found(dtype: torch.dtype, tmp_path: Path) -> None:
    held = {
        "small": torch.full((3, 5), -LARGEST[dtype], dtype=dtype),
        "large": torch.full((3, 4 * BLOCK), 0.5).to(dtype),
    }
    file, large = tmp_path / "model.safetensors", held["large"].numel()
    save_file(held, file)
    assert faults(tmp_path) == ([], [])
    looked_at = [("small", 0), ("small", 14), ("large", 0), ("large", large // 2 + 3), ("large", large - 1)]
    for (name, place), value in zip(looked_at, [math.nan, math.inf, -math.inf, math.nan, math.inf], strict=True):
        changed = {**held, name: held[name].clone(), "head": torch.ones(1)}
        changed[name].view(-1)[place] = value
        save_file(changed, file)
        ((problem,), _) = faults(tmp_path)
        assert problem.got == f"{name} holds NaN or infinite numbers"


def test_masks_and_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    mask = torch.full((1, 1, 8, 8), float("-inf"))
    number = torch.tensor(-1e9).half()  # as GPT-NeoX has it, infinite in half precision
    save_file(
        {"mask": mask, "attention.masked_bias": number, "ids": torch.arange(9), "w": torch.ones(2, 2)},
        tmp_path / "model.safetensors",
    )
    assert faults(tmp_path) == ([], [])
