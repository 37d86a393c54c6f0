"""Opens logs: whole, from the end, and while they grow. Files of any size are read in blocks, in bounded memory."""

from __future__ import annotations

import os
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from itertools import chain, groupby, islice
from pathlib import Path
from types import ModuleType

from launcher.core.events import Event, Step
from launcher.core.files import open_file, skip_hole
from launcher.core.problems import Problem, Problems, error_message
from launcher.logs import tensorboard, trainer_state
from launcher.logs.forms.numbering import Basis, Kind
from launcher.logs.parser import LogParser

BLOCK = 2**18
LONGEST_LINE = 2**24
"""Bytes of a line that are kept; the rest of a longer line is skipped."""
DOCUMENTS = (trainer_state, tensorboard)
"""Readers of files that are no text, or that are replaced as a whole; each is known by the start of a file
(`is_one`)."""
_SNIFFED_BLOCKS = 64  # blocks read to find the form of a log
_START_BYTES = 2**16
_BOM = b"\xef\xbb\xbf"
_UTF16 = "is UTF-16 text", "iconv -f UTF-16 -t UTF-8"  # as older PowerShell redirects output
_UNREADABLE = {
    b"\x1f\x8b": ("is compressed (gzip)", "zcat"), b"BZh": ("is compressed (bzip2)", "bzcat"),
    b"\xfd7zXZ": ("is compressed (xz)", "xzcat"), b"\x28\xb5\x2f\xfd": ("is compressed (zstd)", "zstdcat"),
    b"\x04\x22\x4d\x18": ("is compressed (lz4)", "lz4cat"), b"PK\x03\x04": ("is compressed (zip)", "funzip"),
    b"\xff\xfe": _UTF16, b"\xfe\xff": _UTF16,
}  # fmt: skip
"""First bytes of files that are not plain text: what such a file is, and the command that prints its text."""
_CUT_EXPONENT = re.compile(rb":[-+]?[0-9.]{1,40}[eE][-+]?[0-9]?$")
"""A number that was cut in its exponent, as Python writes at least two digits of it."""


@dataclass(frozen=True)
class LogSource:
    """A log on disk. `at`, the time of its last write, is the time of all its events."""

    path: Path
    at: float
    document: ModuleType | None
    """The reader of a `trainer_state.json` or of an event file of TensorBoard; None for a text log."""

    @property
    def kind(self) -> Kind:
        """The form that owns its steps; `unknown` where no metrics are near its beginning."""
        kind: Kind = self.document.KIND if self.document else self.basis.kind
        return kind

    @cached_property
    def basis(self) -> Basis:
        """How its steps are numbered, by the blocks at its beginning."""
        parser = LogParser()
        for text in islice(self._blocks(), _SNIFFED_BLOCKS):
            for _ in parser.feed(text):
                if parser.reading.numbers.sure:
                    return parser.reading.numbers.basis
        deque(parser.finish(), 0)
        return parser.reading.numbers.basis

    def events(self) -> Iterator[Event]:
        """All events from its beginning. Raises `OSError`, and `Problems` for a document that was cut."""
        if self.document:
            return self._read_document(self.document)
        parser = LogParser(self.at, self.basis)
        return chain(chain.from_iterable(map(parser.feed, self._blocks())), parser.finish())

    def _read_document(self, document: ModuleType) -> Iterator[Event]:
        try:
            yield from document.read_events(self.path, self.at)
        except ValueError as error:
            fix = "use a copy of the whole file, or the log itself"
            raise Problems(Problem(str(self.path), error_message(error), fix, "bad-file")) from error

    def _blocks(self) -> Iterator[bytes]:
        """The text in blocks of whole lines; only the last line may lack its end."""
        rest = b""
        with open_file(self.path) as file:
            for text, rest in _read_lines(file, b""):  # noqa: B007  # the last one is read below
                yield text
        yield _CUT_EXPONENT.sub(b":", rest)

    def check_text(self) -> None:
        """Raises `Problems` for a document, which is replaced as a whole or is no text: only text can be followed."""
        if self.document:
            fix = "use rlrun metrics again, or follow the console log"
            raise Problems(Problem(str(self.path), "is no text log, and cannot be followed", fix, "bad-file"))

    def last_steps(self, count: int) -> list[Step]:
        """The last `count` steps. Adjacent lines of one step are merged."""
        return list(deque(_merge_steps(event for event in self.events() if isinstance(event, Step)), count))


