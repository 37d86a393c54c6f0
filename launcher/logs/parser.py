"""One event stream from the lines of any log: which form a line has is decided line by line, as logs mix them.

Steps come in the order of the log. Of plain progress bars only the latest is reported, once the lines that were given
have been read. Nothing here raises: what cannot be read is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal

from orjson import JSONDecodeError, loads

from launcher.core.events import INVALID, Alert, Event, Level, LogProgress, Step, from_line
from launcher.core.metric_aliases import canonical
from launcher.logs import bars, dicts, loose_lines, samples, step_lines, tracebacks
from launcher.logs.prefixes import without_prefix
from launcher.logs.step_lines import MOST_STEPS, NOT_BEFORE
from launcher.logs.values import is_measurement

Kind = Literal["verl", "verl_file", "trl", "trainer_state", "lines", "block", "bars", "rlrun", "samples", "unknown"]
"""The form of a log, by its first metrics."""

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_RAY = re.compile(r"\(([^()\n]{1,200}pid=[0-9]{1,10}(?:, ip=[0-9a-fA-F.:]{3,45})?)\) ?")
_REPEATED = re.compile(r"\s{0,4}\[repeated [0-9]{1,9}x across cluster\].{0,200}$")
_VALIDATION = re.compile(r"(Initial|Final) validation metrics: ")
_DICT_LINES = 2_000  # most lines of a dict that pprint broke
new_object = object.__new__
NOT_FAST = (JSONDecodeError, TypeError, KeyError, AttributeError)
_NOTHING = re.compile(rb"(?!\[)[^:=|{}#]*").fullmatch
"""Whether a line has none of the marks that all forms have one of: `[` at its beginning, and these."""
_LONG = 2**16  # of a longer line only step lines and dicts are read


class LogParser:
    """Reads lines in order. `at` is the time that events get: logs rarely name one."""

    def __init__(self, at: float = 0.0) -> None:
        self.at = at
        self.kind: Kind = "unknown"
        self.counted = False
        """Whether a step number was counted here, as the log names none."""
        self._count = 0
        self._counted = dict[str, float]()
        self._last: int | None = None
        self._progress: tuple[int, int, float | None, float | None] | None = None
        self._untitled = 0  # total of the first bar without a title
        self._drawn: tuple[int, dict[str, float]] | None = None
        self._samples = samples.SampleReader()
        self._block = loose_lines.BlockReader()
        self._header: int | None = None
        self._open_dict = dicts.OpenDict()
        self._dict = list[str]()
        self._wrapped = list[str]()
        self._errors = tracebacks.TracebackReader()
        self._error_after: int | None = None  # the last step before the errors

    def feed(self, text: bytes) -> Iterator[Event]:
        """The events of whole lines. Most of a large log is step lines with a bar between them: for these the loop
        below does nothing that is not needed."""
        find, count, at = text.find, text.count, self.at
        position = bar_from = bar_to = 0
        settled = self._settled()
        while (start := find(b"step:", position)) >= 0:
            end = find(b"\n", start)
            line = text[start:end] if end >= 0 else text[start:]
            try:
                metrics = loads(b"".join((b'{"', line.replace(b" - ", b' ,"').replace(b":", b'":'), b"}")))
                step = metrics.pop("step")
                sum(metrics.values())  # raises where one is no number
                fast = type(step) is int and 0 <= step < MOST_STEPS and text[start - 1] not in NOT_BEFORE and metrics
            except NOT_FAST:
                fast = False
            if fast and b"(" not in line:  # np.float64(...), or a unit in a name
                if settled and find(b"{", position, start) < 0:
                    lines = count(b"\n", position, start)
                    if lines == 1 and find(b"it]\n", position, start) > 0:
                        bar_from, bar_to, plain = position, start, True
                    else:
                        plain = lines == 0 and start - position < 100 and find(b"%|", position, start) < 0
                    if plain:
                        event = new_object(Step)  # a frozen dataclass sets its fields one by one, and slowly
                        fields = event.__dict__
                        fields["at"], fields["step"], fields["metrics"] = at, step, metrics
                        self._last, position = step, start + len(line) + 1
                        yield event
                        continue
                if not (self._wrapped or self._dict):
                    yield from self._lines(text[position:start])
                    yield from self._end_block()
                    yield from self._step("verl", step, metrics)
                    position, settled = start + len(line) + 1, self._settled()
                    continue
            yield from self._lines(text[position : start + len(line)])
            position, settled = start + len(line) + 1, self._settled()
        yield from self._lines(text[position:])
        if bar_to:
            yield from self._bars(_decoded(text[bar_from:bar_to]), [])

    def finish(self) -> Iterator[Event]:
        """The events that waited for more lines: the log has ended."""
        if self._wrapped:
            yield from self._wrapped_step()
        if self._dict:
            yield from self._printed_dict()
        yield from self._end_block()
        yield from self._samples.of_step(0 if self._last is None else self._last + 1, self.at)
        if self.error:
            yield self.error

    def _settled(self) -> bool:
        """Whether a step line is no more than a step: nothing waits for its number or is ended by it."""
        opened = self._samples.open or self._errors.open
        waits = self._samples.waiting or opened or self._block.metrics or self._dict or self._wrapped
        return self.kind != "unknown" and not waits

    def _lines(self, text: bytes) -> Iterator[Event]:
        for raw in text.splitlines():
            if self._settled() and _NOTHING(raw):
                continue
            yield from self._line(_decoded(raw))

    def _line(self, text: str) -> Iterator[Event]:
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        source = _RAY.match(text)
        if source:
            text = text[source.end() :]
        if "[repeated " in text:
            text = _REPEATED.sub("", text)
        if self._errors.open or "Traceback" in text or "Exception ignored" in text:
            self._error_line(text, source[1] if source else "")
        if self._dict or (_VALIDATION.search(text) if "validation metrics: {" in text else None):
            yield from self._dict_line(text)
            return
        if self._wrapped or "step:" in text:
            steps = self._step_line(text)
            if steps is not None:
                yield from steps
                return
        if (text.startswith("[") or self._samples.open) and self._samples.take(text, source[1] if source else ""):
            if self._samples.full:
                yield from self._samples.of_step(0 if self._last is None else self._last + 1, self.at)
            return
        if len(text) > _LONG and "{" not in text:
            return
        rest = [text]
        if bars.MARK in text:
            rest = []
            yield from self._bars(text, rest)
        for part in rest:
            yield from self._plain(part)

    def _plain(self, text: str) -> Iterator[Event]:
        """A line without a progress bar."""
        whole = self._open_dict.take(text)
        if whole == "":
            return
        text = whole or text
        opened = text.find("{")
        if opened >= 0 and text.rfind("}") > opened:
            events = self._of_dict(text, opened)
            if events:
                yield from self._end_block()
                yield from events
                return
        text = without_prefix(text)
        if "tep" in text or "TEP" in text or "ter" in text or "TER" in text:
            if found := loose_lines.step_line(text):
                yield from self._end_block()
                yield from self._counted_of(found[0], found[1])
                yield from self._step("lines", found[0], found[2])
                return
            if header := loose_lines.step_header(text):
                yield from self._end_block()
                self._header = header[0]
                yield from self._counted_of(*header)
                return
        if self._block.repeats(text):
            yield from self._end_block()
        if not self._block.take(text):
            yield from self._end_block()

    def _error_line(self, text: str, source: str) -> None:
        if self._error_after != self._last:
            self._errors.forget()
            self._error_after = self._last
        self._errors.take(text, source)

    @property
    def error(self) -> Alert | None:
        """The error after which no step came: where the log has ended, most likely it ended the program."""
        if not self._errors.last or self._error_after != self._last:
            return None
        first, last, step = self._errors.first, self._errors.last, self._last or 0
        complete = self._progress is not None and self._progress[0] >= self._progress[1]
        level: Level = "info" if last.startswith("KeyboardInterrupt") else "warn" if complete else "critical"
        cause = f"the first error after the last step: {first}" if first != last else ""
        return Alert(at=self.at, step=step, text=f"an error, and no step after it: {last}", level=level, cause=cause)

    def _step(self, kind: Kind, step: int, metrics: dict[str, float]) -> Iterator[Event]:
        """A step with the answers that waited for its number."""
        if self.kind == "unknown":
            self.kind = kind
        self._samples.drop()
        yield from self._samples.of_step(step, self.at)
        self._last = step
        yield Step(at=self.at, step=step, metrics=metrics)

    def _counted_of(self, step: int, steps: int) -> Iterator[Event]:
        """How far the log is, where a line says of how many steps it is."""
        if steps > 0:
            yield from self._progress_of(step, steps, None, None, None)

    def _progress_of(
        self, step: int, steps: int, elapsed_s: float | None, left_s: float | None, per_step_s: float | None
    ) -> Iterator[Event]:
        now = (step, steps, elapsed_s, left_s)
        if now != self._progress:
            self._progress = now
            yield LogProgress(
                at=self.at, step=step, steps=steps, elapsed_s=elapsed_s, left_s=left_s, per_step_s=per_step_s
            )

    def _step_line(self, text: str) -> Iterator[Event] | None:
        """The steps of a line; None where it is no step line. One that ends with ` -` goes on in the next lines."""
        begins = step_lines.begins(text)
        if not begins and not self._wrapped:
            return None
        before = self._wrapped_step() if begins and self._wrapped else iter(())
        if text.rstrip().endswith(" -") and sum(map(len, self._wrapped)) + len(text) < _LONG:
            self._wrapped = [*([] if begins else self._wrapped), text.strip()]
            return before
        if begins:
            return chain(before, self._steps_of_line(text))
        self._wrapped.append(text.strip())
        return self._wrapped_step()

    def _wrapped_step(self) -> Iterator[Event]:
        text, self._wrapped = " ".join(self._wrapped), []
        return self._steps_of_line(text)

    def _steps_of_line(self, text: str) -> Iterator[Event]:
        yield from self._end_block()
        for step, metrics in step_lines.parse(text):
            if metrics:
                yield from self._step("verl", step, metrics)
        if bars.MARK in text:
            yield from self._bars(text, [])

    def _bars(self, text: str, rest: list[str]) -> Iterator[Event]:
        """Steps and progress of the bars on a line; what stands behind the last is added to `rest`."""
        end = 0
        for bar in bars.bars(text):
            end = bar.end
            if not bar.title and not self._untitled:
                self._untitled = bar.total
            drawn_again = (bar.step, bar.metrics) == self._drawn
            if not drawn_again and any(map(is_measurement, bar.metrics)):
                self._drawn = bar.step, bar.metrics
                yield from self._step("bars", bar.step, bar.metrics)
            if bar.of_training and (bar.title or bar.total == self._untitled):
                yield from self._progress_of(bar.step, bar.steps, bar.elapsed_s, bar.left_s, bar.per_step_s)
        if behind := text[end:].strip():
            rest.append(behind)

    def _dict_line(self, text: str) -> Iterator[Event]:
        """A line of verl's metrics before the first step, or after the last, which pprint may break into several."""
        self._dict.append(text)
        if "}" in text or len(self._dict) > _DICT_LINES:
            yield from self._printed_dict()

    def _printed_dict(self) -> Iterator[Event]:
        text, self._dict = dicts.joined(self._dict), []
        begun = _VALIDATION.search(text)
        node = dicts.parse(text[begun.end() : text.rfind("}") + 1]) if begun else None
        if begun and node and (metrics := dicts.numbers(node)):
            last = self._last or 0
            # answers that wait for their step are those of a last validation, which older verl gave a step of its own
            step = 0 if begun[1] == "Initial" else last + 1 if self._samples.waiting and last else last
            yield from self._step("verl", step, metrics)

    def _of_dict(self, text: str, opened: int) -> list[Event]:
        """The events of a line with a dict; none where it is a dict of something else."""
        node = dicts.parse(text[opened : text.rfind("}") + 1])
        if not node:
            return []
        if not text[:opened].strip() and (event := self._of_json_line(node)):
            return event
        if not any(map(is_measurement, node)) and not dicts.BESIDE.isdisjoint(node):
            node = dicts.flattened(node)
        metrics: dict[str, Any] = {name: value for name, value in node.items() if not isinstance(value, dict | list)}
        if not any(is_measurement(str(name)) for name in metrics):
            return []
        named = dicts.step_of(metrics) or loose_lines.step_before(text[:opened])
        numbers = dicts.numbers(metrics)
        if not numbers:
            return []
        header, self._header = self._header, None
        if named is None and header is not None:
            named = header, 0
        if named is not None:
            return [*self._counted_of(*named), *self._step("trl", named[0], numbers)]
        self.counted = True
        if not all(map(_after_training, numbers)) and not self._again(numbers):
            self._count += 1
        return list(self._step("trl", self._count, numbers))

    def _again(self, metrics: dict[str, float]) -> bool:
        """Whether the step before is printed again, by another rank or stream: no two steps have one gradient."""
        before, self._counted = self._counted, metrics
        return metrics == before and any(canonical(name) == "actor/grad_norm" and metrics[name] > 0 for name in metrics)

    def _of_json_line(self, node: dict[str, Any]) -> list[Event]:
        """A line of verl's file logger, of our event log, or of answers."""
        if isinstance(data := node.get("data"), dict) and (step := dicts.as_step(node.get("step"))) is not None:
            return list(self._step("verl_file", step, dicts.numbers(data)))
        if "kind" in node and "seq" in node:
            return self._logged(node)
        if (sample := samples.from_dict(node, self.at)) is not None:
            if self.kind == "unknown":
                self.kind = "samples"
            return [sample]
        return []

    def _logged(self, node: dict[str, Any]) -> list[Event]:
        try:
            event = from_line(dicts.dumped(node))
        except INVALID:
            return []
        if isinstance(event, Step):
            self.kind = "rlrun" if self.kind == "unknown" else self.kind
            self._last = event.step
        return [event] if event else []

    def _end_block(self) -> Iterator[Event]:
        if not self._block.open:
            return
        step, metrics = self._block.close()
        if not metrics:
            return
        if step is None:
            step, self._header = self._header, None
        if step is None:
            self.counted = True
            self._count += 1
            step = self._count
        yield from self._step("block", step, metrics)


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _after_training(name: str) -> bool:
    """Whether a metric is of an evaluation, or of the whole training: a dict with these alone is no further step."""
    return name.startswith(("eval_", "train_", "test_")) or name in ("epoch", "total_flos")
