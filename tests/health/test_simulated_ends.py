"""Short versions of `make seed-noise` and `make ends-right`, with the functions of those programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import ruined
import seed_noise


def test_noise_of_seeds_is_not_called_a_setting_and_an_effect_is_found(tmp_path: Path) -> None:
    runs = seed_noise.Simulation(tmp_path, prompts=256, between=0.015, seed=0)
    assert sum(runs.called(0.0, 1 + 2 * (number % 2), one_setting=number % 4 == 0) for number in range(16)) <= 1
    assert sum(runs.called(0.1, 3) for _ in range(6)) >= 5


@pytest.mark.long
def test_a_run_says_at_its_end_whether_it_learned(tmp_path: Path) -> None:
    """That of one that cannot is in test_runs_end_to_end."""
    found = [*ruined.rows("ends", tmp_path / "0", 0, "^(sft: 6 updates|sft, own rows)$")]
    assert [fault for *_, fault in found] == ["pass", "pass"], found
    assert not (tmp_path / "0" / "rlrun" / "base").exists(), "neither begins from it"
