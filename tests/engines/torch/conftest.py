"""Fixtures of the tests of the torch engine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from launcher.engines.torch.parallel import world

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package
import jobs


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Norms that stay in float64: transformers' own round to float32, once for a shared prompt and once for each
    answer otherwise, so that gradients would differ in the seventh digit.
    """

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    def make(*modules: nn.Module) -> None:
        for part in (part for module in modules for part in module.modules()):
            if type(part).__name__.endswith("RMSNorm"):
                monkeypatch.setattr(type(part), "forward", forward)

    return make


# ---- training and validating, the same in one process and in several


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Be process `rank` of `size`."""

    def be(rank: int, size: int) -> None:
        monkeypatch.setattr(world, "RANK", rank)
        monkeypatch.setattr(world, "SIZE", size)

    return be


@pytest.fixture(scope="session")
def together(made_once: Callable[..., Path]) -> Callable[[int], list[dict[str, Any]]]:
    """What each of `size` real processes finds that train and validate together; run once for each size."""

    def make(folder: Path, size: int) -> None:
        found = [jobs.everything()] if size == 1 else _run(size, folder)
        (folder / "found.json").write_text(json.dumps(found))

    @cache
    def run(size: int) -> list[dict[str, Any]]:
        folder = made_once(f"together-{size}", lambda folder: make(folder, size))
        return json.loads((folder / "found.json").read_text())

    return run


def _run(size: int, folder: Path) -> list[dict[str, Any]]:
    """What each process prints last."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "GLOO_SOCKET_IFNAME": "lo"}
    env = {**os.environ, **rendezvous, "WORLD_SIZE": str(size)}
    ran = subprocess.run(
        [sys.executable, jobs.__file__, str(folder)], env=env, capture_output=True, text=True, timeout=600
    )
    errors = [(folder / f"{rank}.err").read_text() for rank in range(size)]
    assert ran.stdout.splitlines()[-1:] == [json.dumps([0] * size)], (ran.stderr, errors)
    return [json.loads((folder / f"{rank}.out").read_text().splitlines()[-1]) for rank in range(size)]
