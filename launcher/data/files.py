"""A dataset in files: JSON lines, a JSON array, CSV (each also gzip) or parquet. `reader` reads the files, `formats`
interprets the rows."""

from __future__ import annotations

import codecs
import glob
import hashlib
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Self

from launcher.core.files import open_file
from launcher.core.problems import Problem, Problems, suggest
from launcher.core.settings import Names, ReadOnlyWith, settings
from launcher.data.formats import to_row
from launcher.data.keys import OF_TURNS, ReadKeys
from launcher.data.known_datasets import Format, to_standard_row
from launcher.data.reader import FORMS, ending_problem, read_rows
from launcher.data.rows import RawRow, UnfitRow, store, without_nulls
from launcher.spec.algorithm import Kind
from launcher.spec.data import ENDINGS, NO_SOURCE, SPLITS, Dataset, RefusedRow, Row, Split

OF_AUTO = ReadOnlyWith("format", "auto", fix="data.format=auto")


@settings
class Files(Dataset):
    """Rows from files. Patterns such as `data/part-*.jsonl` are expanded, their files read in sorted order."""

    train_files: Names = ()
    """Files or patterns of training rows, read in this order."""
    val_files: Names = ()
    """Files or patterns of held-out rows; without them `val_share` of the training rows are held out."""
    prompt_key: Annotated[str | None, OF_AUTO] = None
    """Field of the prompt in rows of format `auto`; by default messages, prompt, question, conversations or
    instruction, whichever a row has."""
    response_key: Annotated[str | None, OF_AUTO] = None
    """Field of the answer in rows of format `auto`; by default response, answer, completion or output, whichever a row
    has."""
    format: Format = "auto"
    """Row format: `auto` reads messages, prompt and response (answer, completion), question and answer, prompt with
    chosen and rejected, verl's rows, Alpaca's (instruction, input, output) and ShareGPT's (conversations), whichever a
    row has. `gsm8k`, `math` and `hh` read the datasets of that name, `mails` questions about mails."""
    instruction: str | None = None
    """Text appended to each question; by default that of the format, which asks for the answer in the form its reward
    reads."""
    data_source: str | None = None
    """Source name of the rows, which selects their reward; by default the row's own, or the format's."""

    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        for pattern in self.patterns(split):
            names = expand(pattern)
            if not names:
                yield RefusedRow(pattern, "the pattern matches no file", "", ends_file=True)
            for name in names:
                for row in read_rows(name):
                    yield row if isinstance(row, RefusedRow) else self.row(row, kind)

    @property
    def held_out(self) -> int | None:
        return None if self.val_files or self.val_share else 0

    def with_absolute_paths(self) -> Self:
        def absolute(patterns: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(os.path.abspath(os.path.expanduser(pattern)) for pattern in patterns)

        return replace(self, train_files=absolute(self.train_files), val_files=absolute(self.val_files))

    def problems(self) -> list[Problem]:
        found = []
        if not self.train_files:
            found.append(Problem("data.train_files", "none is given", _suggest_train_file()))
        for name in ("prompt_key", "response_key"):
            if self.format != "auto" and (key := getattr(self, name)):
                got = f"{key} was given, and rows of the format {self.format} have keys of their own"
                found.append(Problem(f"data.{name}", got, f"use data.format=auto, or leave out data.{name}"))
        for split in SPLITS:
            for pattern in self.patterns(split):
                files, param = expand(pattern), f"data.{split}_files"
                before = f"{param}=" if len(self.patterns(split)) == 1 else ""  # the argument replaces all patterns
                if not files:
                    found.append(Problem(param, f"{pattern} matches no file", _file_hint(pattern, before), "not-found"))
                found += [problem for name in files if (problem := _file_problem(name, param, before))]
        return found

    def fingerprint(self) -> str:
        """sha256 over the content of the files, their order, and the settings that choose keys; names do not count.

        Raises `Problems` when a file cannot be read.
        """
        choices: tuple[Any, ...] = (self.prompt_key, self.response_key, self.format, self.instruction, self.data_source)
        choices += (self.val_share,) if self.val_share else ()
        digest = hashlib.sha256(repr(choices).encode())
        for split in SPLITS:
            digest.update(f"{split}_files".encode())
            for name in self.expanded(split):
                try:
                    with open_file(name) as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
                except (OSError, ValueError) as error:  # ValueError: a NUL in the name
                    problem = Problem(f"data.{split}_files", f"{name} cannot be read: {error}", code="bad-file")
                    raise Problems(problem) from error
        return digest.hexdigest()

    def patterns(self, split: Split) -> tuple[str, ...]:
        return self.train_files if split == "train" else self.val_files

    def expanded(self, split: Split) -> list[str]:
        """The names of the split's files."""
        return [name for pattern in self.patterns(split) for name in expand(pattern)]

    def row(self, found: RawRow, kind: Kind) -> Row | RefusedRow:
        """Interpret a row of a file in the dataset's format."""
        try:
            values: dict[str, Any] = found.values
            if found.line is None:  # parquet: every turn and tool has the fields of all, null where unset
                values = {key: without_nulls(item) if isinstance(item, list) else item for key, item in values.items()}
            keys = ReadKeys(values)
            row_values = to_standard_row(self.format, keys, self.instruction, self.data_source, self.prompt_key)
        except UnfitRow as unscorable:
            return found.refused(str(unscorable))
        row = to_row(found.where, row_values, kind, prompt_key=self.prompt_key, response_key=self.response_key)
        if isinstance(row, str):
            return found.refused(row)
        if row.data_source == NO_SOURCE:
            row = replace(row, data_source=source_of(row.where.rpartition(":")[0]))
        if row_values is keys:
            return row
        unread = (key for key in row.unread if key.startswith(OF_TURNS) or (key in keys and key not in keys.read))
        return replace(row, unread=(*unread, *(key for key in keys.unread() if key not in row_values)))


_PART_AND_ENDINGS = re.compile(
    r"([-_.]\d+(-of-\d+(-[0-9a-f]+)?)?)?(\.(jsonl|json|ndjson|csv|tsv|parquet|gz))*$", re.IGNORECASE
)


@cache
def source_of(file: str) -> str:
    """The default `data_source` of a file's rows: the file's name without its endings and its part number, or the hub
    dataset that it belongs to."""
    if (path := Path(file)).is_relative_to(raw := store() / "raw"):  # raw/HUB/OWNER/NAME/COMMIT/...
        return "/".join(path.relative_to(raw).parts[1:3])
    name = _PART_AND_ENDINGS.sub("", path.name)
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[:80] or "rows"


def expand(pattern: str) -> list[str]:
    """The files of names and patterns, as written. The name of an existing file is never taken as a pattern."""
    path = os.path.expanduser(pattern)
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    return sorted(name for name in glob.glob(path, recursive=True) if not os.path.isdir(name))


def _file_problem(name: str, setting: str, before: str) -> Problem | None:
    """Why the file that `setting` names cannot be read, from its path and first bytes. `before` precedes file names in
    the advice."""
    if re.match(r"\w{2,}://", name):
        fix = f"download it and use {before or 'its name: '}{os.path.basename(name) or 'FILE'}"
        return Problem(setting, f"{name} is an address", fix, "not-found")
    if not os.path.exists(name):
        return Problem(setting, f"{name} is not there", _file_hint(name, before), "not-found")
    if os.path.isdir(name):
        fix = f"use {shlex.quote(before + os.path.join(name, '*.jsonl'))}"
        return Problem(setting, f"{name} is a folder", fix, "bad-file")
    if not os.path.isfile(name):
        return Problem(setting, f"{name} is a pipe or a device", "use files, which can be read twice", "bad-file")
    if not os.access(name, os.R_OK):
        fix = "use a file with read permission"
        return Problem(setting, f"{name} may not be read by this user", fix, "not-permitted")
    if reason := ending_problem(name):
        return Problem(setting, reason, code="bad-file")
    try:
        other = _other_content(name)
    except OSError:  # reading it reports the error
        other = None
    return Problem(setting, f"{name} is {other[0]}", other[1], "bad-file") if other else None


_BOMS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
         codecs.BOM_UTF16_BE: "UTF-16"}  # fmt: skip
