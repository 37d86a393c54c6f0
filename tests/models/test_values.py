"""Numbers that no trained weight is are seen in every format, wherever a sample is taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from launcher.models.values import BLOCK, faults

LARGEST = {dtype: torch.finfo(dtype).max for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_found(dtype: torch.dtype, value: float, tmp_path: Path) -> None:
    small = torch.full((3, 5), -LARGEST[dtype], dtype=dtype)
    large = torch.full((3, 4 * BLOCK), 0.5, dtype=dtype)
    folder = tmp_path / "model.safetensors"
    save_file({"small": small, "large": large}, folder)
    assert faults(tmp_path) == ([], [])
    for tensor, places in ((small, range(15)), (large, (0, large.numel() // 2 + 3, large.numel() - 1))):
        for place in places:
            before = tensor.view(-1)[place].item()
            tensor.view(-1)[place] = value
            save_file({"small": small, "large": large, "head": torch.ones(1)}, folder)
            ((problem,), _) = faults(tmp_path)
            assert problem.got == f"{'small' if tensor is small else 'large'} holds NaN or infinite numbers"
            tensor.view(-1)[place] = before


def test_masks_and_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    mask = torch.full((1, 1, 8, 8), float("-inf"))
    number = torch.tensor(-1e9).half()  # as GPT-NeoX has it, infinite in half precision
    save_file(
        {"mask": mask, "attention.masked_bias": number, "ids": torch.arange(9), "w": torch.ones(2, 2)},
        tmp_path / "model.safetensors",
    )
    assert faults(tmp_path) == ([], [])
