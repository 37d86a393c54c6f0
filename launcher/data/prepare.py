"""Rows are prepared once: parquet in a folder that the hash of content and settings names, whole or not at all.

    <store>/<name>-<hash>/  train.parquet  val.parquet  refused.jsonl  manifest.json

The store is the folder `$RLRUN_DATA`, by default ~/.cache/rlrun/data. A folder is filled under another name, synced,
and renamed; a kill leaves a draft, which the next preparation removes.
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
from launcher.core.files import fsync_path, write_atomic
from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.data.refused import RefusedLog
from launcher.data.rows import store
from launcher.spec.algorithm import Kind
from launcher.spec.data import SPLITS, DataProgress, OnDataProgress, Split

VERSION = 4
"""Version of the prepared format: a new one prepares everything again."""
MANIFEST = "manifest.json"
_DRAFT = ".unfinished-"
_CONVERTED = ("format", "instruction", "data_source", "prompt_key", "response_key")

_Names = Mapping[Split, Sequence[str]]
"""The files of each split; patterns are expanded once, so that what is read is what was hashed."""


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
    origin: Mapping[str, str]
    """For a hub dataset: the request, and the commit that was downloaded."""
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
        found = PreparedData(**node)
    except (OSError, ValueError, TypeError):
        return None
    whole = all(_bytes(folder / name) == size for name, size in found.files.items())
    return found if whole and found.version == VERSION else None


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def every() -> Iterator[tuple[Path, PreparedData]]:
    """All prepared datasets of the store, the newest first."""
    root = store()
    found = [(path, prepared(path)) for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    whole = [(path, known) for path, known in found if known]
    yield from sorted(whole, key=lambda entry: entry[1].made_at, reverse=True)


def read_from(files: Files, folder: Path) -> Files:
    """The prepared rows as a dataset: the settings of `files`, its rows from the folder."""
    paths = {split: folder / f"{split}.parquet" for split in ("train", "val")}
    there = {f"{split}_files": (str(path),) if path.is_file() else () for split, path in paths.items()}
    return Files(**settings_of_files(files) | there | dict.fromkeys(_CONVERTED[1:]) | {"format": "auto"})


def settings_of_files(files: Files) -> dict[str, Any]:
    """The values of the settings that any dataset in files has."""
    return {name: value for name, value in vars(files).items() if name in Files.__dataclass_fields__}


def prepare(
    files: Files,
    kind: Kind,
    name: str,
    watch: OnDataProgress,
    *,
    into: Path | None = None,
    hashes: Mapping[str, str] | None = None,
    origin: Mapping[str, str] | None = None,
) -> Path:
    """The folder with the prepared rows of `files`; nothing is done where it is there already.

    `into` is a folder to make instead of one in the store; `hashes` are sha256 that are known, by file name.
    Raises `Problems` for bad rows (unless `on_bad_row` is `skip`; all are named and kept), `OSError` of the disk.
    """
    if found := files.problems():
        raise Problems(found)
    names = {split: files.expanded(split) for split in SPLITS}
    known = _describe(files, names, kind, name, hashes or {}, origin or {})
    final = into or store() / f"{name}-{known.digest}"
    if (there := prepared(final)) and there.digest == known.digest:
        if not there.refused or files.on_bad_row == "skip":  # otherwise the rows are read again, and the bad ones named
            return final
    elif into and into.exists():
        raise Problems(Problem("--out", f"{into} is there already, and holds something else", "use another folder"))
    with _draft(final) as draft:
        _convert(files, names, draft, known, watch, final)
    return final


def _describe(
    files: Files, names: _Names, kind: Kind, name: str, hashes: Mapping[str, str], origin: Mapping[str, str]
) -> PreparedData:
    """What will be prepared, as far as it is known before a row was read."""
    sources = {file: hashes.get(file) or _sha256(file) for of_split in names.values() for file in of_split}
    settings, contents = converted(files), [[sources[file] for file in of_split] for of_split in names.values()]
    inputs = json.dumps([VERSION, kind, dict(sorted(settings.items())), contents])
    return PreparedData(
        name=name, kind=kind, rows={}, refused=0, sources=sources, settings=settings, origin=dict(origin), files={},
        digest=hashlib.sha256(inputs.encode()).hexdigest()[:12], made_at=time.time(), version=VERSION,
    )  # fmt: skip


def converted(files: Files) -> dict[str, Any]:
    """The settings that determine the prepared rows."""
    return {setting: getattr(files, setting) for setting in _CONVERTED}


@contextmanager
def _draft(final: Path) -> Iterator[Path]:
    """A temporary folder; it is renamed when complete, and removed on failure."""
    final.parent.mkdir(parents=True, exist_ok=True)
    _tidy(final.parent)
    draft = final.parent / f"{_DRAFT}{final.name}@{socket.gethostname()}@{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        for file in draft.iterdir():
            fsync_path(file)
        fsync_path(draft)
        if prepared(final):  # another process was faster, and somebody may be reading it
            return
        if final.exists():  # damaged
            shutil.rmtree(final)
        draft.rename(final)
        fsync_path(final.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _tidy(root: Path) -> None:
    """Remove the drafts of processes of this machine that are gone."""
    for path in root.glob(f"{_DRAFT}*@{socket.gethostname()}@*"):
        number = path.name.rpartition("@")[2]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _convert(files: Files, names: _Names, draft: Path, known: PreparedData, watch: OnDataProgress, final: Path) -> None:
    """Fill the draft: its parquet files, what was refused, and the manifest."""
    from launcher.data.convert import Converter  # noqa: PLC0415  late: arrow takes half a second
    from launcher.data.parquet_layout import Wider  # noqa: PLC0415  late, as above

    meter, extra = _Meter(known.name, sum(os.path.getsize(file) for file in known.sources), watch), None
    templated = False
    while True:
        meter.done, rows = 0, dict[Split, int]()
        with RefusedLog(draft / "refused.jsonl") as log:
            converter = Converter(files, known.kind, log, meter.read, extra, templated)
            try:
                for split, of_split in names.items():
                    if of_split:
                        rows[split] = converter.write(of_split, split, draft / f"{split}.parquet")
                break
            except Wider as wider:  # a row has what does not fit the file that was begun
                extra, templated = wider.extra, wider.templated
    nothing = Problem(known.name, f"no row can be prepared for {known.kind}", "use other rows", "bad-row")
    empty = [] if rows.get("train") else [nothing]
    on_bad_row = "error" if empty else files.on_bad_row
    if log.problems(on_bad_row):
        log.path = final.with_name(f"{final.name}-refused.jsonl")
        os.replace(draft / "refused.jsonl", log.path)
    if found := [*log.problems(on_bad_row), *empty]:
        raise Problems(found)
    sizes = {file.name: _bytes(file) for file in sorted(draft.iterdir())}
    manifest = replace(known, rows=rows, refused=log.refused, files=sizes)
    write_atomic(draft / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")


class _Meter:
    """Reports progress at most ten times a second."""

    def __init__(self, doing: str, size: int, watch: OnDataProgress) -> None:
        self.doing, self.size, self.watch, self.done = doing, size, watch, 0
        self.started = self.reported = time.monotonic()

    def read(self, count: int, rows: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.reported > 0.1:
            self.reported = now
            self.watch(DataProgress(self.doing, min(self.done, self.size), self.size, rows, now - self.started))


def _sha256(name: str) -> str:
    with Path(name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
