"""Checks that weights fit config.json without loading them: by headers, in a limited process, with a cache.

The process imports torch and transformers (about two CPU seconds and 0.3 GB). Its report is cached under the hash of
the config, the headers and the versions of both libraries, so that the next plan starts no process.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.core.bounded_parse import parse_json
from launcher.core.files import read_file
from launcher.core.machine import package_version
from launcher.core.remembered import recall, remember
from launcher.models import weights
from launcher.models.fit import LoadReport

PROGRAM = Path(__file__).parents[1] / "engines" / "torch" / "model" / "dry_load.py"
TEXTS = ("config.json", "generation_config.json")  # files that are read beside the weights
CACHE_NAME = "dry-load"  # name under which reports are cached
CACHE_VERSION = 6  # version of the cached reports; other versions are not read
IMPORTS_FACTOR = 2.5  # CPU time limit after the first imports, in multiples of their time; half is enough
PER_TENSOR_S = 1 / 2000  # further CPU seconds per tensor, for files with one tensor per expert; half is enough
MEMORY_BYTES = 2**30  # limit beyond that of the imports
WALL_S = 120.0  # wall time limit, as the disk or other processes may be slow
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DEACTIVATE_ASYNC_LOAD": "1", "CUDA_VISIBLE_DEVICES": "",
    "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def dry_load(folder: Path, loader: str) -> LoadReport | None:
    """The report of transformers' `loader` on a model's folder; None where headers cannot be read, or the process gave
    no report (killed from outside, or without the libraries)."""
    try:
        texts = [read_file(folder / name) for name in TEXTS if (folder / name).exists()]
        tensors = weights.tensors(folder)
    except (OSError, ValueError):
        return None
    request = {"loader": loader, "tensors": tensors}
    versions = [CACHE_VERSION, package_version("torch"), package_version("transformers")]
    key = hashlib.sha256(b"\0".join(texts) + json.dumps([request, versions]).encode()).hexdigest()
    with suppress(TypeError):
        return LoadReport(**recall(CACHE_NAME, key))
    limits = {"of_imports": IMPORTS_FACTOR, "cpu_s": PER_TENSOR_S * len(tensors), "memory_bytes": MEMORY_BYTES}
    report = _in_a_process({"folder": str(folder), **request, **limits})
    if report is not None and report.get("lasting", True):
        remember(CACHE_NAME, key, report)
    return None if report is None else LoadReport(**report)


def _in_a_process(request: dict[str, Any]) -> dict[str, Any] | None:
    """The fields of the process's report; None where it gave none."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(PROGRAM)], env={**os.environ, **ENVIRONMENT}, input=json.dumps(request).encode(),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, timeout=WALL_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == -signal.SIGXCPU:
        return {"step": "time", "lasting": False}
    try:
        report = parse_json(done.stdout)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
