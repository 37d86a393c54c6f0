"""Communication between trainer 0 and the processes that sample.

Trainer 0 has rank 0 here, and samplers the ranks after it. They use the trainers' rendezvous address, and process
groups apart from the trainers' own. Samplers act only on trainer 0's messages. JSON and tensors' bytes are sent, never
code. Weights go to all samplers at once, between GPUs by NCCL; all else goes through CPU memory. A process whose
partner has ended fails with `RuntimeError`.
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
    """Connects trainer 0 with the `samplers`; collective. `team` consecutive samplers share one tensor-parallel copy:
    all get the same requests, and the first (its speaker) replies."""

    def __init__(self, rank: int, samplers: int, device: torch.device, team: int = 1) -> None:
        self.rank, self.device, self.team = rank, device, team
        self.samplers = range(1, 1 + samplers)
        self.speakers = self.samplers[::team]
        # a single trainer has no store at this port yet; that of several is served by trainer 0, too
        store = dist.TCPStore(  # type: ignore[attr-defined]  # public, and not marked as that
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=rank == 0, timeout=TIMEOUT,
            wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
        talk, weights, self._among = (PrefixStore(f"rlrun/{name}", store) for name in ("talk", "weights", "samplers"))
        self._messages: Any = dist.ProcessGroupGloo(talk, rank, 1 + samplers, ENDLESS)
        self._weights: Any = self._messages
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            self._weights = dist.ProcessGroupNCCL(weights, rank, 1 + samplers, options)

    def gather_samplers(self) -> None:
        """Create the samplers' own process group, where vLLM expects it, for tensor parallelism."""
        rank, size = self.rank - 1, len(self.samplers)
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

    def receive_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights that trainer 0 sends. All must be received, as it does not stop sending."""
        while headers := self.receive_message(0)["tensors"]:
            for name, dtype, shape in headers:
                value = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
                self._broadcast(value)
                yield name, value

    def _broadcast(self, value: Tensor) -> None:
        """Broadcast a tensor of any number format, as bytes."""
        if value.numel():
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = 0, 0
            self._weights.broadcast([value.view(-1).view(torch.uint8)], options).wait()
