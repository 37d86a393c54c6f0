"""Dicts that stand on several lines, one or more entries on each, as pprint and `json.dump(indent=4)` write them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.core.events import Event
from launcher.logs.forms import dicts
from launcher.logs.forms.reading import Form, LineReading

_VALIDATION = re.compile(r"(Initial|Final) validation metrics: (?=\{)")
_BEGINS = re.compile(r"[\s\[]{0,20}\{\s{0,8}(?:['\"][^{}]{0,500})?")
_CONTINUES = re.compile(r"\s{0,40}['\"][^{}]{0,500}(?:[{}][^{}]{0,500}){0,8}|\s{0,40}[-+\w.]{0,40}[]},\s]{0,8}")
_QUOTED = re.compile(r"\s*\(?\s*(['\"])(.*)\1\)?\s*")
"""A piece of a text that pprint broke, one on a line: `("Initial validation metrics: {'a': "` and ` '0.22}')`."""
_MAX_LINES = 2_000


class BrokenDicts(Form):
    """Joins the lines of a dict, also of each dict in a list. verl's metrics before the first step or after the last
    make a step here; other dicts are passed to `MetricDicts` as one line."""

    def __init__(self, reading: LineReading) -> None:
        super().__init__(reading)
        self._lines = list[str]()
        self._depth = 0
        self._is_validation = False

    def read(self, line: str) -> Iterator[Event] | None:
        return self._add(line) if self._belongs(line) else None

    def _belongs(self, line: str) -> bool:
        continues = self._is_validation or (self._lines and _CONTINUES.fullmatch(line))
        if self._lines and continues and len(self._lines) < _MAX_LINES:
            return True
        self._lines, self._depth = [], 0
        self._is_validation = "{" in line and _VALIDATION.search(line) is not None
        return self._is_validation or ("{" in line and _BEGINS.fullmatch(line) is not None)

    def _add(self, line: str) -> Iterator[Event]:
        self._lines.append(line)
        self.rest, self._depth = "", self._depth + line.count("{") - line.count("}")
        if "}" not in line or (self._depth > 0 and not self._is_validation):
            return
        lines, self._lines, self._depth = self._lines, [], 0
        if not self._is_validation:
            self.rest = " ".join(lines)
            return
        self._is_validation = False
        text = "".join(quoted[2] if (quoted := _QUOTED.fullmatch(line)) else line.strip() for line in lines)
        heading = _VALIDATION.search(text)
        node = dicts.parse(text[heading.end() : text.rfind("}") + 1]) if heading else None
        if heading and node and (metrics := dicts.numbers(node)):
            last = self.reading.last or 0
            # answers that wait for their step are those of a last validation, which older verl gave a step of its own
            step = 0 if heading[1] == "Initial" else last + 1 if self.reading.answers else last
            yield from self.reading.verl_step(step, metrics)
