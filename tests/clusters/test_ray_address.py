"""Which cluster is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.clusters.ray.listing import head_address
from launcher.core.problems import Problems


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def test_an_address_is_taken_before_that_of_the_shell_and_that_before_this_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(Problems, match="this machine is in no cluster"):
        head_address("auto")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("mine:3")  # as `ray start` does
    assert head_address("auto") == "mine:3"
    monkeypatch.setenv("RAY_ADDRESS", "other:2")
    assert (head_address("auto"), head_address("h:1")) == ("other:2", "h:1")
