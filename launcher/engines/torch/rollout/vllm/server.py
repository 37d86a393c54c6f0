"""One process that only samples: `python -m launcher.engines.torch.rollout.vllm.server RUN_FOLDER`.

Its environment holds its rank, which follows those of the WORLD_SIZE trainers, and the rendezvous address. It serves
the trainers' requests and exits with 0 after the last, or with 2 on a user error. It saves nothing and ignores signals:
the trainers handle them.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.clusters.local.usage import VISIBLE, gpu_of
from launcher.core import machine
from launcher.core.problems import Problems
from launcher.engines import process
from launcher.engines.torch import Torch
from launcher.spec.run import RunSpec
from launcher.spec.stored import read_run

if TYPE_CHECKING:
    import torch

    from launcher.engines.torch.rollout.vllm.engine import VllmModel
    from launcher.engines.torch.rollout.vllm.link import Link
    from launcher.engines.torch.rollout.vllm.messages import ModelDescription


def main() -> int:
    process.set_up(_ignore_signal)
    sample(read_run(Path(sys.argv[1])))
    return 0


def _ignore_signal(number: int, _: object) -> None:
    """The trainers get the signal as well, and may still need answers."""


def sample(run: RunSpec) -> None:
    """Load vLLM while the trainers load their model, connect to them, and serve them."""
    device = _own_device(run)
    from launcher.engines.torch.rollout.vllm import VllmSampler  # noqa: PLC0415  # late: after the GPU is chosen
    from launcher.engines.torch.rollout.vllm.engine import VllmModel  # noqa: PLC0415  # late: vLLM takes many seconds
    from launcher.engines.torch.rollout.vllm.link import Link  # noqa: PLC0415  # as above

    sampler = run.sampler
    assert isinstance(sampler, VllmSampler)
    team = sampler.tensor_parallel_size
    link = Link(int(os.environ["RANK"]) - run.hardware.processes + 1, sampler.n_gpus, device, team)
    if team > 1:
        link.gather_samplers()
    serve(link, lambda description: VllmModel(run, sampler, description, sleeps=False))


def serve(link: Link, start: Callable[[ModelDescription], VllmModel]) -> None:
    """Serve trainer 0's requests until the last. Raises `Problems` after reporting them."""
    from launcher.engines.torch.rollout.vllm import messages  # noqa: PLC0415  # late: torch takes seconds

    with _report_problems(link):
        copy = start(messages.ModelDescription(**link.receive_message(0)))
    while (message := link.receive_message(0))["do"] != "end":
        if message["do"] == "take":
            _load_weights(link, copy)
            continue
        requests, temperature, ends = messages.unpack_requests(message)
        turns = copy.generate(requests, temperature, ends) if requests else []
        if link.rank in link.speakers:
            link.send_message(0, **messages.pack_turns(turns))
    copy.close()


@contextmanager
def _report_problems(link: Link) -> Iterator[None]:
    """Context that reports the `Problems` raised in it to trainer 0, or that there are none."""
    try:
        yield
    except Problems as problems:
        link.send_message(0, problems=[asdict(problem) for problem in problems.problems])
        raise
    link.send_message(0, problems=[])


def _load_weights(link: Link, copy: VllmModel) -> None:
    weights = chain(link.receive_weights())  # which no consumer that stops can close
    with _report_problems(link):
        try:
            copy.load_weights(weights)
        finally:
            deque(weights, maxlen=0)  # the trainer sends them all before it receives


def _own_device(run: RunSpec) -> torch.device:
    """This process's GPU, made the only visible one; or its number of CPU threads, shared with idle trainers."""
    if not run.hardware.is_cpu:
        os.environ |= {VISIBLE: gpu_of(os.environ), "LOCAL_RANK": "0"}
    import torch  # noqa: PLC0415  # after that

    if not run.hardware.is_cpu:
        return torch.device("cuda", 0)
    threads = machine.cpu_count() // (run.sampler.n_gpus // run.hardware.nnodes)
    torch.set_num_threads((run.engine.num_threads if isinstance(run.engine, Torch) else 0) or max(threads, 1))
    return torch.device("cpu")


if __name__ == "__main__":
    process.run_main(main)
