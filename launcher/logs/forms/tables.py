"""Tables with a row for each step, whose first line names their columns: of notebooks, CSV, Markdown, pandas.

Step | Training Loss | reward
10   | 0.5312        | 0.25
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from launcher.core.events import Event
from launcher.logs.forms.dicts import BESIDE, as_step
from launcher.logs.forms.numbering import NAMED
from launcher.logs.forms.reading import Form
from launcher.logs.forms.values import is_measurement, to_number

_STEPS = (*BESIDE, "epoch")
_MARKS = ("\t", "|", "│", ";", ",", "  ")
_HTML = re.compile(r"<(t[hd])\b[^<>]{0,200}>([^<>]{0,200})</\1>")
_RULE = re.compile(r"[-|:+=\s]{3,4000}|\s{0,4000}[\u2500-\u257f].{0,4000}")
"""What stands between rows."""
_LONGEST = 4_000  # characters of a row


class Tables(Form):
    """Reads the rows below a header. One of HTML may stand on several lines."""

    ends_block = True
    _names: Sequence[str] = ()
    _row: Sequence[str] = ()
    _mark = ""
    _html: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether a header has come, or a part of a row."""
        return bool(self._names or self._html)

    def claims(self, line: str) -> bool:
        self._row, line = (), line.replace("┃", "│")
        if len(line) > _LONGEST:
            return False
        if "</t" in line:
            return self._of_html(line)
        if self._names and self._mark != "<":
            self._row = _cells(line, self._mark)
            if len(self._row) == len(self._names) and as_step(self._row[self._column]) is not None:
                return True
            if _RULE.fullmatch(line):
                self._row = ()
                return True
            self._names = self._row = ()
        mark = next((mark for mark in _MARKS if mark in line.strip()), "")
        return bool(mark) and self._is_header(_cells(line, mark), mark)

    def _of_html(self, line: str) -> bool:
        self._html += tuple(found[2].strip() for found in _HTML.finditer(line))[:200]
        if "</tr>" in line:
            cells, self._html = self._html, ()
            if self._names and len(cells) == len(self._names) and as_step(cells[self._column]) is not None:
                self._row = cells
            elif cells:
                self._names = ()
                self._is_header(cells, "<")
        return True

    def _is_header(self, names: Sequence[str], mark: str) -> bool:
        plain, of_metric = [name.casefold() for name in names], [name.rpartition(" - ")[2] for name in names]
        steps = [name for name in _STEPS if name in plain]
        measured = "wall time" in plain or any(map(is_measurement, of_metric))  # as TensorBoard names what it exports
        if not steps or not measured or any(to_number(name) is not None for name in names):
            return False
        self._names, self._mark = (
            of_metric if len({*of_metric}) == len(names) else names,
            mark,
        )  # W&B: `run - train/loss`
        self._column = plain.index(steps[0])
        return True

    def take(self, line: str) -> Iterator[Event]:
        if not self._row:
            return
        step = as_step(self._row[self._column]) or 0
        cells = dict(zip(self._names, self._row, strict=True))
        del cells[self._names[self._column]]
        metrics = {name: number for name, cell in cells.items() if (number := to_number(cell)) is not None}
        if metrics and self.reading.numbers.admits("lines", NAMED, step):
            yield from self.reading.step(step, metrics)


def _cells(line: str, mark: str) -> Sequence[str]:
    line = line.strip().strip(mark) if mark in "|│" else line.strip("\r\n")
    parts = (
        re.split(r"\s{2,}" if re.search("[A-Za-z]{2}", line) else r"\s+", line.strip())
        if mark == "  "
        else line.split(mark)
    )
    return [part.strip().strip('"') for part in parts]
