"""A `/metrics` page for Prometheus: the latest values of a run, in the text format 0.0.4 of its documentation.

The page is served at `[HOST:]PORT`, by default of the loopback; port 0 is one that is free. Nothing is needed for it
but Python.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any, get_args

from launcher.core.events import Event, How, Level, Usage
from launcher.trackers.feed import TrackedStep
from launcher.trackers.tracker import TrackedRun, Tracker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LAST_LOOK_S = 6.0  # at the end of a run, for one more scrape of its last values
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_USAGE = [each.name for each in fields(Usage) if each.name not in ("rank", "host", *Event.__dataclass_fields__)]


@dataclass(frozen=True)
class LatestValues:
    """The values of one run on a page."""

    run: str
    up: bool = True
    step: int = 0
    at: float = 0.0
    """When that step finished, Unix seconds."""
    alerts: Mapping[str, int] = field(default_factory=dict)
    """Numbers of alerts by level."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    usage: Mapping[int, Usage] = field(default_factory=dict)
    """The latest measurement of each process, by rank."""


def page_of(runs: Sequence[LatestValues]) -> str:
    """A page of these runs: each gauge once, with the values of all."""
    return "".join(chain.from_iterable(_families(runs)))


def _families(runs: Sequence[LatestValues]) -> Iterator[Iterator[str]]:
    labels = [f'run="{escaped(each.run)}"' for each in runs]
    pairs = list(zip(labels, runs, strict=True))
    yield _family("rlrun_up", "1 while the run is followed", {run: float(one.up) for run, one in pairs})
    yield _family("rlrun_step", "latest finished step", {run: float(one.step) for run, one in pairs})
    yield _family("rlrun_step_timestamp_seconds", "when it finished, Unix time", {run: one.at for run, one in pairs})
    levels = get_args(Level)
    alerts = {f'{run},level="{level}"': float(one.alerts.get(level, 0)) for run, one in pairs for level in levels}
    yield _family("rlrun_alerts", "alerts of the run", alerts)
    metrics = {f'{run},name="{escaped(name)}"': value for run, one in pairs for name, value in one.metrics.items()}
    yield _family("rlrun_metric", "latest value of a metric", metrics)
    for name in _USAGE:
        used = {f'{run},rank="{rank}"': vars(usage)[name] for run, one in pairs for rank, usage in one.usage.items()}
        values = {label: float(value) for label, value in used.items() if value is not None}
        yield _family(f"rlrun_usage_{name}", "of a training process; see the event Usage", values)


class Prometheus(Tracker):
    """Keeps the latest values, and sends them to whoever asks."""

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> int | None:
        """Returns -1: the page begins empty, whatever was sent before, and needs the whole log."""
        self._run, self._lock = run.name, threading.Lock()
        self._metrics, self._alerts, self._usage = dict[str, float](), Counter[str](), dict[int, Usage]()
        self._step, self._at = 0, 0.0
        self._changed = self._scraped = 0
        host, _, port = run.address.rpartition(":")
        self._server = ThreadingHTTPServer((host or "127.0.0.1", int(port or 0)), _handler(self.page))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True).start()
        self.where = f"http://{host or '127.0.0.1'}:{self._server.server_port}/metrics"
        return -1

    def log(self, steps: Sequence[TrackedStep]) -> None:
        with self._lock:
            for step in steps:
                if step.went_back is not None and step.went_back < self._step:
                    self._step = step.went_back
                if step.metrics:
                    self._step, self._at = step.step, step.at
                self._metrics.update(step.metrics)
                self._alerts.update(alert.level for alert in step.alerts)
                self._usage.update(step.usage)
            self._changed += 1

    def page(self) -> str:
        """The text of `/metrics` now."""
        with self._lock:
            self._scraped = self._changed
            latest = self._alerts, self._metrics, self._usage
            return page_of([LatestValues(self._run, True, self._step, self._at, *latest)])

    def close(self, how: How | None) -> None:
        """Stop serving; where a scraper has not yet read the last values, after it has, or LAST_LOOK_S seconds."""
        until = time.monotonic() + LAST_LOOK_S
        while self._changed != self._scraped and self._scraped and time.monotonic() < until:
            time.sleep(0.05)
        self._server.shutdown()
        self._server.server_close()


def _family(name: str, text: str, samples: Mapping[str, float]) -> Iterator[str]:
    """The lines of one gauge with its values by their labels; none without values."""
    if samples:
        yield f"# HELP {name} {text}\n# TYPE {name} gauge\n"
        yield from (f"{name}{{{labels}}} {number(value)}\n" for labels, value in samples.items())


def number(value: float) -> str:
    """A value in the text format, with all digits, so that it is read back equal."""
    return "NaN" if value != value else {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value) or repr(value)


def escaped(text: str) -> str:
    """The text escaped for a label's value."""
    return text.encode("utf-8", "backslashreplace").decode().translate(_ESCAPES)


def _handler(page: Any) -> type[BaseHTTPRequestHandler]:
    class MetricsPage(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == "/metrics"
            body = page().encode() if found else b"use /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: each scrape would be a line."""

    return MetricsPage
