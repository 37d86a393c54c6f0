"""Which rows of a batch are computed together. It changes memory and speed, never the result."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.engines.torch.model.packing import prompt_families
from launcher.spec.algorithm import Batch

Rows = list[int]


@dataclass(frozen=True)
class Limits:
    """Limits of one micro-batch: rows, or tokens where those are given."""

    rows: int
    tokens: int | None = None


def mini_batches(batch: Batch, parts: int) -> list[Batch]:
    """The batch in `parts` of equally many groups, in the order of the groups' numbers."""
    if parts == 1:
        return [batch]
    groups = sorted(_group_rows(batch), key=lambda rows: int(batch.group[rows[0]]))
    size = len(groups) // parts
    chosen = [groups[start : start + size] for start in range(0, parts * size, size)]
    return [batch.rows([row for rows in part for row in rows]) for part in chosen]


def micro_batches(batch: Batch, limits: Limits, *, whole: bool, share: bool) -> list[Rows]:
    """All rows, in parts that keep to the limits; a group that must stay `whole` may be a part that does not."""
    groups = _group_rows(batch)
    fixed = [whole and (batch.preference is None or bool(batch.preference[group[0]])) for group in groups]  # pairs are
    if limits.tokens is not None:
        return _parts_by_tokens(batch, groups, fixed, limits.tokens, share)
    items = [[group] if stays else [[row] for row in group] for group, stays in zip(groups, fixed, strict=True)]
    return _fill_in_order([item for of_group in items for item in of_group], lambda rows: len(rows) <= limits.rows)


def _parts_by_tokens(batch: Batch, groups: Sequence[Rows], fixed: Sequence[bool], most: int, share: bool) -> list[Rows]:
    length: list[int] = batch.length.tolist()
    prompt, ids, one = (batch.mask > 0).double().argmax(1).tolist(), batch.tokens.cpu().numpy(), [0] * len(batch)

    def tokens(rows: Rows) -> int:
        """Tokens of a group's rows, with shared prompts counted once."""
        families = prompt_families(rows, ids, prompt, length, one) if share else []
        return sum(length[row] for row in rows) - sum(prompt[family[0]] * (len(family) - 1) for family in families)

    items = [
        [group] if stays else _fill_in_order([[row] for row in group], lambda rows: tokens(rows) <= most)
        for group, stays in zip(groups, fixed, strict=True)
    ]
    return best_fit([(tokens(item), item) for of_group in items for item in of_group], most)


def split_to_count(parts: Sequence[Rows], count: int, keys: Sequence[int]) -> list[Rows]:
    """`count` parts, by splitting the largest where the rows' keys change; if none can be split, empty parts are
    added."""
    split = [list(part) for part in parts]
    while len(split) < count:
        split.sort(key=len, reverse=True)
        for number, part in enumerate(split):
            cuts = [place for place in range(1, len(part)) if keys[part[place]] != keys[part[place - 1]]]
            if cuts:
                cut = min(cuts, key=lambda place: abs(2 * place - len(part)))
                split[number : number + 1] = [part[:cut], part[cut:]]
                break
        else:
            split += [[] for _ in range(count - len(split))]
    return split


def best_fit(items: Sequence[tuple[int, Rows]], most: int) -> list[Rows]:
    """Best-fit decreasing bin packing."""
    bins: list[Rows] = []
    room: list[tuple[int, int]] = []  # (room left, bin), in order
    for size, rows in sorted(items, key=lambda item: -item[0]):
        place = bisect_left(room, (size, -1))
        if place < len(room):
            left, number = room.pop(place)
            bins[number] += rows
        else:
            left, number = most, len(bins)
            bins.append(list(rows))
        insort(room, (left - size, number))
    return bins


def _group_rows(batch: Batch) -> list[Rows]:
    rows_by_group: dict[int, Rows] = {}
    for row, group in enumerate(range(len(batch)) if batch.group is None else batch.group.tolist()):
        rows_by_group.setdefault(group, []).append(row)
    return list(rows_by_group.values())


def _fill_in_order(items: Sequence[Rows], fits: Callable[[Rows], bool]) -> list[Rows]:
    """The items in as few parts as fit, in their order; an item that does not fit is a part of its own."""
    parts: list[Rows] = []
    for item in items:
        if parts and fits([*parts[-1], *item]):
            parts[-1] += item
        else:
            parts.append(list(item))
    return parts
