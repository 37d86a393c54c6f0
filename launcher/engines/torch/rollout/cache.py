"""A KV cache that allocates memory in advance."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from launcher.engines.torch.model.blocks import cache_capacity


class GrowingLayer(DynamicLayer):
    """A layer that writes new tokens into preallocated memory; transformers' own copies all keys and values."""

    keys: Tensor
    values: Tensor
    _room: tuple[Tensor, Tensor] | None = None  # [R, K, capacity, D] each

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = self.get_seq_length()
        end = held + key_states.shape[2]
        if self._room is None or end > self._room[0].shape[2]:
            self._room = _larger(self.keys, held, end, key_states), _larger(self.values, held, end, value_states)
        for place, new in zip(self._room, (key_states, value_states), strict=True):
            place[:, :, held:end] = new
        self.keys, self.values = (place[:, :, :end] for place in self._room)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows `beam_idx` [R], in this order."""
        if self._room is not None:
            length = self.get_seq_length()
            self._room = self._room[0].index_select(0, beam_idx), self._room[1].index_select(0, beam_idx)
            self.keys, self.values = (place[:, :, :length] for place in self._room)


def empty_cache(config: Any) -> DynamicCache:
    """A cache for the model; sliding-window and recurrent layers are transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _larger(before: Tensor, held: int, end: int, new: Tensor) -> Tensor:
    """[R, K, capacity, D] with the `held` tokens of `before`."""
    rows, heads, _, width = new.shape
    made = new.new_empty(rows, heads, cache_capacity(end), width)
    if held:
        made[:, :, :held] = before
    return made
