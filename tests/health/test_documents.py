"""The examples of the guides themselves, documents.yaml, as `rlrun diagnose --profile` judges a log with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from curves import series_of

from launcher.health.profiles import profile_names, read_profile
from launcher.views.findings import find_problems
from launcher.views.read import find

LARGE = {"reward": [1e308, -1e308] * 20, "loss": [-1e308, 1e308] * 20, "grad_norm": [1e308] * 40, "kl": [1e308] * 40}
ROWS = yaml.safe_load((Path(__file__).parent / "documents.yaml").read_text("utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=[row["item"] for row in ROWS])
def test_an_example_of_a_guide(row: dict[str, Any], tmp_path: Path) -> None:
    series = {name: series_of(parts) for name, parts in row["series"].items()}
    steps = [
        {name: value for name, value in zip(series, values, strict=True) if value is not None}
        for values in zip(*series.values(), strict=True)
    ]
    log = tmp_path / "a.jsonl"
    log.write_text(
        "".join(f"{json.dumps({'step': i, 'epoch': 1, 'loss': 0.1} | each)}\n" for i, each in enumerate(steps, 1))
    )
    alerts = find_problems(find(str(log), tmp_path), read_profile(row["profile"])).alerts
    rules = [alert.rule for alert in alerts]
    assert set(row.get("found", ())) <= set(rules) and not set(row.get("silent", ())) & set(rules), rules
    if "says" in row:
        assert next(alert.fix for alert in alerts if alert.rule == row["found"][0]).startswith(row["says"])


@pytest.mark.parametrize("profile", profile_names())
def test_numbers_of_any_size_are_judged(profile: str, tmp_path: Path) -> None:
    rows = zip(*LARGE.values(), strict=True)
    (log := tmp_path / "a.jsonl").write_text(
        "".join(f"{json.dumps(dict(zip(LARGE, row, strict=True)))}\n" for row in rows)
    )
    found = find_problems(find(str(log), tmp_path), read_profile(profile)).alerts
    assert "gradient-exploded" in [alert.rule for alert in found]
