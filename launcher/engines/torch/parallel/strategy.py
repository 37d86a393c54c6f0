"""How weights are distributed over the training processes; the default: replicated (DDP)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from launcher.engines.torch.model.network import Network
from launcher.engines.torch.parallel import world


class Parallel:
    """Every process holds all weights; gradients are summed over the processes."""

    needs_equal_microbatches = False
    """Whether all processes must compute equally many micro-batches, as each runs collectives."""

    def shard(self, network: Network) -> None:
        """Distribute the network's weights over the processes."""

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Sum the gradients over all processes; each holds the sum, or its shard of it. A weight that this process
        did not use, as an expert that no token chose, takes the gradient of the others."""
        used = world.all_reduce_max(
            torch.tensor([float(weight.grad is not None) for weight in weights], device=weights[0].device)
        )
        for weight, somewhere in zip(weights, used.tolist(), strict=True):
            if somewhere and weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        world.all_reduce_sum_in_place([weight.grad for weight in weights if weight.grad is not None])

    @contextmanager
    def summon_full_params(self, network: Network) -> Iterator[None]:
        """Context in which every process holds all weights, so that each may compute independently."""
        yield


def is_sharded(x: Tensor) -> bool:
    if world.SIZE == 1:
        return False
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  # late: it takes a sixth of all imports

    return isinstance(x, DTensor)


def full_tensor(x: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded. Collective: every process must call it."""
    return cast("Any", x).full_tensor() if is_sharded(x) else x


def distribute_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, sharded and placed as `like` is; a scalar on the same device, as fused AdamW needs it."""
    if value.ndim == 0:
        return value.to(like.device)
    if not is_sharded(like):
        return value.to(like.device, like.dtype)
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415  # late, as above

    sharded = cast("Any", like)
    return distribute_tensor(value.to(like.dtype), sharded.device_mesh, sharded.placements).to(like.device)
