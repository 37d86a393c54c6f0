"""Writes a model's folder: whole, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from launcher.core.files import expand_user, fsync_path
from launcher.core.problems import Problem
from launcher.core.redaction import redact
from launcher.models import texts

ROOM = 1 << 20  # bytes beyond the files' own that a folder takes


def out_problems(out: Path, inputs: Sequence[Path], needed: int) -> list[Problem]:
    """Why a folder of `needed` bytes cannot be made at `out`: it overlaps an input, exists, or lacks disk space."""
    final = expand_user(out).resolve()
    for path in inputs:
        source = path.resolve()
        if final == source or source in final.parents or final in source.parents:
            return [Problem("--out", f"{out} overlaps with {path}", "use another folder")]
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        return [Problem("--out", f"{out} is there already", "use a new folder")]
    existing = next(path for path in final.parents if path.exists())
    free, needed = shutil.disk_usage(existing).free, needed + ROOM
    if needed > free:
        got = f"{existing} has {free / 1e6:,.1f} MB free, and {needed / 1e6:,.1f} MB are needed"
        return [Problem("--out", got, "free some space or use another disk", "not-enough")]
    return []


@contextmanager
def draft_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which is renamed to `out` at the end. After an error nothing of it remains; what a kill leaves
    has another name (`.OUT.unfinished-...`)."""
    final = expand_user(out).resolve()
    final.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{final.name}.unfinished-", dir=final.parent) as temporary:
        draft = Path(temporary) / final.name
        draft.mkdir(mode=0o700)
        yield draft
        for path in [*sorted(draft.rglob("*"), reverse=True), draft]:
            fsync_path(path)
        draft.rename(final)
    fsync_path(final.parent)


def copy_neighbours(source: Path, folder: Path, *, only_tokenizer: bool = False) -> None:
    """Copy a model's tokenizer, templates, code and licence; no config, no weights and no index of them."""
    texts.write(folder, texts.read_texts(source, only_tokenizer=only_tokenizer))


def write_json(path: Path, node: Mapping[str, Any]) -> None:
    path.write_text(redact(json.dumps(node, indent=2, ensure_ascii=False)) + "\n", encoding="utf-8")
