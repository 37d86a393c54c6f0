"""Tables with a header line and a row for each step: of notebooks, CSV, Markdown, pandas.

Step | Training Loss | reward
10   | 0.5312        | 0.25
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from launcher.core.events import Event
from launcher.logs.forms.dicts import BESIDE, STEP_NAME, as_step
from launcher.logs.forms.numbering import FAINT, NAMED
from launcher.logs.forms.reading import Form
from launcher.logs.forms.values import is_measurement, to_number

_STEP_COLUMNS = (*BESIDE, "epoch")
_SEPARATORS = ("\t", "|", "│", ";", ",", "  ")
_HTML = re.compile(r"<(t[hd])\b[^<>]{0,200}>([^<>]{0,200})</\1>")
_ROW_BORDER = re.compile(r"[-|:+=\s]{3,4000}|\s{0,4000}[\u2500-\u257f].{0,4000}")
"""A line between rows."""
_NAME = re.compile(r"[A-Za-z_][\w ./@%()-]{0,200}")
_MAX_ROW = 4_000  # most characters of a row


class Tables(Form):
    """Reads the rows below a header; without a column of steps, those of a CSV file are counted. A row of HTML may be
    on several lines."""

    ends_block = True
    _names: Sequence[str] = ()
    _separator = ""
    _step_column: int | None = None
    _rank = NAMED
    _counted = 0
    _at_beginning = True
    """Whether the line is the first; a file that is a table as a whole begins with its header."""
    _html_cells: tuple[str, ...] = ()

    def read(self, line: str) -> Iterator[Event] | None:
        line, begins, self._at_beginning = line.replace("┃", "│"), self._at_beginning, False
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
        is_csv = begins and separator in "\t;," and self.reading.numbers.only_faint
        is_header = separator and self._is_header(_split_cells(line, separator), separator, is_csv)
        return iter(()) if is_header else None

    def _is_row(self, cells: Sequence[str]) -> bool:
        if not self._names or len(cells) != len(self._names):
            return False
        if self._step_column is not None:
            return as_step(cells[self._step_column]) is not None
        measured = [cell for name, cell in zip(self._names, cells, strict=True) if is_measurement(name)]
        return all(to_number(cell or "nan") is not None for cell in measured)

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

    def _is_header(self, names: Sequence[str], separator: str, is_csv: bool = False) -> bool:
        """Whether it is a header, of which the names of the columns are taken."""
        plain, of_metric = [name.casefold() for name in names], [name.rpartition(" - ")[2] for name in names]
        steps = _step_columns(plain)
        measured = "wall time" in plain or any(map(is_measurement, of_metric))  # as TensorBoard names what it exports
        of_file = is_csv and all(map(_NAME.fullmatch, names))
        if not (measured and (steps or of_file)) or any(to_number(name) is not None for name in names):
            return False
        self._names = of_metric if len({*of_metric}) == len(names) else names  # W&B: `run - train/loss`
        self._separator, self._rank = separator, NAMED if steps else FAINT
        steps = steps or ["episode"] * plain.count("episode")
        self._step_column = plain.index(steps[0]) if steps else None
        return True

    def _events(self, row: Sequence[str]) -> Iterator[Event]:
        if not row:
            return
        cells, column = dict(zip(self._names, row, strict=True)), self._step_column
        step = None if column is None else as_step(cells.pop(self._names[column]))
        metrics = {name: number for name, cell in cells.items() if (number := to_number(cell)) is not None}
        if metrics and self.reading.numbers.admits("lines", self._rank, step):
            self._counted += 1
            yield from self.reading.step(self._counted if step is None else step, metrics)


def _step_columns(names: Sequence[str]) -> list[str]:
    return [name for name in _STEP_COLUMNS if name in names] or [*filter(STEP_NAME.fullmatch, names)]


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
