"""Packing: rows of a batch concatenated without padding; shared prompts are included once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
    """Tokens `start` to `end` of a batch row; a piece that starts after 0 follows a shared prompt."""

    row: int
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass
class _Buffers:
    """The packing so far."""

    tokens: np.ndarray  # [B, T]
    device: torch.device
    ids: list[np.ndarray] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    slots: list[np.ndarray] = field(default_factory=list)
    count: int = 0

    def add(self, piece: _Piece, slots: int) -> int:
        """Append a piece, which takes `slots` slots of its attention call; returns the place of its first token."""
        first = self.count
        self.ids.append(self.tokens[piece.row, piece.start : piece.end])
        self.positions.append(np.arange(piece.start, piece.end))
        self.slots.append(np.full(slots, -1))
        self.slots[-1][: piece.length] = np.arange(first, first + piece.length)
        self.count += piece.length
        return first


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
    families = _families(rows, tokens, opening, length, group) if share else [[row] for row in rows]
    buffer, starts = (
        _Buffers(tokens, batch.tokens.device),
        np.zeros((len(batch), 2), dtype=np.int64),
    )  # packed place of token 0 (-1: in its own piece), and of its own piece
    calls = _pack_pieces(families, opening, length, buffer, starts, ragged)
    row, column = np.nonzero(mask)
    previous, shared = column - 1, starts[row, 0] >= 0
    offset = previous - np.where(shared, np.array(opening)[row], 0)
    source = np.where(offset < 0, starts[row, 0] + previous, starts[row, 1] + offset)

    def put(x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64)).to(batch.tokens.device)

    slots = _concatenate(buffer.slots)
    padded = len(slots) != buffer.count
    return Packed(
        ids=put(_concatenate(buffer.ids))[None],
        positions=put(_concatenate(buffer.positions))[None],
        layout=Layout(tuple(calls), put(np.flatnonzero(slots >= 0)) if padded else None, len(slots)),
        source=put(source),
        target=put(tokens[row, column]),
        row=put(row),
        column=put(column),
        shape=(len(batch), tokens.shape[1]),
    )


def _families(
    rows: Sequence[int], tokens: np.ndarray, opening: Sequence[int], length: Sequence[int], group: Sequence[int]
) -> list[list[int]]:
    """Rows of a group with the same prompt, grouped where that saves computation."""
    by_prompt: dict[tuple[int, bytes], list[int]] = {}
    for row in rows:
        by_prompt.setdefault((group[row], tokens[row, : opening[row]].tobytes()), []).append(row)
    families = []
    for family in by_prompt.values():
        worth = worth_sharing(opening[family[0]], len(family), sum(length[row] for row in family))
        families += [family] if worth else [[row] for row in family]
    return families


def _pack_pieces(
    families: list[list[int]], opening: list[int], length: list[int], buffer: _Buffers, starts: np.ndarray, ragged: bool
) -> list[Call]:
    """Pack all pieces, prompts of equal length together, and record where the rows begin."""
    pools: dict[int, list[list[int]]] = {}
    for family in families:
        pools.setdefault(opening[family[0]] if len(family) > 1 else 0, []).append(family)
    calls: list[Call] = []
    for prefix, members in sorted(pools.items()):
        owner: dict[int, int] = {}
        for number, family in enumerate(members):
            starts[family, 0] = buffer.add(_Piece(family[0], 0, prefix), prefix) if prefix else -1
            owner |= dict.fromkeys(family, number)
        if prefix:
            calls.append(Call(len(members), prefix))
        prompts = len(calls) - 1 if prefix else None
        for block in _blocks([_Piece(row, prefix, length[row]) for row in owner], ragged):
            slots = block[0].length
            for piece in block:
                starts[piece.row, 1] = buffer.add(piece, slots)
            owner_ids = torch.tensor([owner[piece.row] for piece in block], device=buffer.device) if prefix else None
            calls.append(Call(len(block), slots, prompts, owner_ids))
    return calls


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


def _concatenate(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
