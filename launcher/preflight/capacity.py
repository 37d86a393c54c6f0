"""Resources of runs that share this machine: cores, memory and GPUs, each used by one run only."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.core import machine
from launcher.models import size
from launcher.spec.run import RunSpec

PROCESS_BYTES = 2**30  # libraries, buffers and small activations of one process


@dataclass(frozen=True)
class Needs:
    """What a run needs of this machine."""

    cores: int
    """0 means all: the run sets no number."""
    memory_bytes: int
    gpus: int
    nodes: int = 1
    """A run on several machines uses this one exclusively."""


def needs(run: RunSpec) -> Needs:
    """Rough, for memory: weights, gradients and optimizer of each process, and `PROCESS_BYTES`."""
    hardware, threads = run.taken, run.engine.cores()
    processes = hardware.processes_per_node
    if not hardware.is_cpu:
        return Needs(processes, processes * PROCESS_BYTES, hardware.n_gpus_per_node, hardware.nnodes)
    copies = 4 + ("reference" in run.algorithm.needs) + 4 * ("critic" in run.algorithm.needs)
    weights = size.parameters(run.model.shape) * size.BYTES[run.model.dtype] if run.model.shape else 0
    return Needs(processes * threads, processes * (PROCESS_BYTES + copies * weights), 0, hardware.nnodes)


@dataclass(frozen=True)
class Allocation:
    """Resources assigned to one run."""

    needs: Needs
    gpus: tuple[str, ...] | None
    """For CUDA_VISIBLE_DEVICES; None leaves it as it is."""


@dataclass
class ResourcePool:
    """At most `parallel` runs; with None as many as have cores and memory. A GPU is never shared."""

    parallel: int | None
    cores: int = field(default_factory=machine.cpu_count)
    memory_bytes: int = field(default_factory=machine.free_memory_bytes)
    gpus: tuple[str, ...] = field(default_factory=lambda: machine.visible_gpus())
    taken: list[Allocation] = field(default_factory=list)

    def acquire(self, wanted: Needs) -> Allocation | None:
        """Resources for a run, None while there are not enough. A single run always gets them."""
        busy = {gpu for place in self.taken for gpu in place.gpus or ()}
        free = [gpu for gpu in self.gpus if gpu not in busy]
        if self.taken and not self._fits(wanted, len(free)):
            return None
        known = wanted.gpus and wanted.nodes == 1 and wanted.gpus <= len(free)
        place = Allocation(wanted, tuple(free[: wanted.gpus]) if known else None)
        self.taken.append(place)
        return place

    def release(self, place: Allocation) -> None:
        self.taken.remove(place)

    def _fits(self, wanted: Needs, free_gpus: int) -> bool:
        single = [each for each in (wanted, *(place.needs for place in self.taken)) if each.nodes > 1]
        beyond = [place for place in self.taken if place.needs.gpus and place.gpus is None]  # it takes what there is
        if single or wanted.gpus > free_gpus or (beyond and wanted.gpus):
            return False
        if self.parallel is not None:
            return len(self.taken) < self.parallel
        together = [wanted, *(place.needs for place in self.taken)]
        cores = sum(each.cores or self.cores for each in together)
        return cores <= self.cores and sum(each.memory_bytes for each in together) <= self.memory_bytes
