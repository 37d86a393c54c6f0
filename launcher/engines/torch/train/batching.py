"""Episodes become a batch, and nothing else does; then which of its rows are computed together.

The second changes memory and speed, never the result.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.model.packing import prompt_families
from launcher.spec.algorithm import Batch
from launcher.spec.episode import Episode, Turn
from launcher.text.encoder import Pair, Tokens

EXACT = torch.float64  # of masks, rewards and advantages: they are small, and their sums nearly cancel
Rows = list[int]


def read_episodes(rows: Sequence[Tokens | Pair], numbers: Sequence[int] | None = None) -> list[Episode]:
    """Demonstrations, or pairs of answers, as episodes that nobody sampled.

    A pair's two answers form a group, and the sequences of a demonstration where one of them has several. `numbers` are
    those of the pairs' groups.
    """
    pairs = [row for row in rows if isinstance(row, Pair)]
    if pairs:
        return [
            Episode([], (Turn(side.ids, "data", mask=side.mask),), number, preference, 0.0)
            for number, pair in zip(numbers or range(len(pairs)), pairs, strict=True)
            for side, preference in ((pair.chosen, 1), (pair.rejected, -1))
        ]
    placed = [(place, one) for place, row in enumerate(rows) if isinstance(row, Tokens) for one in row.sequences]
    several = len(placed) > len(rows)
    return [
        Episode([], (Turn(one.ids, "data", mask=one.mask),), group=place if several else None) for place, one in placed
    ]


def collate(episodes: Sequence[Episode], model: CausalLM, width: int = 0) -> Batch:
    """The episodes as rows, right-padded to at least `width`. A field that no episode has stays ABSENT."""
    first, device = episodes[0], model.device

    def padded(rows: Sequence[Sequence[float]], padding: float, dtype: torch.dtype, width: int = 0) -> Tensor:
        longest = max(width, *map(len, rows))
        return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows], device=device, dtype=dtype)

    def of_episodes(values: Iterable[float | None], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(list(values), device=device, dtype=dtype)

    tokens = [one.tokens for one in episodes]
    fields = {
        "tokens": padded(tokens, model.tokenizer.pad_token_id, torch.int64, width),
        "length": of_episodes(map(len, tokens)),
        "mask": padded([one.mask for one in episodes], 0, EXACT, width),
    }
    if first.group is not None:
        fields["group"] = of_episodes(one.group for one in episodes)
    if first.reward is not None:
        fields["reward"] = of_episodes((one.reward for one in episodes), EXACT)
        fields["preference"] = of_episodes(one.preference for one in episodes)
    if first.ended is not None:
        turns = [one.policy_turns for one in episodes]
        fields["turn"] = padded(list(map(_turn_numbers, episodes)), -1, torch.int64, width)
        fields["turn_reward"] = padded([[turn.reward for turn in each] for each in turns], 0.0, EXACT)
        fields["state"] = padded(_state_numbers(turns), -1, torch.int64)
    if any(map(_is_logged, episodes)):
        fields["rollout"] = padded(list(map(_rollout_logp, episodes)), 0.0, EXACT, width)
    return Batch(**fields)


def _state_numbers(turns: Sequence[Sequence[Turn]]) -> list[list[int]]:
    """A number for the state that each turn began in, equal for equal states; -1 where it is unknown."""
    numbers = {"": -1}
    for turn in chain(*turns):
        numbers.setdefault(turn.state, len(numbers) - 1)
    return [[numbers[turn.state] for turn in each] for each in turns]


def _is_logged(episode: Episode) -> bool:
    """Whether the program that sampled it reported its tokens' log-probabilities."""
    return any(turn.logp for turn in episode.turns)


def _rollout_logp(episode: Episode) -> list[float]:
    """Log-probability of each token by the program that sampled it; 0 where nobody sampled it."""
    return [0.0] * len(episode.prompt) + [*chain(*(turn.logp or [0.0] * len(turn.tokens) for turn in episode.turns))]


def _turn_numbers(episode: Episode) -> list[int]:
    """The number of each token's turn among the policy's turns; -1 where the policy did not write it."""
    numbers, number = [-1] * len(episode.prompt), 0
    for turn in episode.turns:
        numbers += [number if turn.writer == "policy" else -1] * len(turn.tokens)
        number += turn.writer == "policy"
    return numbers


# ---- which rows are computed together


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
