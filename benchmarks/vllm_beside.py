"""What bringing vLLM's weights up to date takes, beside a plain copy, in this process and in one of its own:
`python benchmarks/vllm_beside.py`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from launcher.config.resolve import resolve
from launcher.core.machine import LOOPBACK, free_ports
from launcher.spec.stored import to_yaml

WORDS = ["algorithm=grpo", "data=reverse", "sampler=vllm", "sampler.n=2", "sampler.kv_cache_gb=0.25"]
WORDS += ["data.max_prompt_length=64", "data.max_response_length=40", "model=tiny"]
WORDS += ["model.hidden_size=1024", "model.intermediate_size=2816", "model.num_hidden_layers=14"]
WORDS += ["model.num_attention_heads=16", "model.num_key_value_heads=8"]
REPEATS = 15


def make_generator() -> tuple[Any, Any]:
    """A run's policy and vLLM."""
    run = resolve(WORDS)
    os.environ.update({**run.sampler.environment(run.hardware), "RANK": "0", "LOCAL_RANK": "0"})  # as a plan does
    from launcher.engines.torch import assemble  # noqa: PLC0415  # as above
    from launcher.engines.torch.model.load import load_model  # noqa: PLC0415  # as above
    from launcher.engines.torch.parallel.strategy import Parallel  # noqa: PLC0415  # as above
    from launcher.engines.torch.rollout.sampler import Colocated  # noqa: PLC0415  # as above
    from launcher.engines.torch.train.batching import Limits  # noqa: PLC0415  # as above
    from launcher.engines.torch.train.optimizer import TrainedNetwork  # noqa: PLC0415  # as above
    from launcher.engines.torch.train.policy import Policy  # noqa: PLC0415  # as above

    device = assemble.select_device(run, 0)
    model = load_model(run.model, 0, device)
    policy = Policy(run.algorithm, TrainedNetwork(model, run.optim, 1, Parallel()), Limits(64), Parallel())
    assert isinstance(run.sampler, Colocated)
    return policy, run.sampler.generator(run, policy)


def main() -> None:
    policy, generator = make_generator()
    import torch  # noqa: PLC0415  # as above

    tensors = [value for _, value in generator.exported]
    gigabytes = sum(value.numel() * value.element_size() for value in tensors) / 1e9
    copies = [torch.empty_like(value) for value in tensors]

    def copied() -> None:
        for copy, value in zip(copies, tensors, strict=True):
            copy.copy_(value)

    def wake_up_only() -> None:
        with generator.current_weights():
            pass

    def sent() -> None:
        policy.model.version += 1
        wake_up_only()

    with apart(policy) as other:

        def sent_away() -> None:
            policy.model.version += 1
            with other.current_weights():
                pass

        spent = _milliseconds({"copy": copied, "away": sent_away, "sync": sent, "none": wake_up_only})
    generator.close()
    table = Table("vLLM beside the trainer", "")
    table.add_row(f"bringing {gigabytes:.2f} GB of weights over", f"{spent['sync'] / gigabytes:.0f} ms a GB")
    table.add_row("to a process of its own", f"{spent['away'] / gigabytes:.0f} ms a GB")
    table.add_row("a plain copy of the same tensors", f"{spent['copy'] / gigabytes:.0f} ms a GB")
    table.add_row("the same where no step was taken", f"{spent['none']:.3f} ms")
    Console().print(table)


@contextmanager
def apart(policy: Any) -> Iterator[Any]:
    """vLLM in a process of its own, as a plan starts it behind one trainer: the policy's, which is this process."""
    run = resolve([*WORDS, "sampler.n_gpus=1"])
    rendezvous = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_ports(1, LOOPBACK)[0]), "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spec.yaml").write_text(to_yaml(run), encoding="utf-8")
        _, sampler = run.engine.plan(run, Path(folder)).processes
        began = subprocess.Popen(sampler.argv, env={**os.environ, **sampler.env, **rendezvous})
        os.environ.update(rendezvous)
        generator = run.sampler.generator(run, policy)  # type: ignore[attr-defined]
        yield generator
        generator.close()
        assert began.wait() == 0


def _milliseconds(calls: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The median of each call's times, after one that counts for nothing. They take turns, so that all meet the same
    load."""
    import torch  # noqa: PLC0415  # as above

    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            spent[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(times[1:]) for name, times in spent.items()}


if __name__ == "__main__":
    main()
