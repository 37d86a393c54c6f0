"""Processes on the nodes of a Ray cluster. This file and `job` do not load Ray: they start a driver that does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from launcher.clusters.ray.job import RayJob
from launcher.core.settings import Positive, settings
from launcher.spec.cluster import Cluster
from launcher.spec.engine import Plan
from launcher.spec.hardware import Hardware


@settings
class Ray(Cluster):
    """The nodes of a Ray cluster, which `ray start` has begun. Each process has one actor."""

    address: str = "auto"
    """`host:port` of the cluster's head; `auto`: that of RAY_ADDRESS, else of the cluster that this machine is in."""
    wait_s: Annotated[float, Field(ge=0)] = 600.0
    """Seconds to wait for nodes that are missing or in use; then the run fails and lists what each offers."""
    cpus_per_process: Positive = 1.0
    """CPU cores that Ray reserves for each process."""

    @property
    def remote_address(self) -> str:
        return self.address

    def each_node(self, hardware: Hardware) -> Mapping[str, float]:
        cpus = {"CPU": self.cpus_per_process * hardware.processes_per_node}
        return cpus if hardware.is_cpu else cpus | {"GPU": float(hardware.n_gpus_per_node)}

    def start(self, plan: Plan, logs: Path, lock: int) -> RayJob:
        return RayJob(
            plan, logs, lock, self.address, wait_s=self.wait_s, cpus=self.cpus_per_process,
            usage_s=self.usage_pause_s(plan),
        )  # fmt: skip
