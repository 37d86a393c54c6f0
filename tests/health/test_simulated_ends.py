"""Short versions of `make seed-noise` and `make ends-right`, with the functions of those programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import seed_noise
import verdicts_at_end


def test_noise_of_seeds_is_not_called_a_setting_and_an_effect_is_found(tmp_path: Path) -> None:
    runs = seed_noise.Simulation(tmp_path, prompts=256, between=0.015, seed=0)
    assert sum(runs.called(0.0, 1 + 2 * (number % 2), one_setting=number % 4 == 0) for number in range(40)) <= 2
    assert sum(runs.called(0.1, 3) for _ in range(20)) >= 16


@pytest.mark.slow
@pytest.mark.parametrize("names", [("sft: 6 updates",), pytest.param(("sft, own rows",), marks=pytest.mark.long)])
def test_a_run_says_at_its_end_whether_it_learned(tmp_path: Path, names: tuple[str, ...]) -> None:
    found = {name: (line, fault) for name, line, fault in verdicts_at_end.rows(tmp_path / "0", 0, "", names)}
    assert {name: fault for name, (_, fault) in found.items()} == dict.fromkeys(names, ""), found
    assert not (tmp_path / "0" / "rlrun" / "base").exists(), "neither begins from it"
