"""Packing: rows of a batch concatenated without padding; shared prompts are included once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from launcher.engines.torch.model.attention import Call, Layout
from launcher.engines.torch.model.blocks import worth_sharing
from launcher.spec.algorithm import Batch

SHORT = 64  # tokens: padding sequences up to this length costs less than another call
FILLED = 0.75  # share of a longer sequence's slots that must hold tokens


@dataclass(frozen=True)
class Packed:
    """N tokens of B sequences; M of them are predicted (the mask is 1 there)."""

    ids: Tensor  # [1, N]
    positions: Tensor  # [1, N] place in its own sequence
    layout: Layout
    source: Tensor  # [M] packed place of the token before each predicted one: its output predicts it
    target: Tensor  # [M] the predicted tokens
    row: Tensor  # [M] row of the predicted token in the batch
    column: Tensor  # [M]
    shape: tuple[int, int]  # B, T

    def unpack(self, values: Tensor) -> Tensor:
        """[M] -> [B, T], 0 where nothing was predicted."""
        return values.new_zeros(self.shape).index_put((self.row, self.column), values)


class _Piece(NamedTuple):
    """Tokens `start` to `end` of a sequence, or of the prompt that several share."""

    rows: list[int]
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def pack(batch: Batch, *, share: bool = True, ragged: bool = True) -> Packed:
    """Pack the rows that have predicted tokens.

    `share` includes a prompt of several rows of a group once. Without `ragged`, sequences whose attention is
    computed in one call are of equal length.
    """
    tokens, mask, length = batch.tokens.cpu().numpy(), batch.mask.cpu().numpy() > 0, batch.length.tolist()
    mask[:, 0] = False  # token 0 has nothing before it
    opening = mask.argmax(1).tolist()  # [B] first predicted token
    rows = np.flatnonzero(mask.any(1)).tolist()
    group = range(len(batch)) if batch.group is None else batch.group.tolist()
    families = prompt_families(rows, tokens, opening, length, group) if share else [[row] for row in rows]
    calls, blocks = _attention_calls(families, opening, length, batch.tokens.device, ragged)
    place, count = np.zeros_like(tokens), 0  # [B, T] packed place of each token
    none: np.ndarray = np.zeros(0, np.int64)
    ids, positions, filled = [none], [none], [none]
    for call, block in zip(calls, blocks, strict=True):
        for piece in block:
            start, end = piece.start, piece.end
            place[piece.rows, start:end] = np.arange(count, count + piece.length)
            ids.append(tokens[piece.rows[0], start:end])
            positions.append(np.arange(start, end))
            filled.append(np.arange(call.length) < piece.length)
            count += piece.length
    row, column = np.nonzero(mask)

    def put(x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64)).to(batch.tokens.device)

    slots = np.concatenate(filled)
    return Packed(
        ids=put(np.concatenate(ids))[None],
        positions=put(np.concatenate(positions))[None],
        layout=Layout(tuple(calls), put(np.flatnonzero(slots)) if len(slots) > count else None, len(slots)),
        source=put(place[row, column - 1]),
        target=put(tokens[row, column]),
        row=put(row),
        column=put(column),
        shape=(len(batch), tokens.shape[1]),
    )


def prompt_families(
    rows: Sequence[int], tokens: np.ndarray, opening: Sequence[int], length: Sequence[int], group: Sequence[int]
) -> list[list[int]]:
    """Rows of a group with the same prompt, together where that saves computation."""
    by_prompt: dict[tuple[int, bytes], list[int]] = {}
    for row in rows:
        by_prompt.setdefault((group[row], tokens[row, : opening[row]].tobytes()), []).append(row)
    families = []
    for family in by_prompt.values():
        worth = worth_sharing(opening[family[0]], len(family), sum(length[row] for row in family))
        families += [family] if worth else [[row] for row in family]
    return families


def _attention_calls(
    families: Sequence[list[int]], opening: Sequence[int], length: Sequence[int], device: torch.device, ragged: bool
) -> tuple[list[Call], list[list[_Piece]]]:
    """The calls, and the pieces of each, of which the first is the longest: shared prompts of equal length together,
    then what follows them."""
    calls, blocks, pools = list[Call](), list[list[_Piece]](), dict[int, list[list[int]]]()
    for family in families:
        pools.setdefault(opening[family[0]] if len(family) > 1 else 0, []).append(family)
    for prefix, members in sorted(pools.items()):
        prompts = len(calls) if prefix else None
        if prefix:
            calls.append(Call(len(members), prefix))
            blocks.append([_Piece(family, 0, prefix) for family in members])
        owner = {row: number for number, family in enumerate(members) for row in family}
        for block in _blocks([_Piece([row], prefix, length[row]) for row in owner], ragged):
            owners = torch.tensor([owner[piece.rows[0]] for piece in block], device=device) if prefix else None
            calls.append(Call(len(block), block[0].length, prompts, owners))
            blocks.append(block)
    return calls, blocks


def _blocks(pieces: list[_Piece], ragged: bool) -> Iterator[list[_Piece]]:
    """Pieces of similar length, longest first: each block is one attention call, padded to its longest."""
    block: list[_Piece] = []
    for piece in sorted(pieces, key=lambda piece: -piece.length):
        min_length = block[0].length if block else 0
        if ragged:
            min_length = 0 if min_length <= SHORT else int(FILLED * min_length)
        if block and piece.length < min_length:
            yield block
            block = []
        block.append(piece)
    if block:
        yield block
