"""Prepares rows: writes them as parquet with verl's columns into a folder, completely or not at all.

    <folder>/  train.parquet  val.parquet  refused.jsonl  manifest.json

The folder is written under a draft name, synced, and renamed; a killed preparation leaves a draft, which the next one
beside it removes.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from launcher.core.bounded_parse import parse_json
from launcher.core.files import fsync_path, read_file, write_atomic
from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.data.refused import RefusedLog
from launcher.data.rows import UnfitRow
from launcher.spec.algorithm import Kind
from launcher.spec.data import SPLITS, DataProgress, OnDataProgress, Split

MANIFEST, REFUSED = "manifest.json", "refused.jsonl"
_NAMES = {MANIFEST, REFUSED, *(f"{split}.parquet" for split in SPLITS)}
_DRAFT = ".unfinished-"
_CONVERT_SETTINGS = ("format", "instruction", "data_source", "prompt_key", "response_key")
"""Settings that determine the prepared rows."""


@dataclass(frozen=True)
class PreparedData:
    """What a prepared folder holds, as in its manifest."""

    kind: Kind
    rows: Mapping[Split, int]
    """Number of good rows of train, and of val if it has files."""
    refused: int
    sources: list[str]
    """Names of the files that were read."""
    settings: Mapping[str, Any]


def prepare(files: Files, kind: Kind, folder: Path, watch: OnDataProgress) -> PreparedData:
    """Write the rows of `files` into `folder`, which may hold rows that were prepared before.

    Raises `Problems` for bad rows (unless `on_bad_row` is `skip`; all are logged in a file), `OSError` of the disk.
    """
    if problems := files.problems():
        raise Problems(problems)
    if folder.exists() and not _may_be_replaced(folder):
        raise Problems(Problem("--out", f"{folder} is there already, and holds something else", "use another folder"))
    with _draft(folder) as draft:
        return _convert(files, kind, draft, watch, folder)


def _may_be_replaced(folder: Path) -> bool:
    """Whether it is an empty folder, or holds rows that were prepared and nothing else."""
    try:
        names = set(os.listdir(folder))
        is_prepared = bool(names) and names <= _NAMES and bool(PreparedData(**parse_json(read_file(folder / MANIFEST))))
        return not folder.is_symlink() and (not names or is_prepared)
    except (OSError, ValueError, TypeError):
        return False


@contextmanager
def _draft(final: Path) -> Iterator[Path]:
    """A temporary folder, which takes the place of `final` when complete, and is removed on failure. Those of processes
    of this machine that have ended are removed first."""
    final.parent.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname()
    for path in final.parent.glob(f"{_DRAFT}*@{host}@*"):
        if not Path("/proc", path.name.rpartition(f"@{host}@")[2].partition("@")[0]).exists():
            shutil.rmtree(path, ignore_errors=True)
    prefix = f"{_DRAFT}{final.name}@{host}@{os.getpid()}@"
    with TemporaryDirectory(prefix=prefix, dir=final.parent, ignore_cleanup_errors=True) as temporary:
        draft = Path(temporary, "new")
        draft.mkdir()
        yield draft
        for path in (*draft.iterdir(), draft):
            fsync_path(path)
        if final.exists():
            final.rename(f"{temporary}earlier")
        draft.rename(final)
        fsync_path(final.parent)
    shutil.rmtree(f"{temporary}earlier", ignore_errors=True)


def _convert(files: Files, kind: Kind, draft: Path, watch: OnDataProgress, final: Path) -> PreparedData:
    """Fill the draft with the parquet files, the log of refused rows, and the manifest."""
    from launcher.data.convert import Converter  # noqa: PLC0415  late: arrow takes half a second

    # patterns are expanded once: a file that comes now is not read
    names = {split: files.expanded(split) for split in SPLITS}
    sources = [name for split_names in names.values() for name in split_names]
    size, done, started = sum(map(os.path.getsize, {*sources})), 0, time.monotonic()

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
    settings = {setting: getattr(files, setting) for setting in _CONVERT_SETTINGS}
    made = PreparedData(kind, rows, log.refused, list(dict.fromkeys(sources)), settings)
    write_atomic(draft / MANIFEST, json.dumps(asdict(made), indent=1) + "\n")
    return made
