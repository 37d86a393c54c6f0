"""`rlrun model download` in a process of its own, killed at some byte: benchmarks/downloads.py does it thirty times."""

from __future__ import annotations

import random
from typing import Any

import pytest


@pytest.mark.parametrize(("source", "at"), [("huggingface", 2_000_000), ("modelscope", 7_000_000)])
def test_a_killed_download_continues(downloads: Any, source: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "SIZES", dict.fromkeys(list(downloads.SIZES)[:2], 6_000_000))
    monkeypatch.setattr(downloads, "SPEED", 8e6)
    kill = downloads.kill_once(source, at, random.Random(at))
    assert kill.wrong == []
    assert at <= kill.sent < 12_000_000, "it was not killed on its way"
    assert kill.good
    assert source != "modelscope" or kill.kept >= 0.9
