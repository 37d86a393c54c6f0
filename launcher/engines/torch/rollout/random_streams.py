"""Random numbers that depend on the answer, not on when it is computed.

Each answer has its own stream, a function of the run's seed, of the row, epoch and attempt that it answers
(`train.sources.Order`), and of its number among the answers; number t of it decides token t. So neither batch order,
nor process count, nor a restart, nor the step that asks for it changes what is sampled.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stream_keys(seed: int, step: int, prompts: Iterable[int], n: int, round_: int = 0) -> np.ndarray:
    """[P * n] uint64, one stream for each of the `n` answers to each prompt, prompt by prompt.

    A step that samples more than once names its `round_`.
    """
    numbers = (
        struct.pack("<qqqq", seed, step, prompt, sample + (round_ << 32)) for prompt in prompts for sample in range(n)
    )
    digests = b"".join(hashlib.blake2b(each, digest_size=8).digest() for each in numbers)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def uniform(streams: np.ndarray, t: int | np.ndarray) -> np.ndarray:
    """[B] number `t`, or `t` [B], of each stream, in [0, 1): SplitMix64 (Steele, Lea, Flood 2014), which jumps anywhere
    at once."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the generator
        z = streams + np.asarray(t + 1, np.uint64) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Seed of torch's own random numbers in a step (dropout), on one process."""
    return int(stream_keys(seed, step, [-1 - rank], 1)[0]) >> 1


@lru_cache(maxsize=2)
def row_order(seed: int, epoch: int, rows: int) -> np.ndarray:
    """[rows] order of the rows in an epoch (RandomState: its streams never change)."""
    return np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32, epoch & 0xFFFFFFFF]).permutation(rows)


@lru_cache(maxsize=2)
def row_places(seed: int, epoch: int, rows: int) -> np.ndarray:
    """[rows] place of each row in the order of an epoch."""
    return row_order(seed, epoch, rows).argsort()
