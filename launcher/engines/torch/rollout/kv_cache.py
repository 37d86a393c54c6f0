"""Keys and values of the built-in decode loop: memory is allocated in advance, and what an episode has computed in its
earlier turns is kept for the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from launcher.engines.torch.model.blocks import cache_capacity


class GrowingLayer(DynamicLayer):
    """A layer that writes new tokens into preallocated memory; transformers' own copies all keys and values."""

    keys: Tensor
    values: Tensor
    _allocated: tuple[Tensor, Tensor] | None = None  # [R, K, capacity, D] each

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        used = self.get_seq_length()
        end = used + key_states.shape[2]
        if self._allocated is None or end > self._allocated[0].shape[2]:
            self._allocated = _grow(self.keys, used, end, key_states), _grow(self.values, used, end, value_states)
        for buffer, new in zip(self._allocated, (key_states, value_states), strict=True):
            buffer[:, :, used:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._allocated)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows `beam_idx` [R], in this order."""
        if self._allocated is not None:
            length = self.get_seq_length()
            self._allocated = self._allocated[0].index_select(0, beam_idx), self._allocated[1].index_select(0, beam_idx)
            self.keys, self.values = (buffer[:, :, :length] for buffer in self._allocated)


def empty_cache(config: Any) -> DynamicCache:
    """A cache for the model; sliding-window and recurrent layers are transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _grow(before: Tensor, used: int, end: int, new: Tensor) -> Tensor:
    """[R, K, capacity, D] with the `used` tokens of `before`."""
    rows, heads, _, width = new.shape
    grown = new.new_empty(rows, heads, cache_capacity(end), width)
    if used:
        grown[:, :, :used] = before
    return grown


# ---- earlier turns


@dataclass(frozen=True)
class Prefix:
    """Keys and values of the first tokens of an episode."""

    ids: list[int]
    layers: list[tuple[Tensor, Tensor]]  # [K, T, D] each, in the host's memory

    @property
    def nbytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)


class Prefixes:
    """Keys and values of episodes that may continue, by their random streams, of at most `most` episodes and
    `most_bytes`. What is not kept is computed again.

    They are kept only if all layers keep every token: a sliding window or a recurrent state cannot be cut.
    """

    def __init__(self, most: int, most_bytes: float = math.inf) -> None:
        self.most, self.most_bytes = most, most_bytes
        self.kept: dict[int, Prefix] = {}
        self.held = 0  # bytes of all that is kept

    def keep(self, key: int, ids: list[int], cache: DynamicCache, row: int, columns: Tensor) -> None:
        """Keep keys and values of the tokens `ids` [T], which are at the `columns` [T] of a row of the cache."""
        layers = [layer for layer in cache.layers if isinstance(layer, GrowingLayer)]
        if len(self.kept) < self.most and len(layers) == len(cache.layers):
            pairs = [(layer.keys[row, :, columns].cpu(), layer.values[row, :, columns].cpu()) for layer in layers]
            prefix = Prefix(ids, pairs)
            if self.held + prefix.nbytes <= self.most_bytes:
                self.kept[key] = prefix
                self.held += prefix.nbytes

    def take(
        self, keys: Sequence[int], prompts: Sequence[list[int]], cache: DynamicCache, device: torch.device
    ) -> list[int]:
        """Fill an empty cache with what is kept of the streams, padded on the left; returns the length kept of each."""
        prefixes = [self.forget(key) for key in keys]
        usable = [
            each if each and prompt[:-1][: len(each.ids)] == each.ids else None
            for each, prompt in zip(prefixes, prompts, strict=True)
        ]
        tokens = [len(each.ids) if each else 0 for each in usable]
        layers = next((each.layers for each in usable if each), [])
        for place, (layer, pair) in enumerate(zip(cache.layers, layers, strict=False)):
            filled = []
            for part, like in enumerate(pair):
                padded = like.new_zeros(len(keys), like.shape[0], max(tokens), like.shape[2])
                for row, each in enumerate(usable):
                    if each:
                        padded[row, :, -len(each.ids) :] = each.layers[place][part]
                filled.append(padded.to(device))
            layer.update(*filled)
        return tokens

    def forget(self, key: int) -> Prefix | None:
        """Drop and return what is kept of a stream, if anything is."""
        if prefix := self.kept.pop(key, None):
            self.held -= prefix.nbytes
        return prefix
