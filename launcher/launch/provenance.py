"""lock.json: what decides a run's result beside its settings, so that it can be made again, and differences told.

{"spec": sha256 of spec.yaml, "code": {"rlrun": {"commit", "diff"}, "folder": {...}}, "python", "system",
 "packages": {name: version}, "installed": [name==version], "hardware": {...}, "data": sha256, "model": {"files": ...},
 "reward": [...], "seed", "words", "environment": {name: value}}

Locks of older versions have fewer keys: what was not written down is taken to be the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from launcher.core import machine
from launcher.core.bounded_parse import parse_json
from launcher.core.files import write_atomic
from launcher.core.problems import Problems, error_message
from launcher.launch import fingerprints, source_version
from launcher.runs.folder import Folder
from launcher.spec.run import RunSpec

ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_CBWR", "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA", "PYTHONHASHSEED",
)  # fmt: skip
"""Variables that change numbers or where they are computed. No other is ever written down: one may hold a secret."""

_HOLDS = {"code": dict, "packages": dict, "installed": list, "hardware": dict, "environment": dict}


def path_of(folder: Folder) -> Path:
    return folder.path / "lock.json"


def write(folder: Folder, run: RunSpec, spec: str, typed: str) -> None:
    """Write down what `run`, prepared and written as the text `spec`, will be decided by. Raises `Problems`."""
    write_atomic(path_of(folder), json.dumps(taken(run, spec, typed), indent=1) + "\n")


def amend(folder: Folder, spec: str) -> None:
    """The run goes on with settings that change where and how fast it runs, and `spec` is what it has now."""
    write_atomic(path_of(folder), json.dumps({**read(folder), "spec": _sha256(spec)}, indent=1) + "\n")


def read(folder: Folder) -> dict[str, Any]:
    """What was written down; of an older version, fewer keys. Raises `Problems`."""
    path = path_of(folder)
    try:
        recorded = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Problems([f"{path}: cannot be read, {error_message(error)}; a new run would do"]) from error
    fits = isinstance(recorded, dict) and all(isinstance(recorded.get(key, of()), of) for key, of in _HOLDS.items())
    if not fits or not all(isinstance(line, str) for line in recorded.get("installed", [])):
        raise Problems([f"{path}: holds no lock; a new run would do"])
    return recorded


def taken(run: RunSpec, spec: str, typed: str) -> dict[str, Any]:
    """As things are now. The data is read whole, models are not (`origin` says what is). Raises `Problems`."""
    return {
        "spec": _sha256(spec),
        "code": {
            "rlrun": source_version.own(),
            "folder": source_version.around(Path.cwd(), Path(run.trainer.run_root).expanduser()),
        },
        "python": machine.python_version(),
        "system": machine.system_name(),
        "packages": machine.package_versions(),
        "installed": installed(),
        "hardware": hardware(),
        "data": run.data.fingerprint(),
        "model": fingerprints.of_model(run.model),
        "reward": fingerprints.of_reward(run.reward),
        "seed": run.seed,
        "words": typed,
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    }


def installed() -> list[str]:
    """Every distribution that can be imported, as `name==version`."""
    found: dict[str, str] = {}
    for each in distributions():
        found.setdefault(re.sub(r"[-_.]+", "-", each.name).lower(), each.version)  # the first is the one imported
    return sorted(f"{name}=={version}" for name, version in found.items())


def hardware() -> dict[str, Any]:
    seen = machine.query_gpus()
    return {
        "processor": _processor(),
        "cores": machine.cpu_count(),
        "memory_bytes": machine.memory_bytes(),
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in seen.found],
        "driver": seen.driver,
        "cuda": seen.cuda,
    }


def _processor() -> str:
    """Its name, which says what instructions sums are made with; empty where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def spec_is_as_written(folder: Folder, recorded: dict[str, Any]) -> bool:
    """Whether spec.yaml is the one that was locked; true of locks that did not say."""
    return recorded.get("spec") in (None, hashlib.sha256(folder.spec.read_bytes()).hexdigest())
