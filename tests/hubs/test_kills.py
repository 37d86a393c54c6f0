"""`rlrun model download` in a process of its own, killed at some byte: benchmarks/downloads.py does it thirty times."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def downloads(act: Any) -> Any:
    """The benchmark, with a smaller model; `act` has loaded the hub it imports."""
    spec = importlib.util.spec_from_file_location("downloads", ROOT / "benchmarks" / "downloads.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SIZES = dict.fromkeys(module.SIZES, 6_000_000)
    module.SPEED = 8e6
    return module


@pytest.mark.parametrize(("source", "at"), [("huggingface", 2_000_000), ("modelscope", 7_000_000),
                                            ("huggingface", 11_500_000)])  # fmt: skip
def test_a_killed_download_goes_on(downloads: Any, source: str, at: int) -> None:
    kill = downloads.one(source, at, random.Random(at))
    assert kill.wrong == []
    assert at <= kill.sent < sum(downloads.SIZES.values()), "it was not killed on its way"
    assert kill.kept >= 0.9
