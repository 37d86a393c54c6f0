"""The rows of a run as verl reads them: RUN/verl/{train,val}.parquet, with verl's columns.

Parquet files that have these columns already are taken as they are, with all their other columns: one is linked,
several are joined. Anything else is prepared as `rlrun data prepare` would, also columns of these names that hold
something else, such as prompts that are texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.core.overrides import key_of
from launcher.core.problems import Problem, Problems
from launcher.data.files import Files
from launcher.data.parquet_layout import count_rows, fields_of, join_files, move_rows
from launcher.data.prepare import prepare
from launcher.data.rows import UnfitRow
from launcher.engines.verl.words import WORK
from launcher.spec.algorithm import Kind
from launcher.spec.data import SPLITS, Split
from launcher.spec.run import RunSpec

NEEDED: Mapping[Kind, tuple[str, ...]] = {
    "prompts": ("prompt[].role", "prompt[].content", "data_source", "reward_model.ground_truth"),
    "answers": ("messages[].role", "messages[].content"),
}
"""Columns and their fields without which verl reads no row (rl_dataset.py, naive.py:43)."""
OWN = {"data.custom_cls.path", "reward.reward_manager.module.path"}
"""Arguments that name user code, which may read the columns in any form."""


def provide(run: RunSpec, folder: Path) -> tuple[int, int]:
    """Write the files, anew at each start, as a kill may have truncated them; rows of both. Raises `Problems`."""
    work, kind = folder / WORK, run.algorithm.data
    data, names = run.data, _files_of_verl(run)
    assert isinstance(data, Files)
    if names is None:
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


def _files_of_verl(run: RunSpec) -> dict[Split, list[str]] | None:
    """The run's files where all of them have verl's columns; None where they are prepared. Raises `OSError`, or
    `ValueError` where a file is not parquet."""
    data = run.data
    if not isinstance(data, Files) or data.format != "auto":
        return None
    needed = NEEDED.get(run.algorithm.data, ())
    if {key_of(word) for word in run.engine.extra} & OWN:  # type: ignore[attr-defined]
        needed = tuple(map(_column, needed))
    names = {split: data.expanded(split) for split in SPLITS}
    every = [_fields(name) for split in SPLITS for name in names[split]]
    return names if all(fields.issuperset(needed) for fields in every) else None


def _fields(name: str) -> frozenset[str]:
    return fields_of(Path(name)) if name.endswith(".parquet") else frozenset()


def _column(field: str) -> str:
    return re.split(r"[.\[]", field)[0]


def _link_or_join(names: Sequence[str], target: Path) -> None:
    target.unlink(missing_ok=True)
    if len(names) == 1:
        os.symlink(os.path.abspath(names[0]), target)
    elif names:
        try:
            join_files([Path(name) for name in names], target)
        except UnfitRow as unfit:
            problem = Problem(f"data.{target.stem}_files", f"cannot be joined: {unfit}", code="bad-row")
            raise Problems(problem) from unfit


def _hold_out(run: RunSpec, kind: Kind, work: Path) -> None:
    """Move the rows that `data.val_share` holds out to a file of their own. Raises `Problems` if there are none."""
    train, val = (work / f"{split}.parquet" for split in SPLITS)
    data = Files(train_files=(str(train),), val_share=run.data.val_share)
    held_out = {int(row.where.rpartition(":")[2]) for row in data.rows("val", kind)}
    if not held_out:
        got = f"got {run.data.val_share}, which holds out none of {count_rows(train)} rows"
        raise Problems(Problem("data.val_share", got, "use 0, or data.val_files", "not-enough"))
    move_rows(train, val, held_out)
