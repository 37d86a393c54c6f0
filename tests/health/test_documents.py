"""The examples of the guides themselves, documents.yaml, as `rlrun diagnose --profile` judges a log with them, and
excerpts of logs with a broken number, excerpts.yaml: nearly all are named, by the right metric."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from curves import series_of

from launcher.core.events import Alert
from launcher.health.profiles import profile_names, read_profile
from launcher.views.findings import find_problems
from launcher.views.read import find

LARGE = {"reward": [1e308, -1e308] * 20, "loss": [-1e308, 1e308] * 20, "grad_norm": [1e308] * 40, "kl": [1e308] * 40}
ROWS, EXCERPTS = (
    yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text("utf-8")) for name in ("documents", "excerpts")
)
FORMS: Mapping[str, Callable[[int, dict[str, float]], str]] = {
    "json": lambda step, values: json.dumps({"step": step, "epoch": 1, "loss": 0.1} | values),
    "dicts": lambda step, values: str(values | {"epoch": step / 10}),
    "verl": lambda step, values: f"step:{step} - " + " - ".join(f"{name}:{value}" for name, value in values.items()),
    "lines": lambda step, values: (
        f"Step {step}/50 | " + " | ".join(f"{name}: {value}" for name, value in values.items())
    ),
}


def log_of(form: str, series: Mapping[str, list[Any]]) -> str:
    values = [series_of(parts) for parts in series.values()]
    steps = ({n: v for n, v in zip(series, row, strict=True) if v is not None} for row in zip(*values, strict=True))
    return "".join(f"{FORMS[form](number, step)}\n" for number, step in enumerate(steps, 1))


def found_in(folder: Path, log: str, profile: str | None = None) -> dict[str, Alert]:
    (path := folder / "a.log").write_text(log)
    alerts = find_problems(find(str(path), folder), read_profile(profile) if profile else None).alerts
    return {alert.rule: alert for alert in alerts}


@pytest.mark.parametrize("row", ROWS, ids=[row["item"] for row in ROWS])
def test_an_example_of_a_guide(row: dict[str, Any], tmp_path: Path) -> None:
    found = found_in(tmp_path, log_of("json", row["series"]), row["profile"])
    assert list(found) == row.get("only", list(found))
    assert set(row.get("found", ())) <= set(found) and not set(row.get("silent", ())) & set(found), found
    if "says" in row:
        assert found[row["found"][0]].fix.startswith(row["says"])


@pytest.mark.parametrize("profile", profile_names())
def test_numbers_of_any_size_are_judged(profile: str, tmp_path: Path) -> None:
    assert "gradient-exploded" in found_in(tmp_path, log_of("json", LARGE), profile)


RUINED = """loss: 171551552.0000
policy_loss: 171531792.0000
kl_penalty: 197562.5312
mean_ratio: 485165216.0000
mean_advantage: 0.0000
mean_log_prob_current: -833610.3125
mean_log_prob_ref: -1031172.8750
mean_reward: 0.4971
std_reward: 0.1766
"""


def test_the_ruined_example_is_critical_and_each_number_is_called_what_it_is(tmp_path: Path) -> None:
    found = found_in(tmp_path, RUINED, "grpo_continuous")
    assert {name: alert.level for name, alert in found.items()} == {
        "loss-band": "warn", "policy-loss-band": "critical", "kl-penalty-band": "warn", "ratio-on-clamp": "critical",
        "log-ratio-20": "critical",
    }  # fmt: skip
    assert found["loss-band"].value == 171551552.0
    assert found["log-ratio-20"].value == 197562.5625, "the difference of the log-probabilities"
    assert found["log-ratio-20"].fix.startswith("--learning_rate 1e-07 --kl_penalty 2.0")
    assert "this is no ratio" in found["ratio-on-clamp"].text
    assert not found.keys() & {"advantage-band", "rewards-equal"}, "a mean advantage of 0 is true by construction"


@pytest.mark.parametrize("row", EXCERPTS["broken"], ids=lambda row: row["item"])
def test_a_broken_number_is_named(row: dict[str, Any], tmp_path: Path) -> None:
    found = found_in(tmp_path, log_of(row["form"], row["steps"])).values()
    assert {alert.metric for alert in found if alert.level != "info"} & set(row["metric"]), found


@pytest.mark.parametrize("row", EXCERPTS["healthy"], ids=lambda row: row["item"])
def test_a_healthy_excerpt_has_nothing_critical(row: dict[str, Any], tmp_path: Path) -> None:
    found = found_in(tmp_path, log_of(row["form"], row["steps"])).values()
    assert not [alert for alert in found if alert.level == "critical"]
