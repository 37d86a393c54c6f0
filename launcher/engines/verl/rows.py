"""The rows of a run as verl reads them: RUN/verl/{train,val}.parquet, with verl's columns.

Parquet files that have these columns already are taken as they are, with all their other columns: one is linked,
several are joined. Anything else is prepared as `rlrun data prepare` would.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.data.parquet_layout import columns_of, count_rows, join_files
from launcher.data.prepare import prepare
from launcher.engines.verl.words import WORK
from launcher.spec.algorithm import Kind
from launcher.spec.data import SPLITS, Dataset, Row, Split, prompt_node
from launcher.spec.run import RunSpec

NEEDED = {"prompts": {"prompt", "data_source", "reward_model"}, "answers": {"messages"}}
"""Columns without which verl reads no row."""


@dataclass(frozen=True)
class RowCounts:
    """Rows of both splits."""

    train: int
    val: int


def provide(run: RunSpec, folder: Path) -> RowCounts:
    """Make the files, anew at each start, as a kill may have cut them off. Raises `Problems`."""
    work, kind = folder / WORK, run.algorithm.data
    data = run.data if isinstance(run.data, Files) else _written(run.data, kind, work)
    if data.format == "auto" and all(_has_columns(data.expanded(split), kind) for split in SPLITS):
        names = {split: data.expanded(split) for split in SPLITS}
    else:
        made = prepare(data, kind, "rows", lambda _: None)
        names = {split: [str(path)] if (path := made / f"{split}.parquet").is_file() else [] for split in SPLITS}
    for split in SPLITS:
        _place(names[split], work / f"{split}.parquet")
    counts = RowCounts(*(count_rows(work / f"{split}.parquet") for split in SPLITS))
    if counts.train < run.data.train_batch_size:
        got = f"got {run.data.train_batch_size}, and the data has {counts.train} rows"
        raise Problems(Problem("data.train_batch_size", got, f"use at most {counts.train}", "not-enough"))
    return counts


def _has_columns(names: Sequence[str], kind: Kind) -> bool:
    """Whether all are parquet with the columns that verl needs; true of no file at all."""
    return all(name.endswith(".parquet") and NEEDED[kind] <= columns_of(Path(name)) for name in names)


def _place(names: Sequence[str], target: Path) -> None:
    target.unlink(missing_ok=True)
    if len(names) == 1:
        os.symlink(os.path.abspath(names[0]), target)
    elif names:
        join_files([Path(name) for name in names], target)


def _written(data: Dataset, kind: Kind, work: Path) -> Files:
    """The rows of a dataset that makes them itself, in files."""
    for split in SPLITS:
        with (work / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(node) + "\n" for node in _nodes(data, split, kind))
    held_out = (str(work / "val.jsonl"),) if (work / "val.jsonl").stat().st_size else ()
    return Files(train_files=(str(work / "train.jsonl"),), val_files=held_out)


def _nodes(data: Dataset, split: Split, kind: Kind) -> Iterator[dict[str, Any]]:
    for row in data.read(split, kind):
        if isinstance(row, Row):
            node = {"prompt": prompt_node(row.prompt), "data_source": row.data_source, "response": row.response}
            truth = {"reward_model": {"style": row.style or "rule", "ground_truth": row.ground_truth}}
            node |= truth if row.ground_truth is not None else {}
            yield {name: value for name, value in node.items() if value is not None}
