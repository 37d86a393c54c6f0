"""Each rule of each profile fires on the series of rules.yaml that is just beyond its bound, and not just within it.

What the measured rules find together stands in findings.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from curves import judged, series_of

from launcher.health.profiles import profile_names, read_profile, read_profile_file

HERE = Path(__file__).parent
CASES, FINDINGS = (yaml.safe_load((HERE / name).read_text("utf-8")) for name in ("rules.yaml", "findings.yaml"))
RULES = {profile: read_profile(profile) for profile in CASES}
ROWS = [(profile, case) for profile, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("profile", "case"), ROWS, ids=[f"{name}-{case['rule']}" for name, case in ROWS])
def test_a_rule_fires_beyond_its_bound_and_only_there(profile: str, case: dict[str, Any]):
    beyond, within = ({name: series_of(parts) for name, parts in case[side].items()} for side in ("beyond", "within"))
    rules, rule, expected = RULES[profile], case["rule"], case["found"]
    (found,) = [alert for alert in judged(rules, beyond) if alert.rule == rule]
    assert found.metric in beyond  # in the log's own spelling
    assert found.value is not None and found.source
    assert "{" not in found.text and "?" not in found.text
    for name, value in expected.items():
        number = isinstance(value, float)
        assert getattr(found, name) == (pytest.approx(value, rel=1e-3, nan_ok=True) if number else value), name
    assert rule not in [alert.rule for alert in judged(rules, beyond | within)]


@pytest.mark.parametrize("profile", profile_names())
def test_each_rule_has_a_case(profile: str):
    taken = set(read_profile_file(profile).get("from_measured", ()))
    assert {case["rule"] for case in CASES[profile]} == set(RULES[profile].rules) - taken


@pytest.mark.parametrize("name", FINDINGS)
def test_what_the_measured_rules_find_together(name: str):
    for row in FINDINGS[name]:
        series = {metric: series_of(parts) for metric, parts in row["series"].items()}
        found = [[alert.step, alert.level, alert.rule] for alert in judged(RULES["measured"], series)]
        assert found == row["found"], series
