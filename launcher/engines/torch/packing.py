"""Rows of a batch, laid behind each other without their padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from launcher.engines.torch.attention import Segments
from launcher.spec.algorithm import Batch


@dataclass(frozen=True)
class Packed:
    """N tokens of B sequences, shortest first; M of them are predicted (the mask is 1 there)."""

    ids: Tensor  # [1, N]
    positions: Tensor  # [1, N] place in its own sequence
    segments: Segments
    source: Tensor  # [M] packed place of the token before each predicted one: its logits speak of it
    target: Tensor  # [M] the predicted tokens
    row: Tensor  # [M] where the predicted token stands in the batch
    column: Tensor  # [M]
    shape: tuple[int, int]  # B, T

    def unpack(self, values: Tensor) -> Tensor:
        """[M] -> [B, T], 0 where nothing was predicted."""
        return values.new_zeros(self.shape).index_put((self.row, self.column), values)


def pack(batch: Batch) -> Packed:
    order = batch.length.argsort(stable=True)  # [B]
    length, tokens, mask = batch.length[order], batch.tokens[order], batch.mask[order]
    place = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)  # [B, T]
    real = place < length[:, None]
    flat = real.flatten().cumsum(0).view_as(real) - 1  # [B, T] packed place of each real token
    row, column = (mask[:, 1:] > 0).nonzero(as_tuple=True)  # token 0 has nothing before it
    sizes, counts = length.unique_consecutive(return_counts=True)
    return Packed(
        ids=tokens[real][None],
        positions=place[real][None],
        segments=tuple(zip(counts.tolist(), sizes.tolist(), strict=True)),
        source=flat[row, column],
        target=tokens[row, column + 1],
        row=order[row],
        column=column + 1,
        shape=(tokens.shape[0], tokens.shape[1]),
    )
