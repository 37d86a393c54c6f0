"""The page for Prometheus, by its text format; and a real Prometheus that scrapes it, where one is installed."""

from __future__ import annotations

import math
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from launcher.core.events import Alert, Usage
from launcher.trackers.feed import FeedPosition, TrackedStep
from launcher.trackers.prometheus import CONTENT_TYPE, Prometheus, escaped, number
from launcher.trackers.sending import Sender
from launcher.trackers.tracker import TrackedRun

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
ODD = {"a/b@1": 0.1 + 0.2, 'quote"': math.nan, "back\\slash": math.inf, "new\nline": -math.inf, "é": 1e-320, "": 1e300}
LINE = re.compile(r'(\w+)\{run="((?:[^"\\]|\\.)*)"(?:,(\w+)="((?:[^"\\]|\\.)*)")?\} (\S+)')


def values(page: str) -> dict[tuple[str, str], float]:
    """(family, second label) -> value, read by the format's own rules."""
    found = dict[tuple[str, str], float]()
    for line in page.splitlines():
        if not line.startswith("#"):
            matched = LINE.fullmatch(line)
            assert matched, line
            label = (matched[4] or "").replace(r"\n", "\n").replace(r"\"", '"').replace(r"\\", "\\")
            found[matched[1], label] = float(matched[5])
    return found


@pytest.fixture
def served(tmp_path):
    tracker = Prometheus()
    assert tracker.open(TrackedRun(tmp_path / "p" / 'o"ne', "id"), {}) == -1
    usage = Usage(rank=0, host="h", cpu_percent=1.0, memory_bytes=2, machine_cpu_percent=3.0, machine_memory_bytes=4,
                  machine_memory_total_bytes=5, disk_free_bytes=None, gpu_percent=97.5)  # fmt: skip
    alerts = [Alert(step=3, text="x", level="critical"), Alert(step=3, text="y")]
    tracker.log(
        [TrackedStep(row=3, step=3, at=5.5, after=FeedPosition(), metrics=ODD, alerts=alerts, usage={0: usage})]
    )
    yield tracker
    tracker.close(None)


def test_every_value_is_read_back_equal(served):
    with urllib.request.urlopen(served.where, timeout=600) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        found = values(answer.read().decode())
    assert {name: found["rlrun_metric", name] for name in ODD} == pytest.approx(ODD, rel=0, abs=0, nan_ok=True)
    assert (
        found["rlrun_up", ""] == 1 and found["rlrun_step", ""] == 3 and found["rlrun_step_timestamp_seconds", ""] == 5.5
    )
    assert [found["rlrun_alerts", level] for level in ("info", "warn", "critical")] == [0, 1, 1]
    assert found["rlrun_usage_gpu_percent", "0"] == 97.5 and ("rlrun_usage_disk_free_bytes", "0") not in found


def test_other_pages_are_not_found(served):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(served.where.replace("/metrics", "/other"), timeout=600)


def test_a_port_that_is_taken_is_a_failure_that_is_repeated(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        messages = list[str]()
        sender = Sender("prometheus", folder.path, lambda: False, messages.append, str(taken.getsockname()[1]),
                        pause=lambda seconds: None)  # fmt: skip
        assert "in use" in sender.run().failure.lower() and len(messages) == 1


@pytest.mark.parametrize("value", [0.1 + 0.2, 5e-324, -0.0, 1e300, math.nan, math.inf, -math.inf])
def test_numbers_keep_all_their_digits(value):
    assert repr(float(number(value))) == repr(value)


def test_labels_cannot_end_their_quotes():
    assert escaped('a"} 1\nevil{x="\\') == r"a\"} 1\nevil{x=\"\\"
    escaped("\ud800").encode()


# ---- the real one


def test_the_dashboard_and_the_configuration_of_the_docs_ask_for_what_the_page_has(served):
    found = {name for name, _ in values(served.page())}
    text = (MONITORING / "grafana.json").read_text()
    asked = {name for name in re.findall(r"rlrun_\w+", text) if not name.startswith("rlrun_usage_")}
    assert asked and asked <= found
    jobs = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    assert all(job.get("metrics_path", "/metrics") == "/metrics" for job in jobs)
