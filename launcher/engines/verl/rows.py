"""The rows of a run as verl reads them: RUN/verl/{train,val}.parquet, with verl's columns.

Parquet files that have these columns already are taken as they are, with all their other columns: one is linked,
several are joined. Anything else is prepared as `rlrun data prepare` would, also columns of these names that hold
something else, such as prompts that are texts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.core.check_result import CheckResult
from launcher.core.overrides import key_of
from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.data.parquet_layout import count_rows, fields_of, join_files, move_rows, unlike_files
from launcher.data.prepare import prepare
from launcher.engines.verl.words import WORK
from launcher.spec.algorithm import Kind
from launcher.spec.data import SPLITS, Dataset, Row, Split, prompt_node
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


@dataclass(frozen=True)
class RowCounts:
    """Rows of both splits."""

    train: int
    val: int


def provide(run: RunSpec, folder: Path) -> RowCounts:
    """Write the files, anew at each start, as a kill may have truncated them. Raises `Problems`."""
    work, kind = folder / WORK, run.algorithm.data
    data = run.data if isinstance(run.data, Files) else _write_rows(run.data, kind, work)
    files = look(run)
    if files and not files.unreadable:
        names = {split: [name for name, _ in files.splits[split]] for split in SPLITS}
    else:
        output = prepare(data, kind, "rows", lambda _: None)
        names = {split: [str(path)] if (path := output / f"{split}.parquet").is_file() else [] for split in SPLITS}
    for split in SPLITS:
        _link_or_join(names[split], work / f"{split}.parquet")
    if data.val_share and not names["val"]:
        _hold_out(run, kind, work)
    counts = RowCounts(*(count_rows(work / f"{split}.parquet") for split in SPLITS))
    if counts.train < run.data.train_batch_size:
        got = f"got {run.data.train_batch_size}, and the data has {counts.train} rows"
        raise Problems(Problem("data.train_batch_size", got, f"use at most {counts.train}", "not-enough"))
    return counts


@dataclass(frozen=True)
class RowFiles:
    """The files of a run's rows, as they were written."""

    splits: Mapping[Split, Sequence[tuple[str, frozenset[str]]]]
    """Names of the files, and the fields of each that is parquet."""
    needed: tuple[str, ...]
    """Fields that verl reads in each row."""

    @property
    def unreadable(self) -> list[tuple[Split, str, str]]:
        """Files that verl cannot read as they are, and the first field that each lacks."""
        return [
            (split, name, missing[0])
            for split in SPLITS
            for name, fields in self.splits[split]
            if (missing := [field for field in self.needed if field not in fields])
        ]

    def unlike(self) -> Iterator[CheckResult]:
        """Files that cannot be joined into one. Raises as `look` does."""
        for split in SPLITS:
            paths = [Path(name) for name, _ in self.splits[split]]
            if not self.unreadable and len(paths) > 1 and (difference := unlike_files(paths)):
                path, column, kinds = difference
                message = f"{path}: {column} is of another type than in the files before it ({kinds})"
                yield CheckResult("FAIL", f"data.{split}_files", message, "write it with one type in all files")

    def rewritten(self) -> Iterator[CheckResult]:
        """Warnings about files that were made for verl and are prepared anew, as they lack a field."""
        needed = _columns([self.needed])
        lost = _columns(fields for split in SPLITS for _, fields in self.splits[split]) - WRITTEN
        without = f", without {', '.join(sorted(lost))}" if lost else ""
        fields_by_name = {name: fields for split in SPLITS for name, fields in self.splits[split]}
        for split, name, missing in self.unreadable:
            if len(needed - fields_by_name[name]) > (len(needed) > 1):
                continue  # rows in another format
            message = f"{name} has no {missing}, which verl reads of each row: all rows are written anew{without}"
            yield CheckResult("WARN", f"data.{split}_files", message, f"write {FORMS[_column(missing)]} in each row")


def check_files(run: RunSpec) -> list[CheckResult]:
    """Results about files that are written anew or cannot be joined. Files that cannot be read are left to the check of
    the rows."""
    try:
        files = look(run)
        return [*files.rewritten(), *files.unlike()] if files else []
    except (OSError, ValueError):
        return []


def look(run: RunSpec) -> RowFiles | None:
    """The run's row files; None where they are prepared in any case. Raises `OSError`, or `ValueError` where a file is
    not parquet."""
    data = run.data
    if not isinstance(data, Files) or data.format != "auto":
        return None
    needed = NEEDED.get(run.algorithm.data, ())
    if {key_of(word) for word in run.engine.extra} & OWN:  # type: ignore[attr-defined]
        needed = tuple(map(_column, needed))
    return RowFiles({split: [(name, _fields(name)) for name in data.expanded(split)] for split in SPLITS}, needed)


def _fields(name: str) -> frozenset[str]:
    return fields_of(Path(name)) if name.endswith(".parquet") else frozenset()


def _columns(fields: Iterable[Iterable[str]]) -> set[str]:
    return {_column(field) for each in fields for field in each}


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


def _write_rows(data: Dataset, kind: Kind, work: Path) -> Files:
    """Write the rows of a dataset that has no files to JSON lines."""
    for split in SPLITS:
        with (work / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(node) + "\n" for node in _row_nodes(data, split, kind))
    held_out = (str(work / "val.jsonl"),) if (work / "val.jsonl").stat().st_size else ()
    return Files(train_files=(str(work / "train.jsonl"),), val_files=held_out)


def _row_nodes(data: Dataset, split: Split, kind: Kind) -> Iterator[dict[str, Any]]:
    for row in data.rows(split, kind):
        if isinstance(row, Row):
            node = {"prompt": prompt_node(row.prompt), "data_source": row.data_source, "response": row.response}
            ground_truth = row.ground_truth if row.typed_truth is None else row.typed_truth
            truth = {"reward_model": {"style": row.style or "rule", "ground_truth": ground_truth}}
            node |= truth if row.ground_truth is not None else {}
            yield {name: value for name, value in node.items() if value is not None}
