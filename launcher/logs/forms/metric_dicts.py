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

_TRAINED = {"train/loss", "actor/loss", "actor/pg_loss", "critic/vf_loss", "actor/grad_norm"}
"""What only a training step has."""
_OF_ROLLOUT = re.compile(r"\b(rollout|perf|eval) ([0-9]{1,9}): {0,4}$")
"""What slime numbers by the rollout, of which each may be several steps: `perf 3: {...}`."""


class MetricDicts(Form):
    """A dict on a line, with a step before it, or in it, or none."""

    ends_block = True
    _counted: dict[str, float] | None = None
    _named: int | None = None
    """The step of the last dict behind `step 5: `."""

    def claims(self, line: str) -> bool:
        return 0 <= line.find("{") < line.rfind("}")

    def take(self, line: str) -> Iterator[Event]:
        self.rest = line
        for before, text in dicts.pieces(line):
            for node in dicts.records(dicts.parse(text) or {}):
                events = None if before.strip() else self._json_line(node)
                if not events and (metrics := _measured(node, before)):
                    events = self._metrics(before, metrics)
                if events:
                    self.rest = ""
                    yield from events

    def _metrics(self, before: str, node: dict[str, Any]) -> Iterator[Event] | None:
        """The step of a dict of metrics; None where it has no number."""
        named = dicts.step_of(node)
        beside = self._beside(before)
        metrics = dicts.numbers(node)
        if not metrics:
            return None
        named = named or beside
        if any(canonical(name) in _TRAINED for name in metrics):
            return self._step(named, metrics, NAMED if without_prefix(before).strip() and not beside else DICTS)
        if not beside and named and named[0] >= (self.reading.last or 0) and any(map(of_evaluation, metrics)):
            return self.reading.evaluation(metrics, named[0])
        return self._step(named, metrics, DICTS if beside else LOOSE)

    def _beside(self, before: str) -> tuple[int, int] | None:
        """The step before a dict; that of a rollout is the first of its steps, else the last so far."""
        if (found := _OF_ROLLOUT.search(before)) is None:
            beside = step_before(before)
            self._named = beside[0] if beside else self._named
            return beside
        number, last = int(found[2]), self._named
        if last is None:
            return number, 0
        first = found[1] == "rollout" and number > 0 and (last + 1) % number == 0
        return last + 1 if first else max(last, number), 0

    def _step(self, named: tuple[int, int] | None, metrics: dict[str, float], rank: int) -> Iterator[Event]:
        reading = self.reading
        if named is None and all(map(after_training, metrics)):
            yield from reading.evaluation(metrics)
            return
        if named is None and (heading := reading.heading()) is not None:
            named = heading, 0
        if metrics != self._counted:  # ranks of one training print equal dicts
            count = float(named[0]) if named else metrics.get("epoch")
            if reading.is_rival(metrics, count):
                return
        if reading.numbers.admits(reading.kind_of(metrics, rank), rank, named[0] if named else None):
            if named:
                yield from reading.progress(*named)
                step = named[0]
            else:
                step = reading.numbers.again() if self._again(metrics) else reading.numbers.next(reading.bar)
            yield from reading.step(step, metrics)
        elif found := metrics if rank >= reading.numbers.basis.rank else named is None and evaluated(metrics):
            yield from reading.evaluation(found)

    def _again(self, metrics: dict[str, float]) -> bool:
        """Whether the step before is printed again, by another rank or stream: no two steps have one gradient."""
        before, self._counted = self._counted, metrics
        return metrics == before and any(canonical(name) == "actor/grad_norm" and metrics[name] > 0 for name in metrics)

    def _json_line(self, node: dict[str, Any]) -> Iterator[Event] | None:
        """A line of verl's file logger, of our event log, or of answers."""
        if isinstance(data := node.get("data"), dict) and (step := dicts.as_step(node.get("step"))) is not None:
            return self.reading.verl_step(step, dicts.numbers(data), "verl_file")
        if "kind" in node and "seq" in node:
            return self._logged(node)
        if (sample := answers.from_dict(node, self.reading.at)) is not None:
            self.reading.numbers.admits("samples", 0, None)
            return iter([sample])
        return None

    def _logged(self, node: dict[str, Any]) -> Iterator[Event] | None:
        try:
            event = from_line(json.dumps(node))
        except INVALID:
            return None
        if isinstance(event, Step):
            self.reading.numbers.admits("rlrun", SUREST, event.step)
            self.reading.last = event.step
        return iter([event]) if event else None


def _measured(node: dict[str, Any], before: str) -> dict[str, Any]:
    """The entries of a dict that has a measurement, or stands behind a rollout's number; none of any other."""
    labelled = _OF_ROLLOUT.search(before) is not None
    if labelled or any(map(is_measurement, node)) or not dicts.BESIDE.isdisjoint(node):
        node = dicts.flattened(node)
    entries = {name: value for name, value in node.items() if not isinstance(value, dict | list)}
    return entries if labelled or any(is_measurement(str(name)) for name in entries) else {}
