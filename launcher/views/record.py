"""A run as its folder holds it, read once and in bounded memory: curves, validations, answers, findings, and what its
processes used.

All of it may be missing or damaged: what cannot be read is a line of `RunRecord.unread`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain

from yaml import YAMLError

from launcher.core.bounded_parse import parse_yaml
from launcher.core.events import (
    Alert,
    Event,
    Loaded,
    Restarted,
    Resumed,
    Sample,
    Started,
    Step,
    Usage,
    events_of,
    is_damage,
)
from launcher.core.files import read_file
from launcher.core.metrics import HeldOut, held_out, ties_as_half, validation
from launcher.core.problems import Problems, error_message
from launcher.core.redaction import redact
from launcher.core.state import RunState
from launcher.core.verdict import RunVerdict
from launcher.health.held_out import EndFacts, HeldOutResults, judge_end
from launcher.runs import store
from launcher.runs.folder import Folder
from launcher.views.log_state import LogState
from launcher.views.read import LogOrRun
from launcher.views.trace import Trace

METRICS = 400  # most metric names whose curves are kept
ALERTS = 100  # most findings that are kept: the first 50 and the latest 50
KEPT_SAMPLES = 20_000  # most answers kept of one validation
TEXT = 20_000  # characters of an answer that are kept


@dataclass
class RunRecord:
    """One run. Times are in seconds."""

    folder: Folder
    state: RunState
    events: Callable[[], Iterator[Event]]
    """Reads all events from the beginning."""
    of_log: bool = False
    """Whether it is the log of another program, whose settings are unknown."""
    unread: list[str] = field(default_factory=list)
    loaded: Loaded | None = None
    traces: dict[str, Trace] = field(default_factory=dict)
    step_times: array[float] = field(default_factory=lambda: array("d"))
    """Seconds of each step, by its own clock where it reports that."""
    tokens: float = 0.0
    validations: list[HeldOut] = field(default_factory=list)
    last_validation: Mapping[str, float] = field(default_factory=dict)
    """All metrics of held-out data, each as it was measured last."""
    samples: list[Sample] = field(default_factory=list)
    """Of the last validation."""
    results: HeldOutResults = field(default_factory=HeldOutResults)
    alerts: list[Alert] = field(default_factory=list)
    alert_count: int = 0
    damaged: int = 0
    gpu_busy: Trace = field(default_factory=Trace)
    """Percent of the time in which a GPU computed."""
    gpu_memory: tuple[float, int, int] | None = None
    """Of the fullest GPU the share in use, the bytes in use, and all it has."""
    _last_at: float | None = None
    """When the last step of this attempt ended, or its first could begin."""

    @property
    def name(self) -> str:
        """project/experiment."""
        return self.folder.name

    @property
    def final(self) -> HeldOut | None:
        return self.validations[-1] if self.validations else None

    @property
    def step_seconds(self) -> float | None:
        """Median time of a step."""
        times = sorted(self.step_times)
        return times[len(times) // 2] if times else None

    @cached_property
    def verdict(self) -> RunVerdict:
        """The verdict in its `Ended` event; where there is none, the verdict on its events so far."""
        serious = [alert for alert in self.alerts if alert.level == "critical" and alert.rule]
        verdict = self.state.verdict or judge_end(self.state, self.results, EndFacts(serious[:2]))
        return replace(verdict, fix="") if self.of_log else verdict

    def trace(self, *names: str) -> tuple[str, Trace] | None:
        """The first of these metrics that has a value."""
        return next(((name, self.traces[name]) for name in names if name in self.traces), None)

    def take(self, event: Event) -> None:
        self.results.see(event)
        match event:
            case Step():
                self._add_step(event)
            case Sample():
                if self.samples and self.samples[0].step != event.step:
                    self.samples.clear()
                if len(self.samples) < KEPT_SAMPLES:
                    self.samples.append(_shortened(event))
            case Usage():
                self._add_usage(event)
            case Alert() if is_damage(event):
                self.damaged += 1
            case Alert():
                self.alert_count += 1
                self.alerts.append(event)
                if len(self.alerts) > ALERTS:
                    del self.alerts[ALERTS // 2]
            case Started():
                self._last_at = event.at
            case Loaded():
                self.loaded, self._last_at = event, event.at
            case Restarted() | Resumed():
                self._last_at = None

    def _add_step(self, event: Step) -> None:
        event = replace(event, metrics=ties_as_half(event.metrics))
        for name, value in event.metrics.items():
            if name not in self.traces and len(self.traces) >= METRICS:
                continue
            self.traces.setdefault(name, Trace()).add(event.step, value)
        tokens = event.metrics.get("perf/total_num_tokens", 0.0)
        self.tokens += tokens if math.isfinite(tokens) else 0.0
        if held_out_metrics := validation(event.metrics):
            self.last_validation = {**self.last_validation, **held_out_metrics}
            if score := held_out(event.step, held_out_metrics):
                self.validations.append(score)
        self._add_step_time(event)

    def _add_usage(self, event: Usage) -> None:
        if event.gpu_percent is not None:
            self.gpu_busy.add(0, event.gpu_percent)
        if event.gpu_memory_bytes is not None and (total := event.gpu_memory_total_bytes):
            in_use = event.gpu_memory_bytes / total, event.gpu_memory_bytes, total
            self.gpu_memory = max(self.gpu_memory or in_use, in_use)

    def _add_step_time(self, event: Step) -> None:
        seconds = event.metrics.get("timing_s/step", math.nan)
        if not math.isfinite(seconds) and self._last_at is not None:
            seconds = event.at - self._last_at
        if math.isfinite(seconds) and seconds >= 0 and event.step > 0:
            self.step_times.append(seconds)
        self._last_at = event.at


def _shortened(sample: Sample) -> Sample:
    if max(len(sample.prompt), len(sample.response), len(sample.ground_truth)) <= TEXT:
        return sample
    cut = [redact(text)[:TEXT] for text in (sample.prompt, sample.response, sample.ground_truth)]
    return replace(sample, prompt=cut[0], response=cut[1], ground_truth=cut[2])


# ---- the record of a run


def read_record(folder: Folder) -> RunRecord:
    """The run as it is now."""
    events = partial(events_of, folder.events)
    record = RunRecord(folder, store.see(folder).state, events)
    record.unread += _spec_faults(folder)
    for event in events():
        record.take(event)
    if not folder.events.is_file():
        record.unread.append("events.jsonl: there is none, so nothing is known of the training")
    if record.damaged:
        record.unread.append(f"events.jsonl: {record.damaged} damaged lines were left out")
    return record


def record_of(source: LogOrRun) -> RunRecord:
    """The record of a run or of another program's log. Raises `Problems` where a log has no metrics."""
    if source.log is None:
        return read_record(source.folder)
    log = LogState(source.title, source.kind)
    record = RunRecord(source.folder, log.state, source.events, of_log=True)
    for event in chain(chain.from_iterable(map(log.see, source.events())), log.finish()):
        record.take(event)
    if not record.traces:
        raise Problems(source.no_metrics)
    record.state = log.ended(source.log.at)
    return record


def _spec_faults(folder: Folder) -> list[str]:
    """Why the run's spec.yaml cannot be read; empty where it can."""
    try:
        node = parse_yaml(read_file(folder.spec))
    except (OSError, ValueError, YAMLError) as error:
        return [f"spec.yaml: cannot be read, {error_message(error)}"]
    return [] if isinstance(node, dict) else ["spec.yaml: holds no settings"]
