"""What is refused is kept, whole, with its place and reason, and counted: in = out + refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from launcher.files import Log
from launcher.spec.algorithm import Kind
from launcher.spec.data import Dataset, Refused, Split

T = TypeVar("T")

SHOWN = 20  # refused rows that are named on screen; the file has all


class RefusedLog:
    """Sets refused rows aside in a file, which is made only when there is one.

    Each line is an object with where, reason and raw, in ASCII: `json.loads` gives back every character, and
    `raw.encode("utf-8", "surrogateescape")` the bytes of the refused line.
    """

    def __init__(self, path: Path | None) -> None:
        """`path` None counts only. A file of an earlier reading is replaced."""
        self.path = path
        if path and path.is_file():  # never a device or a pipe
            path.unlink()
        self.rows = 0
        self.good = 0
        self.refused = 0
        self.first: list[str] = []
        """The first few, as `where: reason`."""
        self._log: Log | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Raises the `OSError` that kept a refused row from the disk, unless another error is on its way."""
        if self._log is None:
            return
        self._log.close()
        if self._log.refused and error is None:
            raise self._log.refused

    def sift(self, found: Iterable[T | Refused]) -> Iterator[T]:
        """The good ones of `found`; the others are kept."""
        for item in found:
            if isinstance(item, Refused):
                self.keep(item)
            else:
                self.rows += 1
                self.good += 1
                yield item

    def keep(self, refused: Refused) -> None:
        """Count the row and append it to the file. Raises `OSError` when the file cannot be made."""
        self.rows += 1
        self.refused += 1
        if len(self.first) < SHOWN:
            self.first.append(f"{refused.where}: {refused.reason}")
        if self.path is None:
            return
        if self._log is None:
            self._log = Log.open(self.path)
        self._log.append(json.dumps({"where": refused.where, "reason": refused.reason, "raw": refused.raw}))

    def lines(self) -> list[str]:
        """The first refused rows, how many more there are, and the two ways on."""
        more = [f"... and {self.refused - SHOWN} more"] if self.refused > SHOWN else []
        kept = f", kept in {self.path}" if self.path else ""
        return [*self.first, *more, f"data.on_bad_row: {self.refused} of {self.rows} rows are bad{kept}; skip would do"]


@dataclass(frozen=True)
class Taken:
    """What going through a split found."""

    rows: int  # all of them: good + refused
    good: int
    refused: int
    first: tuple[str, ...]  # `where: reason`, at most SHOWN
    kept: Path | None  # the file with the refused rows; None when there are none


def go_through(dataset: Dataset, split: Split, kind: Kind, path: Path) -> Taken:
    """Read every row of the split once and keep the refused ones in `path`."""
    with RefusedLog(path) as log:
        for _ in log.sift(dataset.read(split, kind)):
            pass
    return Taken(log.rows, log.good, log.refused, tuple(log.first), path if log.refused else None)
