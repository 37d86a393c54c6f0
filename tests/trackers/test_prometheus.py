"""The page for Prometheus, by its text format; and a real Prometheus that scrapes it, where one is installed."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from launcher.core.events import Alert, Step, Usage
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
    with urllib.request.urlopen(served.where, timeout=10) as answer:
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
        urllib.request.urlopen(served.where.replace("/metrics", "/other"), timeout=10)


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port: int, query: str):
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(url, timeout=10) as answer:
        node = json.load(answer)
    assert node["status"] == "success"
    return node["data"]["result"]


needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed")


@needs_prometheus
def test_the_configuration_and_the_page_pass_promtool(served):
    subprocess.run(["promtool", "check", "config", str(MONITORING / "prometheus.yml")], check=True, capture_output=True)
    ran = subprocess.run(["promtool", "check", "metrics"], input=served.page(), text=True, capture_output=True)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr


@pytest.fixture
def scraped(folder, tmp_path):
    """The port of a Prometheus that scrapes a tracker of `folder` with the configuration of the docs, and `stop`."""
    port, ours, over = free_port(), free_port(), threading.Event()
    sender = Sender(
        "prometheus", folder.path, lambda: not over.is_set(), print, str(ours), pause=lambda _: over.wait(0.05)
    )
    serving = threading.Thread(target=sender.run)
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"].update(scrape_interval="200ms", scrape_timeout="200ms")
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{ours}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    argv = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    with (tmp_path / "prometheus.log").open("w") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log)
    serving.start()
    yield port
    over.set()
    serving.join()
    server.terminate()
    server.wait()


def until(port: int, query: str, wanted: float):
    """What a query answers once its only value is that."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            found = ask(port, query)
        except OSError:  # it is starting
            found = []
        if [float(each["value"][1]) for each in found] == [wanted]:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{query} is {found}, not {wanted}")


@needs_prometheus
def test_a_real_prometheus_has_the_values_of_the_log(folder, scraped, awkward, expected):
    folder.write(awkward)
    until(scraped, "rlrun_step", 12)
    found = {each["metric"]["name"]: float(each["value"][1]) for each in ask(scraped, 'rlrun_metric{run="p/one"}')}
    assert found == expected[12]
    folder.write([Step(at=140.0, step=13, metrics={**expected[12], **ODD})])
    until(scraped, "rlrun_step", 13)
    found = {each["metric"].get("name", ""): float(each["value"][1]) for each in ask(scraped, "rlrun_metric")}
    assert repr(sorted(found.items())) == repr(sorted({**expected[12], **ODD}.items()))


@needs_prometheus
def test_every_panel_of_the_dashboard_is_a_query_that_finds_something(folder, scraped, awkward):
    folder.write(awkward)
    until(scraped, "rlrun_step", 12)
    node = json.loads((MONITORING / "grafana.json").read_text())
    shown = {"Score and reward", "Held-out score", "Loss", "Entropy", "Step", "Alerts: warn and critical", "Any metric"}
    for panel in node["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$run", ".*").replace("$name", ".+")
            assert ask(scraped, query) or panel["title"] not in shown, (panel["title"], query)
    assert len({panel["id"] for panel in node["panels"]}) == len(node["panels"]) == 18
