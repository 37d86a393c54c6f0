"""Ends of a program whose cause one line tells, conf/endings.yaml. The file is read at the first line that may be
one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from launcher.core.bounded_parse import LOADER
from launcher.core.events import Level
from launcher.core.files import conf_dir

LABEL = re.compile(r"(?:[0-9]{1,5}: {0,2}|\[[\w.-]{1,30}\]: ?|\(raylet[^()\n]{0,60}\) ?){0,3}")
"""The labels that srun -l, torchrun and Ray put before a line."""
_ANY_ENDING = re.compile(
    "ProcessGroup|slurmstepd: |srun: |Fatal Python|fault|Bus error|Aborted|Killed|terminate called|Workers \\(|"
    "A worker died|ray[.]exc|exitcode|exits with return|exit(?:ed with)? code|"
    "No space left|quota exceeded|unexpected pos|file write failed|got signal|Terminated"
)


@dataclass(frozen=True)
class LogEnding:
    """How a program ended, its most likely cause, and what to do."""

    cause: str
    fix: str
    examples: Sequence[str]
    level: Level = "critical"
    outside: bool = False
    """Whether the cause is outside of the program, so that Python errors near it are consequences."""


OUT_OF_MEMORY = "out-of-memory"


@cache
def _read_table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = yaml.load((conf_dir() / "endings.yaml").read_bytes(), Loader=LOADER)
    return table


@cache
def known_endings() -> Sequence[tuple[re.Pattern[str], LogEnding]]:
    """(pattern, ending) of each row of conf/endings.yaml."""
    endings = []
    for row in _read_table()["endings"]:
        pattern = "|".join(row["patterns"])
        for name, piece in _read_table()["pieces"].items():
            pattern = pattern.replace(f"{{{name}}}", piece)
        endings.append((re.compile(pattern), LogEnding(**{key: row[key] for key in row if key != "patterns"})))
    return endings


def fixes_of(rule: str) -> Mapping[str, str]:
    """Fixes for an error that a log ends with, by its `rule`, as in a health rule's `fix`; empty for other rules."""
    fixes: Mapping[str, str] = _read_table()["fixes"].get(rule, {})
    return fixes


_GPU_MEMORY = re.compile(
    r"(?:CUDA|HIP|NPU) out of memory|torch(?:\.cuda)?\.OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|"
    r"CUDA error: out of memory"
)


def is_gpu_memory(error: str) -> bool:
    """Whether a Python error says that the memory of a GPU ran out."""
    return _GPU_MEMORY.search(error) is not None


def find(text: str) -> LogEnding | None:
    """The ending that a line shows; None where it shows none."""
    if not _ANY_ENDING.search(text) or len(text) > 4_000:
        return None
    label = LABEL.match(text)
    start = label.end() if label else 0
    return next((ending for pattern, ending in known_endings() if pattern.match(text, start)), None)
