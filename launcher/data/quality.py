"""Statistics of readable rows: duplicates, and prompts in both splits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from launcher.spec.algorithm import Kind
from launcher.spec.data import Row, asked


def count_repeats(rows: Sequence[Row], kind: Kind) -> int:
    """Rows with the same content as an earlier one."""
    return len(rows) - len({_content(row, kind) for row in rows})


def _content(row: Row, kind: Kind) -> Hashable:
    if kind == "prompts":
        extra = repr({name: value for name, value in row.extra_info.items() if name != "index"})  # environments' data
        return asked(row), row.ground_truth, extra
    last_answer = row.prompt[-1].content if row.response is None and isinstance(row.prompt, tuple) else row.response
    return asked(row), last_answer, row.rejected


def in_both(train: Sequence[Row], val: Sequence[Row]) -> list[tuple[str, str]]:
    """The place of each held-out row whose prompt is trained on, with that of the first such training row."""
    first = {asked(row): row.where for row in reversed(train)}
    return [(row.where, first[asked(row)]) for row in val if asked(row) in first]
