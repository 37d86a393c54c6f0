"""Answers that verl prints during a validation, each over several lines, and those that it writes as JSON lines.

[prompt] user: Janet's ducks lay 16 eggs ...
[response] She eats 3 eggs ... #### 18
[ground_truth] 18
[score] 1.0
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.core.events import Sample
from launcher.logs.dicts import as_step
from launcher.logs.values import to_number

BEGIN = "[prompt]"
_MARK = re.compile(r"\[(prompt|response|ground_truth|score)\] ?")
_LONGEST = 2**22  # characters of one answer; beyond, it was none
_MOST = 2_000  # answers that wait for the number of their step


class SampleReader:
    """Puts printed answers together. verl prints them before the line of the step that they belong to."""

    def __init__(self) -> None:
        self._fields = dict[str, list[str]]()
        self._field = ""
        self._source = ""
        self._size = 0
        self._waiting = list[dict[str, str]]()

    @property
    def open(self) -> bool:
        """Whether an answer has begun and has no score yet."""
        return bool(self._field)

    def take(self, text: str, source: str) -> bool:
        """Whether a line belongs to an answer; `source` is the process that printed it (Ray's prefix)."""
        mark = _MARK.match(text) if text.startswith("[") else None
        if mark is None or (mark[1] != "prompt" and not self._field):
            return self._continue(text, source)
        if mark[1] == "prompt":
            self._fields, self._source, self._size = {}, source, 0
        elif source != self._source:
            return False
        self._field = mark[1]
        self._fields[self._field] = [text[mark.end() :]]
        if self._field == "score":
            self._waiting.append({name: "\n".join(lines).rstrip() for name, lines in self._fields.items()})
            self.drop()
        return True

    def _continue(self, text: str, source: str) -> bool:
        if not self._field or source != self._source:
            return False
        self._size += len(text)
        if self._size > _LONGEST:
            self.drop()
            return False
        self._fields[self._field].append(text)
        return True

    def drop(self) -> None:
        """Forget an answer that has no score yet: something else began."""
        self._field, self._fields, self._size = "", {}, 0

    @property
    def waiting(self) -> int:
        """How many wait for the number of their step."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether so many wait that they should be given a step."""
        return len(self._waiting) >= _MOST

    def of_step(self, step: int, at: float) -> Iterator[Sample]:
        """The answers that waited for the number of their step."""
        waiting, self._waiting = self._waiting, []
        for fields in waiting:
            score = to_number(fields["score"])
            yield Sample(
                at=at, step=step, data_source="", prompt=fields.get("prompt", ""), response=fields.get("response", ""),
                ground_truth=fields.get("ground_truth", ""), score=math.nan if score is None else score,
            )  # fmt: skip


def from_dict(node: Mapping[str, Any], at: float) -> Sample | None:
    """The answer of a line of verl's `validation_data_dir` or `rollout_data_dir`; None where it is no such line."""
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
