"""The hardware of a run: nodes, GPUs, processes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from launcher.core.problems import InvalidSettings, Problem
from launcher.core.settings import AtLeastOne, Count, ReadOnlyWith, settings

GIB = 2**30
LEAST = 0.99
"""Usable share of the memory in a GPU's name."""
GPUS_GIB = {
    "a10": 22.4, "a100": 39.4, "a100-40g": 39.4, "a100-80g": 79.2, "a6000": 47.5, "b200": 178.0, "h100": 79.1,
    "h20": 95.0, "h200": 139.8, "h800": 79.1, "l4": 22.4, "l40s": 44.4, "rtx3090": 23.5, "rtx4090": 23.5, "t4": 14.5,
    "v100-16g": 15.7, "v100-32g": 31.7,
}  # fmt: skip
"""Name of a GPU -> usable GiB: the total that its driver reports, less about 1 %."""
NO_BFLOAT16 = re.compile(
    r"((nvidia|tesla|geforce)[ -]*)*((k80|m40|m60|p4|p40|p100|v100s?|t4g?)\b|titan|gtx|rtx[ -]?20[678]0|quadro)",
    re.IGNORECASE,
)
"""Names of GPUs older than Ampere, as people and drivers write them: they compute no bfloat16."""
PROCESSES = ("hardware.nnodes", "hardware.n_gpus_per_node", "hardware.nproc_per_node", "hardware")
"""Settings that the number of processes depends on."""
TOGETHER = ReadOnlyWith("run.hardware.several", fix="hardware.nproc_per_node=2", why="there is one process")


@settings
class Hardware:
    """The machines of a run, all alike."""

    device: str = "cpu"
    """`cpu`, or the GPU's name: h100, a100-80g, ...; any name but `cpu` means CUDA."""
    memory_gb: Annotated[
        Annotated[float, Field(gt=0)] | None,
        ReadOnlyWith("is_cpu", False, fix="hardware=gpu", why="the device is a CPU, whose memory is measured"),
    ] = None
    """GiB of one GPU, as in its name; 1 % of it is reserved. The run's estimated memory is compared with it before the
    start. By default that of `device`, or of the GPU found on this machine."""
    nnodes: AtLeastOne = 1
    """Number of machines; more than one needs a cluster."""
    n_gpus_per_node: Count = 0
    """GPUs used on each node."""
    nproc_per_node: AtLeastOne | None = None
    """Training processes on each node; by default one per GPU, and one on `cpu`."""

    def __post_init__(self) -> None:
        gpus = self.n_gpus_per_node
        if self.is_cpu == bool(gpus):
            fix = "use hardware=gpu" if gpus else "use at least 1"
            got = f"is {gpus} and device is {self.device}"
            raise InvalidSettings(Problem("n_gpus_per_node", got, fix, "conflicting-settings", ("hardware.device",)))
        if not self.is_cpu and self.nproc_per_node not in (None, gpus):
            about = ("hardware.n_gpus_per_node", "hardware.device")
            got, fix = f"is {self.nproc_per_node}", f"a GPU takes one process; use {gpus}"
            raise InvalidSettings(Problem("nproc_per_node", got, fix, "conflicting-settings", about, gpus))

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of one GPU, from `memory_gb` or the GPU's name; None where it is unknown."""
        if self.memory_gb is not None:
            return int(self.memory_gb * LEAST * GIB)
        size = re.search(r"(?<!\d)(\d{2,3}) ?gi?b\b", self.device, re.IGNORECASE)  # A100-SXM4-80GB
        gib = GPUS_GIB.get(self.device.lower(), LEAST * int(size[1]) if size else None)
        return None if gib is None else int(gib * GIB)

    @property
    def has_bfloat16(self) -> bool:
        """Whether the GPU computes bfloat16, as far as its name says."""
        return computes_bfloat16(self.device)

    @property
    def processes_per_node(self) -> int:
        return self.nproc_per_node or max(self.n_gpus_per_node, 1)

    @property
    def several(self) -> bool:
        """Whether there is more than one training process."""
        return self.processes > 1

    @property
    def processes(self) -> int:
        """Training processes on all nodes."""
        return self.processes_per_node * self.nnodes


def computes_bfloat16(gpu: str) -> bool:
    """Whether a GPU computes bfloat16, as far as its name says."""
    return not NO_BFLOAT16.match(gpu)
