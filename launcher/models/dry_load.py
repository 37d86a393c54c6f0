"""Whether a folder's weights fit its config.json, without loading them: by headers, in a bounded process, remembered.

The process loads torch and transformers (about two CPU seconds and 0.3 GB); what it found is kept under the hash of
the config, the headers and the versions of both libraries, so that the next plan starts none.
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
TEXTS = ("config.json", "generation_config.json")  # what is read beside the weights
KEPT = "dry-load"  # under which name reports are remembered
FORM = 6  # of what is remembered; another one is not read
OF_IMPORTS = 2.5  # CPU time beyond the first imports, by theirs, which tells how fast the machine is; half is enough
PER_TENSOR_S = 1 / 2000  # CPU time of a file with experts one by one; half is enough
MEMORY_BYTES = 2**30  # beyond the imports
WALL_S = 120.0  # of a process that waits for the disk or for other processes
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DEACTIVATE_ASYNC_LOAD": "1", "CUDA_VISIBLE_DEVICES": "",
    "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def dry_load(folder: Path, loader: str) -> LoadReport | None:
    """What transformers' `loader` would find in a model's folder; None where its headers cannot be read, or where the
    process could not say (killed from outside, libraries that are not installed)."""
    try:
        texts = [read_file(folder / name) for name in TEXTS if (folder / name).exists()]
        tensors = weights.tensors(folder)
    except (OSError, ValueError):
        return None
    asked = {"loader": loader, "tensors": tensors}
    versions = [FORM, package_version("torch"), package_version("transformers")]
    key = hashlib.sha256(b"\0".join(texts) + json.dumps([asked, versions]).encode()).hexdigest()
    with suppress(TypeError):
        return LoadReport(**recall(KEPT, key))
    limits = {"of_imports": OF_IMPORTS, "cpu_s": PER_TENSOR_S * len(tensors), "memory_bytes": MEMORY_BYTES}
    found = _in_a_process({"folder": str(folder), **asked, **limits})
    if found is None or not found.get("lasting", True):
        return LoadReport(**found) if found else None
    remember(KEPT, key, found)
    return LoadReport(**found)


def _in_a_process(asked: dict[str, Any]) -> dict[str, Any] | None:
    """The fields of its report; None where it made none."""
    with subprocess.Popen(
        [sys.executable, "-P", str(PROGRAM)], env={**os.environ, **ENVIRONMENT}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(json.dumps(asked).encode(), WALL_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == -signal.SIGXCPU:
        return {"step": "time", "lasting": False}
    try:
        found = parse_json(output)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
