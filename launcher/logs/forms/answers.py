"""Answers that verl prints during a validation, each over several lines, and those that it writes as JSON lines.

[prompt] user: Janet's ducks lay 16 eggs ...
[response] She eats 3 eggs ... #### 18
[ground_truth] 18
[score] 1.0
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.core.events import Event, Sample
from launcher.logs.forms.dicts import as_step
from launcher.logs.forms.reading import Form, LineReading
from launcher.logs.forms.values import to_number

_BEGIN = "[prompt]"
_MARK = re.compile(r"\[(prompt|response|ground_truth|score)\] ?")
_MAX_CHARACTERS = 2**22  # most characters of one answer; longer text is not an answer
_MAX_WAITING = 2_000  # most answers that wait for the number of their step


class Answers(Form):
    """Joins the lines of printed answers. verl prints them before the line of the step that they belong to."""

    def __init__(self, reading: LineReading) -> None:
        super().__init__(reading)
        self._fields = dict[str, list[str]]()
        self._field = ""
        self._source = ""
        self._size = 0
        self._steps = 0

    @property
    def open(self) -> bool:
        """Whether an answer has begun whose score was not read yet; a step ends it."""
        return self._field != "" and self._steps == self.reading.steps and self._size <= _MAX_CHARACTERS

    def read(self, line: str) -> Iterator[Event] | None:
        """Lines of other processes than the one that began the answer do not belong to it."""
        is_own = line.startswith(_BEGIN) or (self.open and self.reading.source == self._source)
        return self._add(line) if is_own else None

    def _add(self, line: str) -> Iterator[Event]:
        mark = _MARK.match(line) if line.startswith("[") else None
        if mark is None:
            self._size += len(line)
            self._fields[self._field].append(line)
            return
        self._field = mark[1]
        if self._field == "prompt":
            self._fields, self._source, self._size, self._steps = {}, self.reading.source, 0, self.reading.steps
        self._fields[self._field] = [line[mark.end() :]]
        if self._field == "score":
            self.reading.answers.append({name: "\n".join(lines).rstrip() for name, lines in self._fields.items()})
            self._field = ""
        if len(self.reading.answers) >= _MAX_WAITING:
            yield from self.reading.samples()


def from_dict(node: Mapping[str, Any], at: float) -> Sample | None:
    """The answer on a line of verl's `validation_data_dir` or `rollout_data_dir`; None for other lines."""
    prompt, response = node.get("input", node.get("prompt")), node.get("output", node.get("response"))
    score = node.get("score", node.get("reward"))
    if not isinstance(prompt, str) or not isinstance(response, str) or isinstance(score, bool):
        return None
    value = to_number(score) if isinstance(score, str) else score
    if not isinstance(value, int | float):
        return None
    truth = node.get("gts", node.get("ground_truth", ""))
    return Sample(
        at=at, step=as_step(node.get("step")) or 0, data_source=str(node.get("data_source", "")), prompt=prompt,
        response=response, ground_truth="" if truth is None else str(truth), score=float(value),
    )  # fmt: skip
