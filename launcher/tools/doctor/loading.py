"""Whether torch and its companions load here, and whether torch can use the GPUs; if not, why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from launcher.core import machine
from launcher.core.check_result import CheckResult

MODULE = "launcher.engines.torch.installed"
PATIENCE_S = 60.0
VISIBLE = "CUDA_VISIBLE_DEVICES"


def load_libraries(patience_s: float = PATIENCE_S) -> Mapping[str, Any] | CheckResult:
    """Load torch in a process of its own; returns the output of `launcher.engines.torch.installed`, or a FAIL where
    torch does not load in `patience_s`."""
    words = [sys.executable, "-m", MODULE]
    try:
        completed = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience_s)
    except subprocess.TimeoutExpired:
        message = f"did not load in {patience_s:g} s"
        return CheckResult("FAIL", "torch", message, "use a faster disk, or a driver that answers (nvidia-smi)")
    try:
        return dict(json.loads(completed.stdout.splitlines()[-1]))
    except (ValueError, TypeError, IndexError):  # it ended before it printed them
        lines, code = completed.stderr.decode("utf-8", "replace").strip().splitlines(), completed.returncode
        ended = f"it was ended by signal {-code}" if code < 0 else f"it ended with {code} and said nothing"
        why = lines[-1].strip() if lines else ended
        return CheckResult("FAIL", "torch", f"does not load: {why}", "pip install torch")


def check(loaded: Mapping[str, Any] | CheckResult, found: machine.Gpus) -> list[CheckResult]:
    """Results on torch, on each GPU that fails, and on each companion library that is broken."""
    if isinstance(loaded, CheckResult):
        return [loaded]
    fix = f"use a build of torch with kernels for it; this one has {', '.join(loaded['kernels']) or 'none'}"
    cards = [
        CheckResult("FAIL", f"cuda:{index}", f"{gpu['name']} ({gpu['capability']}): {gpu['fault']}", fix)
        for index, gpu in enumerate(loaded["gpus"])
        if gpu["fault"]
    ]
    companions = [
        CheckResult("FAIL", package, f"does not load: {why}", f"pip install --force-reinstall {package}")
        for package, why in ((module.partition(".")[0], why) for module, why in loaded["broken"].items())
    ]
    return [_check_torch(loaded, found), *cards, *companions]


def _check_torch(loaded: Mapping[str, Any], found: machine.Gpus) -> CheckResult:
    cuda, n_used, count = loaded["cuda"], len(loaded["gpus"]), len(found.found)
    build = f"CUDA {cuda}" if cuda else "CPU only"
    message = f"{loaded['torch']} ({build}) loads in {loaded['torch_s']:.1f} s"
    if found.trouble:
        fix = "use a driver and kernel module of one version: restart after an update"
        return CheckResult("FAIL", "torch", f"{message}; the driver cannot be queried: {found.trouble}", fix)
    if not count:
        return CheckResult("OK", "torch", f"{message}; no GPU: only hardware=cpu runs here")
    if not cuda:
        fix = f"use a build of torch for CUDA {found.cuda} or older (pytorch.org tells where)"
        return CheckResult("FAIL", "torch", f"{message}, beside {count} GPUs", fix)
    if n_used:
        driver = f"driver {found.driver} (CUDA up to {found.cuda})"
        visible = os.environ.get(VISIBLE) if n_used < count else None
        hidden = "" if visible is None else f" ({VISIBLE} is {visible})"
        used = f"{message}, uses {n_used} of {count} GPUs{hidden}; {driver}, cuDNN {loaded['cudnn']}"
        if loaded["nccl"]:
            return CheckResult("OK", "torch", f"{used}, NCCL {loaded['nccl']}")
        return CheckResult("WARN", "torch", f"{used}, NCCL missing", "use a build with NCCL")
    if int(cuda.partition(".")[0]) > int(found.cuda.partition(".")[0]):
        message = f"is built for CUDA {cuda}; driver {found.driver} runs CUDA up to {found.cuda}"
        return CheckResult("FAIL", "torch", message, f"use a newer driver, or a build of torch for CUDA {found.cuda}")
    got = f"cannot use the GPUs: {loaded['why'] or 'torch sees none, and does not say why'}"
    hides = f"unset {VISIBLE}, which hides them" if os.environ.get(VISIBLE) in ("", "-1") else ""
    return CheckResult("FAIL", "torch", got, hides or f"see {VISIBLE} and nvidia-smi, and restart after an update")
