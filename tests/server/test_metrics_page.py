"""The page for Prometheus, by its text format; test_reading has the page of a server."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml

from launcher.core.events import Usage
from launcher.core.state import RunState
from launcher.server.routes.prometheus import escaped, page_of, values_of

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
ODD = {"a/b@1": 0.1 + 0.2, 'quote"': math.nan, "back\\slash": math.inf, "new\nline": -math.inf, "é": 1e-320, "": 1e300,
       "zero": -0.0}  # fmt: skip
LINE = re.compile(r'(\w+)\{run="((?:[^"\\]|\\.)*)"(?:,(\w+)="((?:[^"\\]|\\.)*)")?\} (\S+)')


@pytest.fixture
def values() -> dict[tuple[str, str], float]:
    """(family, second label) -> value on a page of one run, read by the format's own rules."""
    usage = Usage(rank=0, host="h", cpu_percent=1.0, memory_bytes=2, machine_cpu_percent=3.0, machine_memory_bytes=4,
                  machine_memory_total_bytes=5, disk_free_bytes=None, gpu_percent=97.5)  # fmt: skip
    state = RunState(step=3, marks=((3, 5.5),), metrics=ODD, usage={0: usage})
    found = dict[tuple[str, str], float]()
    page = page_of(values_of('p/o"ne', state, {"critical": 1, "warn": 1}, is_written=True))
    for line in page.splitlines():
        if not line.startswith("#"):
            matched = LINE.fullmatch(line)
            assert matched, line
            label = (matched[4] or "").replace(r"\n", "\n").replace(r"\"", '"').replace(r"\\", "\\")
            found[matched[1], label] = float(matched[5])
    return found


def test_every_value_is_read_back_equal(values):
    assert {name: repr(values["rlrun_metric", name]) for name in ODD} == {name: repr(x) for name, x in ODD.items()}
    assert [values[f"rlrun_{name}", ""] for name in ("up", "step", "step_timestamp_seconds")] == [1, 3, 5.5]
    assert [values["rlrun_alerts", level] for level in ("info", "warn", "critical")] == [0, 1, 1]
    assert values["rlrun_usage_gpu_percent", "0"] == 97.5 and ("rlrun_usage_disk_free_bytes", "0") not in values


def test_labels_cannot_end_their_quotes():
    assert escaped('a"} 1\nevil{x="\\') == r"a\"} 1\nevil{x=\"\\"
    escaped("\ud800").encode()


def test_the_dashboard_and_the_configuration_of_the_docs_ask_for_what_the_page_has(values):
    text = (MONITORING / "grafana.json").read_text()
    asked = {name for name in re.findall(r"rlrun_\w+", text) if not name.startswith("rlrun_usage_")}
    assert asked and asked <= {name for name, _ in values}
    jobs = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    assert all(job.get("metrics_path", "/metrics") == "/metrics" for job in jobs)