_SIGNATURES = (
    (b"PK\x03\x04", "a ZIP archive or a workbook of Excel", "save its rows as CSV"),
    (b"\xd0\xcf\x11\xe0", "a workbook of Excel", "save its rows as CSV"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it with zstd -d"),
    (b"\xfd7zXZ", "compressed by xz", "unpack it with xz -d"),
    (b"BZh", "compressed by bzip2", "unpack it with bzip2 -d"),
    (b"version https://git-lfs", "a pointer of Git LFS", "run git lfs pull in its repository"),
    (b"<!doctype html", "a web page", "download the file itself, not the page that shows it"),
    (b"<html", "a web page", "download the file itself, not the page that shows it"),
)
"""First bytes of files that are not row files, what they are, and what to do."""


def _other_content(name: str) -> tuple[str, str] | None:
    """What a file is, and what to do, if its first bytes show that it is not UTF-8 text. Raises `OSError`."""
    with open_file(name) as file:
        head = file.read(64)
    for start, what, fix in _SIGNATURES:
        if head.startswith(start) or head.lower().startswith(start):
            return what, fix
    if not (encoding := next((name for mark, name in _BOMS.items() if head.startswith(mark)), "")):
        return None
    stem, dot, ending = name.rpartition(".")
    target = f"{stem}.utf8{dot}{ending}" if dot else f"{name}.utf8"
    command = f"iconv -f {encoding} -t UTF-8 {shlex.quote(name)} > {shlex.quote(target)}"
    return encoding, f"convert it to UTF-8: {command}"


def _row_files(folder: str) -> list[str]:
    """Names of row files among the first 2,000 entries of a folder. Raises `OSError`."""
    with os.scandir(folder or ".") as entries:
        return [entry.name for entry in islice(entries, 2_000) if entry.name.lower().endswith(ENDINGS)]


def _suggest_train_file() -> str:
    """Advice for a missing `train_files`: a file of the current folder, if there is one."""
    try:
        names = sorted(name for name in _row_files(".") if re.fullmatch(r"[\w.-]+", name))
    except OSError:
        names = []
    example = min(names, key=lambda name: "train" not in name, default="")
    return f"use data.train_files={example}" if example else f"use data.train_files=PATH, of a {FORMS} file"


def _file_hint(name: str, before: str) -> str:
    """Advice with up to 8 files of the folder where `name` was expected, the most similar first."""
    folder, word = os.path.split(os.path.expanduser(name))
    try:
        names = _row_files(folder)
    except (OSError, ValueError):
        return f"neither is the folder {folder}"
    close = get_close_matches(word, names, n=8, cutoff=0.0)
    before += os.path.join(os.path.dirname(name), "")
    return suggest(word, close, listed="its folder has", before=before) if close else f"its folder has no {FORMS} file"