def open_log(path: Path, piped: bool = False) -> LogSource:
    """The log at `path`; `piped`: that is a copy of standard input. Raises `Problems` where it is not a file, cannot be
    read, is compressed, or is UTF-16."""
    try:
        with open_file(path) as file:
            start, stat = file.read(_START_BYTES), os.fstat(file.fileno())
    except OSError as error:
        fix = "use the path of a log file, or the name of a run"
        raise Problems(Problem(str(path), error_message(error), fix, "not-found")) from error
    if start is None or (start and not stat.st_size):
        got = "is made by the system as it is read, and no log"
        raise Problems(Problem(str(path), got, "use the path of a log file, or the name of a run", "bad-file"))
    for magic, (got, command) in _UNREADABLE.items():
        if start.startswith(magic):
            where, reads = ("standard input", command) if piped else (str(path), f"{command} {shlex.quote(str(path))}")
            raise Problems(Problem(where, got, f"use {reads} | rlrun metrics -", "bad-file"))
    return LogSource(path, max(stat.st_mtime, 0.0), next((each for each in DOCUMENTS if each.is_one(start)), None))


def _merge_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Merge adjacent lines of one step: some logs have its validation on a line of its own."""
    for number, group in groupby(steps, key=lambda step: step.step):
        metrics = dict[str, float]()
        for step in group:
            metrics |= step.metrics
        yield Step(at=step.at, step=number, metrics=metrics)


def _read_lines(file: BufferedReader, rest: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(whole lines, unfinished line behind them) of each block of the file; `rest` is the unfinished line before its
    position. A carriage return ends a line, too, as in progress bars; a line that is too long is cut."""
    if file.tell() == 0 and file.peek(len(_BOM)).startswith(_BOM):
        file.seek(len(_BOM))
    while block := file.read(BLOCK):
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if end:
            text, rest = rest + block[:end], block[end:]
        else:
            text, rest = b"", rest if len(rest) >= LONGEST_LINE else rest + block
        if len(rest) >= LONGEST_LINE:
            skip_hole(file)
        yield text, rest


class GrowingLog:
    """Reads a log while others append to it, truncate it, or put a new file in its place (rotation). What was written
    to the old file after the last call of `new` and before the rotation is not read."""

    _TAIL_BYTES = 256  # before the offset: where they have changed, the file was rewritten

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path, self._clock = path, clock
        self.parser = LogParser()
        self.readings = 0
        """How often reading was restarted: events given before a restart no longer count."""
        self._file_id: tuple[int, int] | None = None
        self._begin_file()

    def _begin_file(self) -> None:
        self._offset = 0
        self._tail, self._rest = b"", b""  # the latter: the unfinished line before the offset

    def new(self) -> Iterator[Event]:
        """The events since the last call; none where there is no such file. A half-written line waits, except for a
        progress bar, whose line ends only when the next bar is written."""
        self.parser.reading.at = self._clock()
        try:
            file = open_file(self.path)
        except OSError:
            return
        with file:
            stat = os.fstat(file.fileno())
            old_id, self._file_id = self._file_id, (stat.st_dev, stat.st_ino)
            if old_id not in (None, self._file_id):
                yield from self.parser.feed(self._rest)
                self._begin_file()
            elif os.pread(file.fileno(), len(self._tail), self._offset - len(self._tail)) != self._tail:
                self._restart(None)
            yield from self._read_blocks(file)
        if self._rest.endswith(b"]") and b"%|" in self._rest:
            yield from self.parser.feed(self._rest)

    def finish(self) -> Iterator[Event]:
        """The last events, which waited for more lines."""
        yield from self.parser.feed(_CUT_EXPONENT.sub(b":", self._rest))
        yield from self.parser.finish()

    def _restart(self, basis: Basis | None) -> None:
        self.parser = LogParser(self.parser.reading.at, basis)
        self._begin_file()
        self.readings += 1

    def _read_blocks(self, file: BufferedReader) -> Iterator[Event]:
        file.seek(self._offset)
        for text, rest in _read_lines(file, self._rest):
            self._rest, self._offset = rest, file.tell()
            self._tail = os.pread(file.fileno(), self._TAIL_BYTES, max(self._offset - self._TAIL_BYTES, 0))
            yield from self.parser.feed(text)
            numbers = self.parser.reading.numbers
            if numbers.changed and self._offset <= _SNIFFED_BLOCKS * BLOCK:  # so that steps are numbered as in `events`
                self._restart(numbers.basis)
                yield from self._read_blocks(file)
                return
