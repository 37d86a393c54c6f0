"""Lines with one dict: metrics, verl's file logger, our event log, answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from launcher.core.events import INVALID, Event, Step, from_line
from launcher.core.metric_aliases import canonical
from launcher.logs.forms import answers, dicts
from launcher.logs.forms.loose_lines import step_before
from launcher.logs.forms.numbering import DICTS, LOOSE, NAMED, SUREST
from launcher.logs.forms.prefixes import without_prefix
from launcher.logs.forms.reading import Form
from launcher.logs.forms.values import after_training, evaluated, is_measurement, of_evaluation

_ROLLOUT_NUMBER = re.compile(r"\b(rollout|perf|eval) ([0-9]{1,9}): {0,4}$")
"""How slime begins lines that it numbers by rollout, where a rollout may have several steps: `perf 3: {...}`."""


class MetricDicts(Form):
    """A dict on a line, with a step before it, or in it, or none."""

    ends_block = True
    _last_metrics: dict[str, float] | None = None
    _last_named_step: int | None = None
    """The step of the last dict after `step 5: `."""

    def read(self, line: str) -> Iterator[Event] | None:
        return self._read_dicts(line) if 0 <= line.find("{") < line.rfind("}") else None

    def _read_dicts(self, line: str) -> Iterator[Event]:
        self.rest = line
        for before, text in dicts.pieces(line):
            whole = dicts.parse(text) or {}
            if self.reading.steps:
                whole.pop("log_history", None)  # it repeats the steps above
            for node in dicts.records(whole):
                events = None if before.strip() else self._json_line(node)
                if not events and (metrics := _measured_entries(node, before)):
                    events = self._metrics(before, metrics)
                if events:
                    self.rest = ""
                    yield from events

    def _metrics(self, before: str, node: dict[str, Any]) -> Iterator[Event] | None:
        """The events of a dict of metrics; None where no value is a number."""
        named, beside = dicts.step_of(node), self._step_before_dict(before)
        named = named or beside or self._rising_step(node)
        metrics = dicts.numbers(node)
        if not metrics:
            return None
        if any(canonical(name) in dicts.TRAINING_ONLY for name in metrics):
            return self._step(named, metrics, NAMED if without_prefix(before).strip() and not beside else DICTS)
        if not beside and named and named[0] >= (self.reading.last or 0) and any(map(of_evaluation, metrics)):
            return self.reading.evaluation(metrics, named[0])
        return self._step(named, metrics, DICTS if beside else LOOSE)

    def _rising_step(self, node: dict[str, Any]) -> tuple[int, int] | None:
        """The step of a dict under another name, which is removed from it: one that may be a step's, and rises."""
        for name in filter(dicts.STEP_NAME.fullmatch, node if self.reading.bar is None else ()):
            if (step := dicts.as_step(node[name])) is not None and self.reading.numbers.rises(name, step):
                del node[name]
                return step, 0
        return None

    def _step_before_dict(self, before: str) -> tuple[int, int] | None:
        """The step before a dict; that of a rollout is the first of its steps, else the last so far."""
        if (match := _ROLLOUT_NUMBER.search(before)) is None:
            beside = step_before(before)
            self._last_named_step = beside[0] if beside else self._last_named_step
            return beside
        number, last = int(match[2]), self._last_named_step
        if last is None:
            return number, 0
        first = match[1] == "rollout" and number > 0 and (last + 1) % number == 0
        return last + 1 if first else max(last, number), 0

    def _step(self, named: tuple[int, int] | None, metrics: dict[str, float], rank: int) -> Iterator[Event]:
        reading = self.reading
        if named is None and all(map(after_training, metrics)):
            yield from reading.evaluation(metrics)
            return
        if named is None and (heading := reading.heading()) is not None:
            named = heading, 0
        if reading.numbers.admits(reading.kind_of(metrics, rank), rank, named[0] if named else None):
            if named:
                yield from reading.progress(*named)
                step = named[0]
            else:
                step = reading.numbers.again() if self._is_repeated(metrics) else reading.numbers.next(reading.bar)
            yield from reading.step(step, metrics)
        elif remaining := metrics if rank >= reading.numbers.basis.rank else named is None and evaluated(metrics):
            yield from reading.evaluation(remaining)

    def _is_repeated(self, metrics: dict[str, float]) -> bool:
        """Whether another rank or stream printed the last step again: two steps never have the same gradient norm."""
        before, self._last_metrics = self._last_metrics, metrics
        return metrics == before and any(canonical(name) == "actor/grad_norm" and metrics[name] > 0 for name in metrics)

    def _json_line(self, node: dict[str, Any]) -> Iterator[Event] | None:
        """The events of a line of verl's file logger, of our event log, or of answers; None for other dicts."""
        if isinstance(data := node.get("data"), dict) and (step := dicts.as_step(node.get("step"))) is not None:
            return self.reading.verl_step(step, dicts.numbers(dicts.flattened(data)), "verl_file")
        if "kind" in node and "seq" in node:
            return self._logged_event(node)
        if (sample := answers.from_dict(node, self.reading.at)) is not None:
            self.reading.numbers.admits("samples", 0, None)
            return iter([sample])
        return None

    def _logged_event(self, node: dict[str, Any]) -> Iterator[Event] | None:
        try:
            event = from_line(json.dumps(node))
        except INVALID:
            return None
        if isinstance(event, Step):
            self.reading.numbers.admits("rlrun", SUREST, event.step)
            self.reading.last = event.step
        return iter([event]) if event else None


def _measured_entries(node: dict[str, Any], before: str) -> dict[str, Any]:
    """The flattened entries of a dict with a measurement or after a rollout's number; empty for other dicts."""
    labelled = _ROLLOUT_NUMBER.search(before) is not None
    if labelled or any(map(is_measurement, node)) or not dicts.BESIDE.isdisjoint(node):
        node = dicts.flattened(node)
    entries = {name: value for name, value in node.items() if not isinstance(value, dict | list)}
    return entries if labelled or any(is_measurement(str(name)) for name in entries) else {}
