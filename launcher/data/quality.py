"""Statistics of readable rows: duplicates, prompts in both splits, and lengths."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from launcher.spec.algorithm import Kind
from launcher.spec.data import Row, asked

BINS = 16


class Twice(NamedTuple):
    """Two rows with equal content; `where` is the later one, or the one in val."""

    where: str
    first: str


@dataclass
class Seen:
    """Hashes of the rows of a split, 64 bits each: with prompts and lines 24 bytes a row, so millions fit."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    prompts: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    starts: list[tuple[int, str]] = field(default_factory=list)
    """Number of the first row of each file."""
    sources: Counter[str] = field(default_factory=Counter)
    without_truth: int = 0

    def add(self, row: Row, kind: Kind) -> None:
        file, _, line = row.where.rpartition(":")
        if not self.starts or self.starts[-1][1] != file:
            self.starts.append((len(self.lines), file))
        self.prompts.append(hash(asked(row)))
        extra = repr({name: value for name, value in row.extra_info.items() if name != "index"})  # environments' data
        content = (row.ground_truth, extra) if kind == "prompts" else (_last_answer(row), row.rejected)
        self.rows.append(hash((self.prompts[-1], *content)))
        self.lines.append(int(line) if line.isdecimal() else 0)
        self.sources[row.data_source] += 1
        self.without_truth += row.ground_truth is None

    @property
    def repeats(self) -> int:
        """Rows with the same content as an earlier one."""
        return len(self.rows) - len(set(self.rows))

    def where(self, place: int) -> str:
        file = next(file for start, file in reversed(self.starts) if start <= place)
        return f"{file}:{self.lines[place]}"


def _last_answer(row: Row) -> str | None:
    return row.prompt[-1].content if row.response is None and isinstance(row.prompt, tuple) else row.response


def repeated(seen: Seen) -> Iterator[Twice]:
    """Each row with the same content as an earlier one, in order."""
    import numpy as np  # noqa: PLC0415  late: only who checks needs it

    _, places, inverse = np.unique(np.array(seen.rows, np.int64), return_index=True, return_inverse=True)
    first = places[inverse]
    for index in np.flatnonzero(first < np.arange(len(first))).tolist():
        yield Twice(seen.where(index), seen.where(int(first[index])))


def in_both(train: Seen, val: Seen) -> Iterator[Twice]:
    """Each held-out row whose prompt is in the training rows."""
    val_prompts, first = set(val.prompts), dict[int, int]()
    for index, prompt in enumerate(train.prompts):
        if prompt in val_prompts:
            first.setdefault(prompt, index)
    for index, prompt in enumerate(val.prompts):
        if prompt in first:
            yield Twice(val.where(index), train.where(first[prompt]))


@dataclass(frozen=True)
class Histogram:
    """Distribution of text lengths, in tokens."""

    count: int
    mean: float
    quantiles: dict[str, int]
    """p50, p90, p99 and max."""
    bins: list[tuple[int, int]]
    """Upper limit of each bin, and the number of texts in it."""
    limit: int
    over: int
    """Number of texts longer than the limit."""

    @property
    def share_over(self) -> float:
        return self.over / self.count if self.count else 0.0


def histogram(lengths: Sequence[int], limit: int) -> Histogram:
    values = sorted(lengths)
    if not values:
        return Histogram(0, 0.0, {}, [], limit, 0)
    shortest, longest, last = values[0], values[-1], len(values) - 1
    width = -(-(longest - shortest + 1) // BINS)
    counts = Counter((value - shortest) // width for value in values)
    bins = [(shortest - 1 + (index + 1) * width, counts[index]) for index in range((longest - shortest) // width + 1)]
    quantiles = {f"p{share}": values[-(-share * last // 100)] for share in (50, 90, 99)}
    over = len(values) - bisect_right(values, limit)
    return Histogram(len(values), sum(values) / len(values), {**quantiles, "max": longest}, bins, limit, over)
