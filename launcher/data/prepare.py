"""Prepares rows: writes them as parquet with verl's columns into a folder, completely or not at all.

<folder>/  train.parquet  val.parquet  refused.jsonl
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.core.files import draft_folder, expand_user
from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.data.refused import RefusedLog
from launcher.data.rows import UnfitRow
from launcher.spec.algorithm import Kind
from launcher.spec.data import SPLITS, DataProgress, OnDataProgress, Split

REFUSED = "refused.jsonl"


@dataclass(frozen=True)
class PreparedData:
    """What a prepared folder holds."""

    kind: Kind
    rows: Mapping[Split, int]
    """Number of good rows of train, and of val if it has files."""
    refused: int


def prepare(files: Files, kind: Kind, folder: Path, watch: OnDataProgress) -> PreparedData:
    """Write the rows of `files` into `folder`, which is new or empty.

    Raises `Problems` for bad rows (unless `on_bad_row` is `skip`; all are logged in a file), `OSError` of the disk.
    """
    if problems := files.problems():
        raise Problems(problems)
    if (final := expand_user(folder)).exists() and not (final.is_dir() and not any(final.iterdir())):
        raise Problems(Problem("--out", f"{folder} is there already", "use a new folder, or remove it"))
    with draft_folder(folder, mode=0o777) as draft:
        return _convert(files, kind, draft, watch, final)


def _convert(files: Files, kind: Kind, draft: Path, watch: OnDataProgress, final: Path) -> PreparedData:
    """Fill the draft with the parquet files and the log of refused rows."""
    from launcher.data.convert import Converter  # noqa: PLC0415  late: arrow takes half a second

    # patterns are expanded once: a file that comes now is not read
    names = {split: files.expanded(split) for split in SPLITS}
    sources = {name for split_names in names.values() for name in split_names}
    size, done, started = sum(map(os.path.getsize, sources)), 0, time.monotonic()

    def report(count: int, rows: int) -> None:
        nonlocal done
        done += count
        watch(DataProgress(final.name, min(done, size), size, rows, time.monotonic() - started))

    with RefusedLog(draft / REFUSED) as log:
        try:
            rows = Converter(files, kind, log, report).convert(names, draft)
        except UnfitRow as unfit:
            raise Problems(Problem(final.name, str(unfit), code="bad-row")) from unfit
    no_rows = Problem(final.name, f"no row can be prepared for {kind}", "use other rows", "bad-row")
    empty = [] if rows.get("train") else [no_rows]
    on_bad_row = "error" if empty else files.on_bad_row
    if log.problems(on_bad_row):
        log.path = final.with_name(f"{final.name}-{REFUSED}")
        os.replace(draft / REFUSED, log.path)
    if problems := [*log.problems(on_bad_row), *empty]:
        raise Problems(problems)
    return PreparedData(kind, rows, log.refused)
