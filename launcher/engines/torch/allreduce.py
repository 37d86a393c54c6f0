"""One process of an all-reduce: it joins the others, adds with them, and says each step as a line of JSON.

RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are its environment, as torchrun sets them; its words are the
backend (`gloo`, on the CPU; `nccl`, on the GPU LOCAL_RANK) and the seconds that it waits for the others.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)  # bytes
TIMES, MOST_S = 5, 1.0  # repeats of a size, and seconds after which there is none more


def main(backend: str, patience_s: float) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _say(at="loaded")
    on_gpu = backend == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group(
        backend, rank=rank, world_size=world, timeout=timedelta(seconds=patience_s),
        device_id=device if on_gpu else None,
    )  # fmt: skip
    dist.barrier()
    _say(at="joined", time=time.time())  # all leave a barrier within milliseconds: by that, clocks are compared
    for size in SIZES:
        seconds, right = _sum(size, rank, world, device)
        _say(bytes=size, seconds=seconds, right=right)
    dist.barrier()
    _say(at="done")
    dist.destroy_process_group()


def _sum(size: int, rank: int, world: int, device: torch.device) -> tuple[float, bool]:
    """Seconds of one all-reduce of `size` bytes of float32, and whether its result is right. Every number is a small
    integer, so the sum is exact in any order."""
    pattern = torch.arange(size // 4, device=device, dtype=torch.float32) % 251
    mine = pattern * (rank + 1)
    dist.all_reduce(mine)  # the first of a size makes connections and buffers
    right = bool(torch.equal(mine, pattern * (world * (world + 1) // 2)))
    spent, times = 0.0, 0
    while times < TIMES:
        began = _now(device)
        dist.all_reduce(mine)
        spent, times = spent + _now(device) - began, times + 1
        enough = torch.tensor([spent], device=device)
        dist.all_reduce(enough, dist.ReduceOp.MAX)  # all stop after the same number
        if float(enough) > MOST_S:
            break
    return spent / times, right


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
