"""Excerpts of a few records with a broken number, as people post them: nearly all are named, by the right metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from curves import series_of

from launcher.core.events import Alert
from launcher.views.findings import find_problems
from launcher.views.read import find

EXCERPTS = yaml.safe_load(Path(__file__).with_name("excerpts.yaml").read_text("utf-8"))
FORMS: Mapping[str, Callable[[int, dict[str, float]], str]] = {
    "dicts": lambda step, values: str(values | {"epoch": step / 10}),
    "verl": lambda step, values: f"step:{step} - " + " - ".join(f"{name}:{value}" for name, value in values.items()),
    "lines": lambda step, values: (
        f"Step {step}/50 | " + " | ".join(f"{name}: {value}" for name, value in values.items())
    ),
}


def found_in(row: dict[str, Any], folder: Path) -> list[Alert]:
    series = {name: series_of(parts) for name, parts in row["steps"].items()}
    lines = [
        FORMS[row["form"]](i, dict(zip(series, values, strict=True)))
        for i, values in enumerate(zip(*series.values(), strict=True), 1)
    ]
    (log := folder / "a.log").write_text("\n".join(lines) + "\n")
    return [alert for alert in find_problems(find(str(log), folder), None).alerts if alert.level != "info"]


@pytest.mark.parametrize("row", EXCERPTS["broken"], ids=lambda row: row["item"])
def test_a_broken_number_is_named(row: dict[str, Any], tmp_path: Path) -> None:
    found = found_in(row, tmp_path)
    assert {alert.metric for alert in found} & set(row["metric"]), found


@pytest.mark.parametrize("row", EXCERPTS["healthy"], ids=lambda row: row["item"])
def test_a_healthy_excerpt_has_nothing_critical(row: dict[str, Any], tmp_path: Path) -> None:
    assert not [alert for alert in found_in(row, tmp_path) if alert.level == "critical"]
