"""Processes on the nodes of a Ray cluster. This file and `job` do not load Ray: they start a driver that does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import Field

from launcher.clusters.ray.job import RayJob
from launcher.core.problems import Problem
from launcher.core.settings import Positive, settings
from launcher.spec.cluster import Cluster
from launcher.spec.engine import Plan
from launcher.spec.hardware import Hardware


@settings
class Ray(Cluster):
    """The nodes of a Ray cluster, or a Ray instance of its own on this machine. Each process has one actor."""

    address: str | None = None
    """`host:port` of a running cluster's head, `auto` for the one of this machine; by default a cluster of this machine
    alone is started for the run, on free ports and behind a token, and ended with it."""
    wait_s: Annotated[float, Field(ge=0)] = 600.0
    """Seconds to wait for nodes that are missing or in use; then the run fails and lists what each offers."""
    cpus_per_process: Positive = 1.0
    """CPU cores that Ray reserves for each process."""

    def problems(self, hardware: Hardware) -> list[Problem]:
        if hardware.nnodes == 1 or self.address:
            return []
        got = f"got {hardware.nnodes}, and this machine is one"
        fix = "use 1, or after rlrun cluster up and join cluster.address=auto"
        return [Problem("hardware.nnodes", got, fix, "conflicting-settings", ("cluster", "cluster.address"), 1)]

    @property
    def remote_address(self) -> str | None:
        return self.address

    def each_node(self, hardware: Hardware) -> Mapping[str, float]:
        cpus = {"CPU": self.cpus_per_process * hardware.processes_per_node}
        return cpus if hardware.is_cpu else cpus | {"GPU": float(hardware.n_gpus_per_node)}

    def missing_requirements(self, hardware: Hardware) -> list[Problem]:
        if find_spec("ray"):
            return []
        return [Problem("cluster", "ray is not installed", "pip install ray", "not-installed")]

    def start(self, plan: Plan, logs: Path, lock: int) -> RayJob:
        return self.start_on((), plan, logs, lock)

    def start_on(self, node_ids: Sequence[str], plan: Plan, logs: Path, lock: int) -> RayJob:
        """`start` on these nodes of a running cluster, one for each of the plan's: nothing is reserved there, and a
        process that fails or is not started in `wait_s` ends no other."""
        return RayJob(
            plan, logs, lock, self.address, wait_s=self.wait_s, cpus=self.cpus_per_process,
            usage_s=self.usage_pause_s(plan), node_ids=node_ids,
        )  # fmt: skip
