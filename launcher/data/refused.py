"""The log of refused rows, each with its place and reason. Rows are counted: read = good + refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar

from launcher.core.files import AppendOnlyFile
from launcher.core.problems import Problem
from launcher.spec.data import RefusedRow

T = TypeVar("T")

COMPLETE_FILE = "use the complete file, with rows"
SHOWN = 20  # refused rows that are shown on screen; the file has all


class RefusedLog:
    """Writes refused rows to a file, which is made only when there is one.

    Each line is an object with where, reason and raw, in ASCII: `json.loads` gives back every character, and
    `raw.encode("utf-8", "surrogateescape")` the bytes of the refused line.
    """

    def __init__(self, path: Path | None) -> None:
        """With `path` None rows are only counted. An existing file is replaced."""
        self.path = path
        if path and path.is_file():  # do not remove a device or a pipe
            path.unlink()
        self.rows = 0
        self.refused = 0
        self.wanted = 0
        """Refused rows that a setting asks to leave out."""
        self.first: list[Problem] = []
        """The first `SHOWN` refused rows that are errors."""
        self.cut_files: list[Problem] = []
        """Files that could not be read to their end."""
        self._log: AppendOnlyFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Raises the `OSError` with which writing a row failed, unless another error is being raised."""
        if self._log is None:
            return
        self._log.close()
        if self._log.refused and error is None:
            raise self._log.refused

    def sift(self, found: Iterable[T | RefusedRow]) -> Iterator[T]:
        """The good rows of `found`; refused ones are logged."""
        for item in found:
            if isinstance(item, RefusedRow):
                self.keep(item)
            else:
                self.rows += 1
                yield item

    def keep(self, refused: RefusedRow) -> None:
        """Count the row and append it to the file. Raises `OSError` when the file cannot be made."""
        self.rows += 1
        self.refused += 1
        self.wanted += refused.wanted
        if refused.ends_file:
            self.cut_files.append(Problem(refused.where, refused.reason, COMPLETE_FILE, "bad-file"))
        elif len(self.first) < SHOWN and not refused.wanted:
            self.first.append(Problem(refused.where, refused.reason, code="bad-row"))
        if self.path is None:
            return
        if self._log is None:
            self._log = AppendOnlyFile.open(self.path)
        self._log.append(json.dumps({"where": refused.where, "reason": refused.reason, "raw": refused.raw}))

    @property
    def good(self) -> int:
        return self.rows - self.refused

    @property
    def bad(self) -> int:
        """Rows that are errors: refused, and not because a setting asks for it."""
        return self.refused - self.wanted

    def problems(self, on_bad_row: Literal["error", "skip"]) -> list[Problem]:
        """Why the rows may not be trained on: the first bad ones and the number of others, unless they are skipped, and
        the files that were not read to their end, which lack an unknown number of rows."""
        bad = self.bad - len(self.cut_files)
        if not bad or on_bad_row == "skip":
            return self.cut_files
        others = [Problem("", f"... and {bad - SHOWN} more", code="bad-row")] if bad > SHOWN else []
        got = f"{bad} of {self.rows} rows are bad{f', kept in {self.path}' if self.path else ''}"
        return [*self.cut_files, *self.first, *others, Problem("data.on_bad_row", got, "use skip", "bad-row")]
