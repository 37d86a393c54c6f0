"""What a run may use: nodes, GPUs, processes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from launcher.settings import AtLeastOne, Count, settings


@settings
class Hardware:
    """The machines of a run, all alike."""

    device: str = "cpu"
    """`cpu`, or the GPU's name: h100, a100-80g, ...; any name but `cpu` means CUDA."""
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    """Memory of one GPU."""
    nnodes: AtLeastOne = 1
    """Machines; more than one needs a cluster that has them."""
    n_gpus_per_node: Count = 0
    """GPUs taken on each node, not on all together."""
    nproc_per_node: AtLeastOne | None = None
    """Training processes on each node; by default one for each GPU, and one on `cpu`."""

    def __post_init__(self) -> None:
        if self.is_cpu and self.n_gpus_per_node:
            raise ValueError(f"n_gpus_per_node is {self.n_gpus_per_node} and device is cpu; hardware=gpu would do")
        if not self.is_cpu and not self.n_gpus_per_node:
            raise ValueError(f"{self.device} needs n_gpus_per_node >= 1, and it is 0")
        if not self.is_cpu and self.nproc_per_node not in (None, self.n_gpus_per_node):
            raise ValueError(
                f"nproc_per_node is {self.nproc_per_node}; a GPU takes one process, so {self.n_gpus_per_node} would do"
            )

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def processes_per_node(self) -> int:
        return self.nproc_per_node or max(self.n_gpus_per_node, 1)

    @property
    def processes(self) -> int:
        """Training processes on all nodes."""
        return self.processes_per_node * self.nnodes
