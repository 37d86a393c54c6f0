"""How weights lie on the processes that train together. Here: whole on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from launcher.engines.torch.model.network import Network
from launcher.engines.torch.parallel import world


class Parallel:
    """Every process holds all weights and adds up the others' gradients."""

    needs_equal_microbatches = False
    """Whether all processes must compute equally many micro-batches, because each is a meeting of all."""

    def shard(self, network: Network) -> None:
        """Lay the network's weights on the processes."""

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Every process holds the sum of all gradients, or its part of it."""
        world.all_reduce_sum_in_place([weight.grad for weight in weights if weight.grad is not None])

    @contextmanager
    def summon_full_params(self, network: Network) -> Iterator[None]:
        """All weights on every process meanwhile, so that each may compute what it likes, as often as it likes."""
        yield


def full_tensor(x: Tensor) -> Tensor:
    """All of a tensor of which each process may hold a part; every process must ask."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def distribute_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, laid on the processes and devices as `like` is; a counter beside it, as fused AdamW wants it."""
    if value.ndim == 0:
        return value.to(like.device)
    if not isinstance(like, DTensor):
        return value.to(like.device, like.dtype)
    return distribute_tensor(value.to(like.dtype), like.device_mesh, like.placements).to(like.device)
