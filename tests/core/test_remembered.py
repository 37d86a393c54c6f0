"""Results that are kept on disk: found again, and never more than a number of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.core import remembered


def test_the_oldest_results_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(remembered, "MOST", 3)
    for number in range(6):
        remembered.remember("sums", str(number), [number])
        os.utime(remembered.cache_folder("sums") / f"{number}.json", (number, number))
    assert [remembered.recall("sums", str(number)) for number in range(6)] == [None, None, None, [3], [4], [5]]
    assert len([*remembered.cache_folder("sums").iterdir()]) == 3
