"""Tables with a header line and a row for each step: of notebooks, CSV, Markdown, pandas.

Step | Training Loss | reward
10   | 0.5312        | 0.25
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from launcher.core.events import Event
from launcher.logs.forms.dicts import BESIDE, STEP_NAME, as_step
from launcher.logs.forms.numbering import NAMED
from launcher.logs.forms.reading import Form
from launcher.logs.forms.values import is_measurement, to_number

_STEP_COLUMNS = (*BESIDE, "epoch")
_SEPARATORS = ("\t", "|", "│", ";", ",", "  ")
_HTML = re.compile(r"<(t[hd])\b[^<>]{0,200}>([^<>]{0,200})</\1>")
_ROW_BORDER = re.compile(r"[-|:+=\s]{3,4000}|\s{0,4000}[\u2500-\u257f].{0,4000}")
"""A line between rows."""
_MAX_ROW = 4_000  # most characters of a row


class Tables(Form):
    """Reads the rows below a header. A row of HTML may be on several lines."""

    ends_block = True
    _names: Sequence[str] = ()
    _separator = ""
    _html_cells: tuple[str, ...] = ()

    def read(self, line: str) -> Iterator[Event] | None:
        line = line.replace("┃", "│")
        if len(line) > _MAX_ROW:
            return None
        if "</t" in line:
            return self._events(self._html_row(line))
        if self._names and self._separator != "<":
            row = _split_cells(line, self._separator)
            if self._is_row(row):
                return self._events(row)
            if _ROW_BORDER.fullmatch(line):
                return iter(())
            self._names = ()
        separator = next((separator for separator in _SEPARATORS if separator in line.strip()), "")
        is_header = separator and self._is_header(_split_cells(line, separator), separator)
        return iter(()) if is_header else None

    def _is_row(self, cells: Sequence[str]) -> bool:
        same_columns = bool(self._names) and len(cells) == len(self._names)
        return same_columns and as_step(cells[self._step_column]) is not None

    def _html_row(self, line: str) -> Sequence[str]:
        """The row that ends on the line; empty for a header, and within a row."""
        self._html_cells += tuple(match[2].strip() for match in _HTML.finditer(line))[:200]
        if "</tr>" not in line:
            return ()
        cells, self._html_cells = self._html_cells, ()
        if self._is_row(cells):
            return cells
        if cells:
            self._names = ()
            self._is_header(cells, "<")
        return ()

    def _is_header(self, names: Sequence[str], separator: str) -> bool:
        plain, of_metric = [name.casefold() for name in names], [name.rpartition(" - ")[2] for name in names]
        steps = [name for name in _STEP_COLUMNS if name in plain] or [*filter(STEP_NAME.fullmatch, plain)]
        measured = "wall time" in plain or any(map(is_measurement, of_metric))  # as TensorBoard names what it exports
        if not steps or not measured or any(to_number(name) is not None for name in names):
            return False
        self._names = of_metric if len({*of_metric}) == len(names) else names  # W&B: `run - train/loss`
        self._separator = separator
        self._step_column = plain.index(steps[0])
        return True

    def _events(self, row: Sequence[str]) -> Iterator[Event]:
        if not row:
            return
        step, cells = as_step(row[self._step_column]) or 0, dict(zip(self._names, row, strict=True))
        del cells[self._names[self._step_column]]
        metrics = {name: number for name, cell in cells.items() if (number := to_number(cell)) is not None}
        if metrics and self.reading.numbers.admits("lines", NAMED, step):
            yield from self.reading.step(step, metrics)


def _split_cells(line: str, separator: str) -> Sequence[str]:
    line = line.strip().strip(separator) if separator in "|│" else line.strip("\r\n")
    parts = (
        re.split(r"\s{2,}" if re.search("[A-Za-z]{2}", line) else r"\s+", line.strip())
        if separator == "  "
        else line.split(separator)
    )
    if separator == ";":  # which stands where a comma is the decimal point
        parts = [part.replace(",", ".") for part in parts]
    return [part.strip().strip('"') for part in parts]
