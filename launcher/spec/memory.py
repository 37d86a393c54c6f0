"""Estimate of a run's memory before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

PhaseName = Literal["load", "rollout", "log_prob", "update", "sync", "save"]
Part = Literal[
    "weights", "gradients", "optimizer", "activations", "logits", "kv_cache", "sampler", "reference", "critic",
    "reward", "batch", "runtime", "allocator",
]  # fmt: skip


@dataclass(frozen=True)
class MemoryPhase:
    """Peak memory of one process in a phase of the run, by part, in bytes; parts of 0 bytes are left out."""

    name: PhaseName
    parts: Mapping[Part, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Memory:
    """Memory of the process of a run that needs most, on its compute device."""

    phases: tuple[MemoryPhase, ...]
    band: float
    """Relative error of the estimate, in both directions."""

    @property
    def peak(self) -> MemoryPhase:
        return max(self.phases, key=lambda phase: phase.total_bytes)

    @property
    def peak_bytes(self) -> int:
        return self.peak.total_bytes

    @property
    def at_most_bytes(self) -> int:
        """Upper end of the band: with more memory than this the run fits."""
        return round(self.peak_bytes * (1 + self.band))

    @property
    def at_least_bytes(self) -> int:
        """Lower end of the band: with less memory than this the run does not fit."""
        return round(self.peak_bytes * (1 - self.band))

    def to_node(self) -> dict[str, Any]:
        """A table of phases and parts as plain data, all in bytes."""
        return {
            "phases": [{"name": p.name, "parts": dict(p.parts), "total_bytes": p.total_bytes} for p in self.phases],
            "peak": self.peak.name,
            "peak_bytes": self.peak_bytes,
            "at_most_bytes": self.at_most_bytes,
            "band": self.band,
        }
