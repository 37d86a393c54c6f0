"""Prepares rows once, as parquet in a folder named by the hash of content and settings, completely or not at all.

    <store>/<name>-<hash>/  train.parquet  val.parquet  refused.jsonl  manifest.json

The store is the folder `$RLRUN_DATA`, by default ~/.cache/rlrun/data. A folder is written under a draft name, synced,
and renamed; a killed preparation leaves a draft, which the next one removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launcher.core.bounded_parse import parse_json
from launcher.core.checkpoints import sha256
from launcher.core.files import fsync_path, write_atomic
from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.data.refused import RefusedLog
from launcher.data.rows import UnfitRow, store
from launcher.spec.algorithm import Kind
from launcher.spec.data import SPLITS, DataProgress, OnDataProgress, Split

VERSION = 5
"""Version of the prepared format: with a new one everything is prepared again."""
MANIFEST = "manifest.json"
_DRAFT = ".unfinished-"
_CONVERT_SETTINGS = ("format", "instruction", "data_source", "prompt_key", "response_key")
"""Settings that determine the prepared rows."""

_Names = Mapping[Split, Sequence[str]]
"""The files of each split; patterns are expanded once, so that the files read are those that were hashed."""


@dataclass(frozen=True)
class PreparedData:
    """A prepared dataset, as in its `manifest.json`."""

    name: str
    kind: Kind
    rows: Mapping[Split, int]
    """Number of good rows of train, and of val if it has files."""
    refused: int
    sources: Mapping[str, str]
    """sha256 of each file that was read, by its name."""
    settings: Mapping[str, Any]
    files: Mapping[str, int]
    """Bytes of each file in the folder."""
    digest: str
    """Twelve hex digits of a hash of all inputs: content, order, kind and settings."""
    made_at: float
    version: int
    """Version of the format."""


def prepared(folder: Path) -> PreparedData | None:
    """The prepared dataset in the folder; None if it is unfinished, of another version, or a file is missing or
    truncated."""
    try:
        node = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
        data = PreparedData(**node)
    except (OSError, ValueError, TypeError):
        return None
    complete = all(_file_size(folder / name) == size for name, size in data.files.items())
    return data if complete and data.version == VERSION else None


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def every() -> Iterator[tuple[Path, PreparedData]]:
    """All prepared datasets of the store, the newest first."""
    root = store()
    datasets = [(path, prepared(path)) for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    complete = [(path, data) for path, data in datasets if data]
    yield from sorted(complete, key=lambda entry: entry[1].made_at, reverse=True)


def prepare(files: Files, kind: Kind, name: str, watch: OnDataProgress, *, into: Path | None = None) -> Path:
    """The folder with the prepared rows of `files`, which are prepared if the folder does not exist yet.

    `into` is a folder to make instead of one in the store. Raises `Problems` for bad rows (unless `on_bad_row` is
    `skip`; all are logged in a file), `OSError` of the disk.
    """
    if problems := files.problems():
        raise Problems(problems)
    names = {split: files.expanded(split) for split in SPLITS}
    plan = _describe(files, names, kind, name)
    final = into or store() / f"{name}-{plan.digest}"
    if (existing := prepared(final)) and existing.digest == plan.digest:
        if not existing.refused or files.on_bad_row == "skip":  # otherwise the rows are read again to list the bad ones
            return final
    elif into and into.exists():
        raise Problems(Problem("--out", f"{into} is there already, and holds something else", "use another folder"))
    with _draft(final) as draft:
        _convert(files, names, draft, plan, watch, final)
    return final


def _describe(files: Files, names: _Names, kind: Kind, name: str) -> PreparedData:
    """The manifest, as far as it is known before any row was read."""
    sources = {file: sha256(Path(file)) for split_names in names.values() for file in split_names}
    settings = {setting: getattr(files, setting) for setting in _CONVERT_SETTINGS}
    contents = [[sources[file] for file in split_names] for split_names in names.values()]
    inputs = json.dumps([VERSION, kind, dict(sorted(settings.items())), contents])
    return PreparedData(
        name=name, kind=kind, rows={}, refused=0, sources=sources, settings=settings, files={},
        digest=hashlib.sha256(inputs.encode()).hexdigest()[:12], made_at=time.time(), version=VERSION,
    )  # fmt: skip


@contextmanager
def _draft(final: Path) -> Iterator[Path]:
    """A temporary folder; it is renamed when complete, and removed on failure."""
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale_drafts(final.parent)
    draft = final.parent / f"{_DRAFT}{final.name}@{socket.gethostname()}@{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        for file in draft.iterdir():
            fsync_path(file)
        fsync_path(draft)
        if prepared(final):  # another process was faster; its folder may be in use
            return
        if final.exists():  # damaged
            shutil.rmtree(final)
        draft.rename(final)
        fsync_path(final.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _remove_stale_drafts(root: Path) -> None:
    """Remove the drafts of processes of this machine that have ended."""
    for path in root.glob(f"{_DRAFT}*@{socket.gethostname()}@*"):
        pid = path.name.rpartition("@")[2]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _convert(files: Files, names: _Names, draft: Path, plan: PreparedData, watch: OnDataProgress, final: Path) -> None:
    """Fill the draft with the parquet files, the log of refused rows, and the manifest."""
    from launcher.data.convert import Converter  # noqa: PLC0415  late: arrow takes half a second

    size, done, started = sum(os.path.getsize(file) for file in plan.sources), 0, time.monotonic()

    def report(count: int, rows: int) -> None:
        nonlocal done
        done += count
        watch(DataProgress(plan.name, min(done, size), size, rows, time.monotonic() - started))

    with RefusedLog(draft / "refused.jsonl") as log:
        try:
            rows = Converter(files, plan.kind, log, report).convert(names, draft)
        except UnfitRow as unfit:
            raise Problems(Problem(plan.name, str(unfit), code="bad-row")) from unfit
    no_rows = Problem(plan.name, f"no row can be prepared for {plan.kind}", "use other rows", "bad-row")
    empty = [] if rows.get("train") else [no_rows]
    on_bad_row = "error" if empty else files.on_bad_row
    if log.problems(on_bad_row):
        log.path = final.with_name(f"{final.name}-refused.jsonl")
        os.replace(draft / "refused.jsonl", log.path)
    if problems := [*log.problems(on_bad_row), *empty]:
        raise Problems(problems)
    sizes = {file.name: _file_size(file) for file in sorted(draft.iterdir())}
    manifest = replace(plan, rows=rows, refused=log.refused, files=sizes)
    write_atomic(draft / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")
