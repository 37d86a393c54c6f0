"""One event stream from the lines of any log: which form a line has is decided line by line, as logs mix them.

Steps come in the order of the log; which lines make them says `numbering`. Of plain progress bars only
the latest is reported, once the lines that were given have been read. Nothing here raises: what cannot be read is
passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from orjson import JSONDecodeError, loads

from launcher.core.events import INVALID, Alert, Event, Level, LogProgress, Step, from_line
from launcher.core.metric_aliases import canonical
from launcher.logs import bars, dicts, endings, loose_lines, samples, step_lines, tracebacks
from launcher.logs.numbering import DICTS, LOOSE, NAMED, SUREST, Basis, Kind, Numbering
from launcher.logs.prefixes import RAY, without_prefix, without_source
from launcher.logs.step_lines import MOST_STEPS, NOT_BEFORE
from launcher.logs.values import after_training, is_measurement, of_evaluation
from launcher.logs.writers import Writers

_OF_TRL = (
    "learning_rate", "train/learning_rate", "completions/", "completion_length", "rewards/", "objective/",
    "eval_runtime", "train_runtime",
)  # fmt: skip
"""What the names of metrics begin with that the trainers of transformers and TRL log."""
_LABEL = re.compile(r"[0-9]{1,5}: ")
"""What `srun --label` puts before every line."""
_BELOW_LABEL = ("[prompt]", "step:")
"""What no other line has behind such a number, beside a process that Ray names."""
_REPEATED = re.compile(r"\s{0,4}\[repeated [0-9]{1,9}x across cluster\].{0,200}$")
_VALIDATION = re.compile(r"(Initial|Final) validation metrics: ")
_DICT_LINES = 2_000  # most lines of a dict that pprint broke
_PANEL = "╭"
_TRAINED = {"train/loss", "actor/loss", "actor/pg_loss", "critic/vf_loss", "actor/grad_norm"}
"""What only a training step has."""
new_object = object.__new__
NOT_FAST = (JSONDecodeError, TypeError, KeyError, AttributeError)
_NOTHING = re.compile(rb"(?!\[|\xe2\x95\xad|Killed|Segm|Abort|Bus )[^:=|{}#]*").fullmatch
"""Whether a line has none of the marks that all forms have one of: these, and some at its beginning."""
_LONG = 2**16  # of a longer line only step lines and dicts are read


class LogParser:
    """Reads lines in order. `at` is the time that events get: logs rarely name one. `basis` is what is known of its
    numbers from an earlier reading."""

    def __init__(self, at: float = 0.0, basis: Basis | None = None) -> None:
        self.at = at
        self.numbers = Numbering(basis)
        self.writers = Writers(self.numbers.basis.excluded)
        self._source = ""  # the process that wrote the line
        self._labelled = False  # whether lines have the label of their task
        self._prefix = b""  # what Ray put before the last step line
        self._counted = dict[str, float]()
        self._last: int | None = None
        self._progress: tuple[int, int, float | None, float | None] | None = None
        self._bar: int | None = None  # the count of the last bar of the training
        self._first_epoch: int | None = None
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

    @property
    def kind(self) -> Kind:
        return self.numbers.basis.kind

    @property
    def needs_beginning(self) -> bool:
        """Whether the number of a step depends on what stands before it."""
        return self.numbers.counted or self._first_epoch is not None

    def feed(self, text: bytes) -> Iterator[Event]:
        """The events of whole lines. Most of a large log is step lines with a bar between them: for these the loop
        below does nothing that is not needed."""
        find, count, at = text.find, text.count, self.at
        position = bar_from = bar_to = 0
        settled = self._settled_on_step_lines()
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
                prefix = self._prefix
                same = text[start - len(prefix) : start] == prefix if prefix else find(b"pid=", position, start) < 0
                if settled and same and find(b"{", position, start) < 0:
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
                    before = text[max(text.rfind(b"\n", position, start) + 1, position) : start]
                    self._source = without_source(_decoded(before))[1]
                    if self._source not in self.writers.excluded:
                        self._prefix = before[max(before.rfind(b"("), 0) :] if self._source else b""
                        yield from self._end_block()
                        yield from self._verl_step(step, metrics)
                    position, settled = start + len(line) + 1, self._settled_on_step_lines()
                    continue
            yield from self._lines(text[position : start + len(line)])
            position, settled = start + len(line) + 1, self._settled_on_step_lines()
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

    def _settled_on_step_lines(self) -> bool:
        return self.numbers.basis.rank == SUREST and self._settled()

    def _lines(self, text: bytes) -> Iterator[Event]:
        for raw in text.splitlines():
            if self._settled() and _NOTHING(raw):
                continue
            yield from self._line(_decoded(raw))

    def _line(self, text: str) -> Iterator[Event]:
        """The first form that claims a line takes it; what claims none is another program's talk."""
        text, self._source = without_source(self._unwrapped(text))
        if self._source in self.writers.excluded:
            yield from self.writers.notice(self._source, self.at, self._last or 0)
            return
        if "[repeated " in text:
            text = _REPEATED.sub("", text)
        self._watch_for_errors(text)
        for form in (self._validation_dict, self._step_line, self._sample_line, self._bars_and_rest):
            if (events := form(text)) is not None:
                yield from events
                return

    def _unwrapped(self, text: str) -> str:
        """What a container's or srun's line holds of the program's."""
        if text.startswith('{"log":'):
            text = dicts.of_docker(text)
        if text[:1].isdigit() and (label := _LABEL.match(text)):
            behind = text[label.end() :]
            if not (self._labelled or self._samples.open):  # within an answer such numbers are its own
                self._labelled = behind.startswith(_BELOW_LABEL) or RAY.match(behind) is not None
            text = behind if self._labelled else text
        return text

    def _watch_for_errors(self, text: str) -> None:
        if self._errors.open or "Traceback" in text or "Exception ignored" in text:
            self._error_line(text, self._source)
        elif not self._samples.open and (ending := endings.find(text)):
            self._forget_errors()
            self._errors.end(ending, text)

    def _validation_dict(self, text: str) -> Iterator[Event] | None:
        begins = "validation metrics: {" in text and _VALIDATION.search(text)
        return self._dict_line(text) if self._dict or begins else None

    def _sample_line(self, text: str) -> Iterable[Event] | None:
        if not (text.startswith("[") or self._samples.open) or not self._samples.take(text, self._source):
            return None
        return self._samples.of_step(0 if self._last is None else self._last + 1, self.at) if self._samples.full else ()

    def _bars_and_rest(self, text: str) -> Iterator[Event]:
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
            yield from self._end_block()  # it has its number before the dict has
            events = self._of_dict(text, opened)
            if events is not None:
                yield from events
                return
        if self.numbers.basis.rank == SUREST:
            return
        text = without_prefix(text)
        if self.kind == "lines" and (metrics := loose_lines.behind_step(text)):
            yield from self._step(self._last or 0, metrics)
        elif (named := self._named_step(text)) is not None:
            yield from named
        else:
            if self._block.repeats(text):
                yield from self._end_block()
            if not self._block.take(text):
                yield from self._end_block()

    def _named_step(self, text: str) -> Iterator[Event] | None:
        """A line that names its step, with metrics beside it or alone above a block; None where it is neither."""
        if not any(word in text for word in ("tep", "TEP", "ter", "TER")):
            return None
        if found := loose_lines.step_line(text):
            return self._of_step_line(*found)
        header = loose_lines.step_header(text)
        return self._of_heading(text, *header) if header else None

    def _of_step_line(self, step: int, steps: int, metrics: dict[str, float]) -> Iterator[Event]:
        yield from self._end_block()
        if self.numbers.admits("lines", NAMED, step):
            yield from self._counted_of(step, steps)
            yield from self._step(step, metrics)

    def _of_heading(self, text: str, step: int, steps: int) -> Iterator[Event]:
        yield from self._end_block()
        if text.startswith(_PANEL):
            self.numbers.panel(step)
            return
        self._header = step
        if self.numbers.basis.by_heading:
            yield from self._counted_of(step, steps)

    def _error_line(self, text: str, source: str) -> None:
        self._forget_errors()
        self._errors.take(text, source)

    def _forget_errors(self) -> None:
        """The program went on after them."""
        if self._error_after != self._last:
            self._errors.forget()
            self._error_after = self._last

    @property
    def error(self) -> Alert | None:
        """The error after which no step came: where the log has ended, most likely it ended the program."""
        errors = self._errors
        if not (errors.last or errors.ending) or self._error_after != self._last:
            return None
        first, last, fix = errors.first, errors.last, ""
        level: Level = "critical"
        cause = f"the first error after the last step: {first}" if first != last else ""
        if errors.ending:
            last, cause, fix, level = errors.ending_line, errors.ending.cause, errors.ending.fix, errors.ending.level
        rule = ""
        if not errors.ending and (memory := next(filter(endings.is_gpu_memory, (first, last)), "")):
            last, rule, fix = memory, endings.OUT_OF_MEMORY, endings.FIXES[endings.OUT_OF_MEMORY]["any"]
            cause = "the batch, or the length of its answers, needs more memory than the GPU has"
        if last.startswith("KeyboardInterrupt"):
            level = "info"
        if level == "critical" and self._progress is not None and self._progress[0] >= self._progress[1]:
            level = "warn"  # the training was complete
        text = f"an error, and no step after it: {last}"
        return Alert(at=self.at, step=self._last or 0, text=text, level=level, rule=rule, cause=cause, fix=fix)

    def _step(self, step: int, metrics: dict[str, float]) -> Iterator[Event]:
        """A step with the answers that waited for its number."""
        self._samples.drop()
        yield from self._samples.of_step(step, self.at)
        self._last = step
        yield Step(at=self.at, step=step, metrics=metrics)

    def _verl_step(self, step: int, metrics: dict[str, float], kind: Kind = "verl") -> Iterator[Event]:
        if self._of_rival(metrics, step):
            yield from self.writers.notice(self._source, self.at, self._last or 0)
            return
        self.numbers.admits(kind, SUREST, step)
        yield from self._step(step, metrics)

    def _of_rival(self, metrics: dict[str, float], count: float | None) -> bool:
        """Whether a step is of a process that another one, which is read, takes turns with."""
        if later := self.writers.rival(self._source, metrics, count):
            self.numbers.exclude(later)
        return later == self._source != ""

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
                yield from self._verl_step(step, metrics)
        if bars.MARK in text:
            yield from self._bars(text, [])

    def _bars(self, text: str, rest: list[str]) -> Iterator[Event]:
        """Steps and progress of the bars on a line; what stands behind the last is added to `rest`."""
        end = 0
        for bar in bars.bars(text):
            end = bar.end
            if not bar.title and not self._untitled:
                self._untitled = bar.total
            step = bar.step + self._epochs_before(bar) * bar.total
            if (step, bar.metrics) != self._drawn and any(map(is_measurement, bar.metrics)):
                self._drawn = step, bar.metrics
                if self.numbers.admits("bars", NAMED, step):
                    yield from self._step(step, bar.metrics)
            if bar.of_training and (bar.title or bar.total == self._untitled):
                self._bar = bar.step
                yield from self._progress_of(bar.step, bar.steps, bar.elapsed_s, bar.left_s, bar.per_step_s)
        if behind := text[end:].strip():
            rest.append(behind)

    def _epochs_before(self, bar: bars.Bar) -> int:
        """How many there were, where a title names only the epoch: Lightning counts them from 0, most others from 1."""
        if bar.open_epoch is None:
            return 0
        self._first_epoch = min(bar.open_epoch, 1) if self._first_epoch is None else self._first_epoch
        return max(bar.open_epoch - self._first_epoch, 0)

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
            yield from self._verl_step(step, metrics)

    def _of_dict(self, text: str, opened: int) -> list[Event] | None:
        """The events of a line with a dict of metrics; None where it is a dict of something else."""
        node = dicts.parse(text[opened : text.rfind("}") + 1])
        if not node:
            return None
        if not text[:opened].strip() and (event := self._of_json_line(node)):
            return event
        if any(map(is_measurement, node)) or not dicts.BESIDE.isdisjoint(node):
            node = dicts.flattened(node)
        metrics: dict[str, Any] = {name: value for name, value in node.items() if not isinstance(value, dict | list)}
        if not any(is_measurement(str(name)) for name in metrics):
            return None
        before = loose_lines.step_before(text[:opened])
        named = dicts.step_of(metrics) or before
        numbers = dicts.numbers(metrics)
        if not numbers:
            return None
        rank = DICTS if before else LOOSE
        if any(canonical(name) in _TRAINED for name in numbers):
            rank = NAMED if without_prefix(text[:opened]).strip() and not before else DICTS
        elif not before and named and named[0] >= (self._last or 0) and any(map(of_evaluation, numbers)):
            return list(self._evaluation(numbers, named[0]))
        return list(self._dict_step(named, numbers, rank))

    def _dict_step(self, named: tuple[int, int] | None, metrics: dict[str, float], rank: int) -> Iterator[Event]:
        if named is None and all(map(after_training, metrics)):
            yield from self._evaluation(metrics)
            return
        if named is None:
            header, self._header = self.numbers.heading(self._header), None
            named = None if header is None else (header, 0)
        if metrics != self._counted:  # ranks of one training print equal dicts, or each its own loss
            count = float(named[0]) if named else metrics.get("epoch")
            if self.writers.repeats(self._source, metrics, count) or self._of_rival(metrics, count):
                return
        if self.numbers.admits(self._kind_of(metrics, rank), rank, named[0] if named else None):
            if named:
                yield from self._counted_of(*named)
                step = named[0]
            else:
                step = self.numbers.again() if self._again(metrics) else self.numbers.next(self._bar)
            yield from self._step(step, metrics)
        elif rank >= self.numbers.basis.rank:
            yield from self._evaluation(metrics)

    def _evaluation(self, metrics: dict[str, float], step: int | None = None) -> Iterator[Event]:
        """Metrics of an evaluation or of the whole training belong to the last step, where they name none."""
        if self.kind == "unknown":
            self.numbers.admits(self._kind_of(metrics, 0), 0, None)
        if self.numbers.basis.rank < SUREST:
            yield from self._step(self.numbers.reached(self._last, self._bar) if step is None else step, metrics)

    def _kind_of(self, metrics: dict[str, float], rank: int) -> Kind:
        """Of a dict: of TRL, or another trainer of transformers, or of a program that is not known; all that make the
        steps of a log are of one."""
        owner = self.numbers.basis
        if owner.kind in ("trl", "dicts") and owner.rank == rank:
            return owner.kind
        return "trl" if any(name.startswith(_OF_TRL) for name in metrics) else "dicts"

    def _again(self, metrics: dict[str, float]) -> bool:
        """Whether the step before is printed again, by another rank or stream: no two steps have one gradient."""
        before, self._counted = self._counted, metrics
        return metrics == before and any(canonical(name) == "actor/grad_norm" and metrics[name] > 0 for name in metrics)

    def _of_json_line(self, node: dict[str, Any]) -> list[Event]:
        """A line of verl's file logger, of our event log, or of answers."""
        if isinstance(data := node.get("data"), dict) and (step := dicts.as_step(node.get("step"))) is not None:
            return list(self._verl_step(step, dicts.numbers(data), "verl_file"))
        if "kind" in node and "seq" in node:
            return self._logged(node)
        if (sample := samples.from_dict(node, self.at)) is not None:
            self.numbers.admits("samples", 0, None)
            return [sample]
        return []

    def _logged(self, node: dict[str, Any]) -> list[Event]:
        try:
            event = from_line(dicts.dumped(node))
        except INVALID:
            return []
        if isinstance(event, Step):
            self.numbers.admits("rlrun", SUREST, event.step)
            self._last = event.step
        return [event] if event else []

    def _end_block(self) -> Iterator[Event]:
        if not self._block.open:
            return
        step, metrics = self._block.close()
        if not metrics:
            return
        if step is None:
            step, self._header = self.numbers.heading(self._header), None
        if self.numbers.admits("block", LOOSE if step is None else NAMED, step):
            yield from self._step(self.numbers.next(None) if step is None else step, metrics)
        elif all(map(after_training, metrics)):
            yield from self._evaluation(metrics)


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
