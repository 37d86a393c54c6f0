"""The rows of a run as verl reads them: RUN/verl/{train,val}.parquet, with verl's columns.

Parquet files that have these columns already are taken as they are, with all their other columns: one is linked,
several are joined. Anything else is prepared as `rlrun data prepare` would, also columns of these names that hold
something else, such as prompts that are texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.core.check_result import CheckResult
from launcher.core.overrides import key_of
from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.data.parquet_layout import count_rows, fields_of, join_files, move_rows, unlike_files
from launcher.data.prepare import prepare
from launcher.engines.verl.words import WORK
from launcher.spec.algorithm import Kind
from launcher.spec.data import SPLITS, Split
from launcher.spec.run import RunSpec

NEEDED: Mapping[Kind, tuple[str, ...]] = {
    "prompts": ("prompt[].role", "prompt[].content", "data_source", "reward_model.ground_truth"),
    "answers": ("messages[].role", "messages[].content"),
}
"""Columns and their fields without which verl reads no row (rl_dataset.py, naive.py:43)."""
FORMS = {
    "prompt": "prompt=[{role: user, content: ...}]", "messages": "messages=[{role: user, content: ...}, ...]",
    "data_source": "data_source", "reward_model": "reward_model={style: rule, ground_truth: ...}",
}  # fmt: skip
WRITTEN = {*FORMS, "ability", "extra_info"}
"""Columns of prepared rows."""
OWN = {"data.custom_cls.path", "reward.reward_manager.module.path"}
"""Arguments that name user code, which may read the columns in any form."""


def provide(run: RunSpec, folder: Path) -> tuple[int, int]:
    """Write the files, anew at each start, as a kill may have truncated them; rows of both. Raises `Problems`."""
    work, kind = folder / WORK, run.algorithm.data
    data, files = run.data, look(run)
    assert isinstance(data, Files)
    if files and not any(file.missing for file in files):
        names = {split: [file.name for file in files if file.split == split] for split in SPLITS}
    else:
        output = work / "rows"
        prepare(data, kind, output, lambda _: None)
        names = {split: [str(path)] if (path := output / f"{split}.parquet").is_file() else [] for split in SPLITS}
    for split in SPLITS:
        _link_or_join(names[split], work / f"{split}.parquet")
    if data.val_share and not names["val"]:
        _hold_out(run, kind, work)
    train, val = (count_rows(work / f"{split}.parquet") for split in SPLITS)
    if train < run.data.train_batch_size:
        got = f"got {run.data.train_batch_size}, and the data has {train} rows"
        raise Problems(Problem("data.train_batch_size", got, f"use at most {train}", "not-enough"))
    return train, val


@dataclass(frozen=True)
class RowFile:
    """A file of a run's rows, as it was written."""

    split: Split
    name: str
    fields: frozenset[str]
    """Its columns and their fields; empty where it is not parquet."""
    missing: tuple[str, ...]
    """Fields that verl reads in each row, and that it lacks."""


def check_files(run: RunSpec) -> list[CheckResult]:
    """Results about files that are written anew or cannot be joined. Files that cannot be read are left to the check of
    the rows."""
    try:
        files = look(run) or []
        return [*_rewritten(files)] if any(file.missing for file in files) else [*_unlike(files)]
    except (OSError, ValueError):
        return []


def look(run: RunSpec) -> list[RowFile] | None:
    """The run's row files; None where they are prepared in any case. Raises `OSError`, or `ValueError` where a file is
    not parquet."""
    data = run.data
    if not isinstance(data, Files) or data.format != "auto":
        return None
    needed = NEEDED.get(run.algorithm.data, ())
    if {key_of(word) for word in run.engine.extra} & OWN:  # type: ignore[attr-defined]
        needed = tuple(map(_column, needed))
    named = [(split, name, _fields(name)) for split in SPLITS for name in data.expanded(split)]
    return [RowFile(*each, tuple(field for field in needed if field not in each[2])) for each in named]


def _unlike(files: Sequence[RowFile]) -> Iterator[CheckResult]:
    """Files that cannot be joined into one."""
    for split in SPLITS:
        paths = [Path(file.name) for file in files if file.split == split]
        if len(paths) > 1 and (difference := unlike_files(paths)):
            path, column, kinds = difference
            message = f"{path}: {column} is of another type than in the files before it ({kinds})"
            yield CheckResult("FAIL", f"data.{split}_files", message, "write it with one type in all files")


def _rewritten(files: Sequence[RowFile]) -> Iterator[CheckResult]:
    """Warnings about files that were made for verl and are prepared anew, as they lack a field."""
    lost = {_column(field) for file in files for field in file.fields} - WRITTEN
    without = f", without {', '.join(sorted(lost))}" if lost else ""
    for file in files:
        columns = {*map(_column, file.missing)} - file.fields
        is_other_format = "messages" in columns or len(columns) > 1
        if file.missing and not is_other_format:
            message = f"{file.name} has no {file.missing[0]}, which verl reads of each row: all rows are written anew"
            fix = f"write {FORMS[_column(file.missing[0])]} in each row"
            yield CheckResult("WARN", f"data.{file.split}_files", f"{message}{without}", fix)


def _fields(name: str) -> frozenset[str]:
    return fields_of(Path(name)) if name.endswith(".parquet") else frozenset()


def _column(field: str) -> str:
    return re.split(r"[.\[]", field)[0]


def _link_or_join(names: Sequence[str], target: Path) -> None:
    target.unlink(missing_ok=True)
    if len(names) == 1:
        os.symlink(os.path.abspath(names[0]), target)
    elif names:
        join_files([Path(name) for name in names], target)


def _hold_out(run: RunSpec, kind: Kind, work: Path) -> None:
    """Move the rows that `data.val_share` holds out to a file of their own. Raises `Problems` if there are none."""
    train, val = (work / f"{split}.parquet" for split in SPLITS)
    data = Files(train_files=(str(train),), val_share=run.data.val_share)
    held_out = {int(row.where.rpartition(":")[2]) for row in data.rows("val", kind)}
    if not held_out:
        got = f"got {run.data.val_share}, which holds out none of {count_rows(train)} rows"
        raise Problems(Problem("data.val_share", got, "use 0, or data.val_files", "not-enough"))
    move_rows(train, val, held_out)
