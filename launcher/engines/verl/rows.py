"""The rows of a run as verl reads them: RUN/verl/{train,val}.parquet, with verl's columns.

Parquet files that have these columns already are taken as they are, with all their other columns: one is linked,
several are joined. Anything else is prepared as `rlrun data prepare` would, also columns of these names that hold
something else, such as prompts that are texts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.core.check_result import CheckResult
from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.data.parquet_layout import count_rows, distinct, fields_of, join_files
from launcher.data.prepare import prepare
from launcher.engines.verl.words import WORK, key_of
from launcher.spec.algorithm import Kind
from launcher.spec.data import SPLITS, Dataset, Row, Split, prompt_node
from launcher.spec.run import RunSpec

NEEDED: Mapping[Kind, tuple[str, ...]] = {
    "prompts": ("prompt[].role", "prompt[].content", "data_source", "reward_model.ground_truth"),
    "answers": ("messages[].role", "messages[].content"),
}
"""Columns, and what is in them, without which verl reads no row (rl_dataset.py, naive.py:43)."""
FORMS = {
    "prompt": "prompt=[{role: user, content: ...}]", "messages": "messages=[{role: user, content: ...}, ...]",
    "data_source": "data_source", "reward_model": "reward_model={style: rule, ground_truth: ...}",
}  # fmt: skip
WRITTEN = {*FORMS, "ability", "extra_info"}
"""Columns of prepared rows."""
OWN = {"data.custom_cls.path", "reward.reward_manager.module.path"}
"""Arguments for code of the user's that reads the columns as it likes."""


@dataclass(frozen=True)
class RowCounts:
    """Rows of both splits."""

    train: int
    val: int


def provide(run: RunSpec, folder: Path) -> RowCounts:
    """Make the files, anew at each start, as a kill may have cut them off. Raises `Problems`."""
    work, kind = folder / WORK, run.algorithm.data
    data = run.data if isinstance(run.data, Files) else _written(run.data, kind, work)
    names = taken_as_they_are(run)
    if names is None:
        made = prepare(data, kind, "rows", lambda _: None)
        names = {split: [str(path)] if (path := made / f"{split}.parquet").is_file() else [] for split in SPLITS}
    for split in SPLITS:
        _place(names[split], work / f"{split}.parquet")
    counts = RowCounts(*(count_rows(work / f"{split}.parquet") for split in SPLITS))
    if counts.train < run.data.train_batch_size:
        got = f"got {run.data.train_batch_size}, and the data has {counts.train} rows"
        raise Problems(Problem("data.train_batch_size", got, f"use at most {counts.train}", "not-enough"))
    return counts


def taken_as_they_are(run: RunSpec) -> dict[Split, list[str]] | None:
    """The files of each split; None where they are prepared. Raises `OSError`, or `ValueError` of a file that is no
    parquet."""
    data = run.data
    if not isinstance(data, Files) or data.format != "auto" or any(_unreadable(data, run)):
        return None
    return {split: data.expanded(split) for split in SPLITS}


def rewritten(run: RunSpec) -> Iterator[CheckResult]:
    """Files that were made for verl and are prepared, as they hold something else. Raises as `taken_as_they_are`."""
    data, needed = run.data, {_column(field) for field in NEEDED.get(run.algorithm.data, ())}
    if not isinstance(data, Files) or data.format != "auto":
        return
    present = {_column(field) for split in SPLITS for name in data.expanded(split) for field in _fields(name)}
    without = f", without {', '.join(sorted(present - WRITTEN))}" if present - WRITTEN else ""
    for split, name, missing in _unreadable(data, run):
        if len(needed - _fields(name)) > (len(needed) > 1):
            continue  # rows of another form
        message = f"{name} has no {missing}, which verl reads of each row: all rows are written anew{without}"
        yield CheckResult("WARN", f"data.{split}_files", message, f"write {FORMS[_column(missing)]} in each row")


def columns(run: RunSpec) -> frozenset[str] | None:
    """Columns of the training rows; None where they are prepared. Raises as `taken_as_they_are`."""
    taken = taken_as_they_are(run)
    return None if taken is None else frozenset(_column(field) for name in taken["train"] for field in _fields(name))


def agents(run: RunSpec) -> frozenset[str]:
    """The agent loops that rows name. Raises as `taken_as_they_are`."""
    files = [name for names in (taken_as_they_are(run) or {}).values() for name in names]
    with_agents = [Path(name) for name in files if "agent_name" in _fields(name)]
    return frozenset(str(value) for path in with_agents for value in distinct(path, "agent_name"))


def _unreadable(data: Files, run: RunSpec) -> Iterator[tuple[Split, str, str]]:
    """Files that verl cannot read as they are, and what is missing first in each."""
    needed = NEEDED.get(run.algorithm.data, ())
    if {key_of(word) for word in run.engine.extra} & OWN:  # type: ignore[attr-defined]
        needed = tuple(map(_column, needed))
    for split in SPLITS:
        for name in data.expanded(split):
            fields = _fields(name)
            if missing := next((field for field in needed if field not in fields), None):
                yield split, name, missing


def _fields(name: str) -> frozenset[str]:
    return fields_of(Path(name)) if name.endswith(".parquet") else frozenset()


def _column(field: str) -> str:
    return re.split(r"[.\[]", field)[0]


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
