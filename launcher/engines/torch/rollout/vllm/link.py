"""Communication between processes that train and processes that sample.

Ranks are the plan's: trainers first, then samplers. They use the trainers' rendezvous address, and process groups apart
from the trainers' own. Trainer 0 leads: samplers act only on its messages. JSON and tensors' bytes are sent, never
code. Weights go from trainer 0 to all samplers at once, between GPUs by NCCL; all else goes through CPU memory. A
process whose partner has ended fails with `RuntimeError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import orjson
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from launcher.engines.torch.parallel.world import TIMEOUT

BUNDLE = 64 * 2**20
ENDLESS = timedelta(days=365)  # samplers may wait for hours; a process that ends closes its connection


class Link:
    """Connects rank `rank`, one of `trainers` or of the `samplers` after them; collective. `team` consecutive samplers
    share one tensor-parallel copy: all get the same requests, and the first (its speaker) replies."""

    def __init__(self, rank: int, trainers: int, samplers: int, device: torch.device, team: int = 1) -> None:
        self.rank, self.device, self.team = rank, device, team
        self.trainers, self.samplers = range(trainers), range(trainers, trainers + samplers)
        self.speakers = self.samplers[::team]
        # a single trainer has no store at this port yet; that of several is served by trainer 0, too
        store = dist.TCPStore(  # type: ignore[attr-defined]  # public, and not marked as that
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=rank == 0, timeout=TIMEOUT,
            wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
        talk, weights, self._among = (PrefixStore(f"rlrun/{name}", store) for name in ("talk", "weights", "samplers"))
        self._messages: Any = dist.ProcessGroupGloo(talk, rank, trainers + samplers, ENDLESS)
        self._weights = None if rank in self.trainers[1:] else self._weights_group(weights)

    def _weights_group(self, store: PrefixStore) -> Any:
        """Process group of trainer 0 (its rank 0) and the samplers."""
        rank, size = max(self.rank - len(self.trainers) + 1, 0), len(self.samplers) + 1
        if self.device.type != "cuda":
            return dist.ProcessGroupGloo(store, rank, size, TIMEOUT)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        return dist.ProcessGroupNCCL(store, rank, size, options)

    def gather_samplers(self) -> None:
        """Create the samplers' own process group, where vLLM expects it, for tensor parallelism."""
        rank, size = self.rank - len(self.trainers), len(self.samplers)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=self._among, rank=rank, world_size=size, timeout=TIMEOUT)

    # ---- messages

    def send_message(self, to: int, **node: Any) -> None:
        data = orjson.dumps(node)
        for tensor in (torch.tensor([len(data)]), torch.frombuffer(bytearray(data), dtype=torch.uint8)):
            self._messages.send([tensor], to, 0).wait()

    def receive_message(self, source: int) -> dict[str, Any]:
        length = torch.zeros(1, dtype=torch.int64)
        self._messages.recv([length], source, 0).wait()
        data = torch.empty(int(length.item()), dtype=torch.uint8)
        self._messages.recv([data], source, 0).wait()
        node: dict[str, Any] = orjson.loads(data.numpy().tobytes())
        return node

    def send_to_team(self, speaker: int, **node: Any) -> None:
        for sampler in range(speaker, speaker + self.team):
            self.send_message(sampler, **node)

    # ---- weights

    def send_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Called by trainer 0. Tensors are sent in bundles of `BUNDLE` bytes, each after a header message, whose
        latency equals that of a few MB."""
        bundle, nbytes = dict[str, Tensor](), 0
        for name, value in weights:
            bundle[name] = value.to(self.device).contiguous()
            nbytes += value.nbytes
            if nbytes >= BUNDLE:
                self._send_bundle(bundle)
                bundle, nbytes = {}, 0
        self._send_bundle(bundle)
        if bundle:
            self._send_bundle({})  # ends the weights

    def _send_bundle(self, bundle: Mapping[str, Tensor]) -> None:
        headers = [(name, str(x.dtype).removeprefix("torch."), list(x.shape)) for name, x in bundle.items()]
        for sampler in self.samplers:
            self.send_message(sampler, tensors=headers)
        for value in bundle.values():
            self._broadcast(value)

    def receive_weights(self) -> IncomingWeights:
        return IncomingWeights(self)

    def _broadcast(self, value: Tensor) -> None:
        """Broadcast a tensor of any number format, as bytes."""
        if value.numel():
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = 0, 0
            assert self._weights
            self._weights.broadcast([value.view(-1).view(torch.uint8)], options).wait()


class IncomingWeights(Iterator[tuple[str, Tensor]]):
    """Iterator over the weights that trainer 0 sends. All must be received, as it does not stop sending; not a
    generator, which would be closed when its consumer stops."""

    def __init__(self, link: Link) -> None:
        self._link, self._finished = link, False
        self._bundle: list[tuple[str, str, list[int]]] = []

    def __next__(self) -> tuple[str, Tensor]:
        if not (self._bundle or self._finished):
            self._bundle = self._link.receive_message(0)["tensors"]
            self._finished = not self._bundle
        if self._finished:
            raise StopIteration
        name, dtype, shape = self._bundle.pop(0)
        value = torch.empty(shape, dtype=getattr(torch, dtype), device=self._link.device)
        self._link._broadcast(value)
        return name, value
