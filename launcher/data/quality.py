"""Statistics of readable rows: duplicates, and prompts in both splits."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from launcher.spec.algorithm import Kind
from launcher.spec.data import Row, asked


class Twice(NamedTuple):
    """A held-out row and the training row with the same prompt."""

    where: str
    first: str


def count_repeats(rows: Sequence[Row], kind: Kind) -> int:
    """Rows with the same content as an earlier one."""
    return len(rows) - len({_content(row, kind) for row in rows})


def _content(row: Row, kind: Kind) -> Hashable:
    if kind == "prompts":
        extra = repr({name: value for name, value in row.extra_info.items() if name != "index"})  # environments' data
        return asked(row), row.ground_truth, extra
    last_answer = row.prompt[-1].content if row.response is None and isinstance(row.prompt, tuple) else row.response
    return asked(row), last_answer, row.rejected


def in_both(train: Sequence[Row], val: Sequence[Row]) -> Iterator[Twice]:
    """Each held-out row whose prompt is in the training rows."""
    first = dict[Hashable, str]()
    for row in train:
        first.setdefault(asked(row), row.where)
    for row in val:
        if where := first.get(asked(row)):
            yield Twice(row.where, where)
