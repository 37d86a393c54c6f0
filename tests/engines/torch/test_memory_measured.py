"""The estimate against real runs, watched from outside as benchmarks/memory.py does it for 24 settings."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

OFF = 0.25  # at most, of any setting


@pytest.fixture(scope="module")
def bench() -> Any:
    return importlib.import_module("memory")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


@pytest.mark.parametrize(
    ("algorithm", "more"), [("dpo", {"checkpointing": True}), ("grpo", {"rank": 8, "dtype": "bfloat16"})]
)
def test_a_run_takes_what_was_said(algorithm: str, more: dict[str, Any], bench: Any, root: Path) -> None:
    """One micro-batch of several."""
    setting = bench.Setting(algorithm, "llama-20m", 64, 64, 4, batch=4, **more)
    found = bench.measure(setting, root, "cpu")
    assert abs(found.error) <= OFF
    assert not found.trusted, "a limit under the measured peak was called enough"


def test_every_published_row_fits(bench: Any) -> None:
    """What verl's table says was run must fit by our arithmetic; what its authors found too much is near it."""
    rows = bench.published()
    assert len(rows) == 12
    for one in rows:
        assert one.agrees, one.row
        assert all(share >= 0.8 for share in one.refused), one.row
    assert any(not one.at_longest_bytes <= one.card_bytes for one in rows), "full lengths would not fit, as GSM8K's do"
