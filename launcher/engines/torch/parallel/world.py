"""Collectives of the training processes; with one process they are local."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from math import fsum
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

RANK, SIZE = 0, 1
"""Rank of this process, and number of the training processes; set by `init_distributed`."""

T = TypeVar("T")
Name = TypeVar("Name")
TIMEOUT = timedelta(hours=6)  # for a process whose reward is slow, or that writes a large checkpoint


def init_distributed(device: torch.device) -> None:
    global RANK, SIZE
    RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if SIZE > 1:
        backend, device_id = ("cpu:gloo,cuda:nccl", device) if device.type == "cuda" else ("gloo", None)
        dist.init_process_group(backend, rank=RANK, world_size=SIZE, timeout=TIMEOUT, device_id=device_id)


def destroy_distributed() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def all_reduce_sum(x: Tensor) -> Tensor:
    """The sum of `x` over all processes. Collective: every process must call it."""
    if dist.is_initialized():
        x = x.clone()
        dist.all_reduce(x)
    return x


def all_reduce_max(x: Tensor) -> Tensor:
    """The elementwise maximum of `x` over all processes. Collective: every process must call it."""
    if dist.is_initialized():
        x = x.clone()
        dist.all_reduce(x, dist.ReduceOp.MAX)
    return x


def all_reduce_sum_in_place(tensors: list[Tensor]) -> None:
    """Replace each tensor by its sum over all processes."""
    if dist.is_initialized():
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()


def all_gather_object(mine: T) -> list[T]:
    """The objects of all processes, by rank. Collective: every process must call it."""
    if not dist.is_initialized():
        return [mine]
    objects: list[T] = [mine] * SIZE
    dist.all_gather_object(objects, mine)
    return objects


def add_sums(mine: Mapping[Name, float]) -> dict[Name, float]:
    """Each of the sums over all processes, exactly rounded. Collective: every process must call it."""
    parts = all_gather_object(dict(mine))
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: fsum(part.get(name, 0.0) for part in parts) for name in names}


def barrier() -> None:
    """Wait until every process has arrived."""
    if dist.is_initialized():
        dist.barrier()
