"""Whether torch and its companions load here, and whether torch can use the GPUs; if not, why not."""

from __future__ import annotations

import json
import subprocess
import sys

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from launcher.core import machine
from launcher.core.check_result import CheckResult

MODULE = "launcher.engines.torch.installed"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class TorchGpu:
    """One GPU as torch sees it."""

    name: str
    capability: str
    fault: str
    """Why a matrix product on it failed; empty where it did not."""


@dataclass(frozen=True)
class LoadedLibraries:
    """The output of `launcher.engines.torch.installed`."""

    torch_s: float
    torch: str
    cuda: str | None
    """What torch was built for; None for a CPU build."""
    cudnn: int | None
    nccl: str | None
    why: str
    """Why CUDA does not initialize."""
    gpus: tuple[TorchGpu, ...]
    kernels: tuple[str, ...]
    broken: dict[str, str]
    """Other libraries that cannot be loaded, and why."""


def load_libraries(patience_s: float = PATIENCE_S) -> LoadedLibraries | CheckResult:
    """Load torch in a process of its own; returns the libraries, or a FAIL where it does not load in `patience_s`."""
    words = [sys.executable, "-m", MODULE]
    try:
        completed = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience_s)
    except subprocess.TimeoutExpired:
        message = f"did not load in {patience_s:g} s"
        return CheckResult("FAIL", "torch", message, "use a faster disk, or a driver that answers (nvidia-smi)")
    try:
        *_, last = completed.stdout.splitlines() or [b""]
        return TypeAdapter(LoadedLibraries).validate_python(json.loads(last))
    except (ValueError, ValidationError):
        why = last_words(completed.stderr.decode("utf-8", "replace"), completed.returncode)
        return CheckResult("FAIL", "torch", f"does not load: {why}", "pip install torch")


def last_words(output: str, code: int) -> str:
    """The last line that a process printed, or how it ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if lines:
        return lines[-1]
    return f"it was ended by signal {-code}" if code < 0 else f"it ended with {code} and said nothing"


def check(loaded: LoadedLibraries | CheckResult, found: machine.Gpus) -> list[CheckResult]:
    """Results on torch, on each GPU that fails, and on each companion library that is broken."""
    if isinstance(loaded, CheckResult):
        return [loaded]
    kernels = ", ".join(loaded.kernels) or "none"
    cards = [
        CheckResult("FAIL", f"cuda:{index}", f"{gpu.name} ({gpu.capability}): {gpu.fault}",
                    f"use a build of torch with kernels for it; this one has {kernels}")
        for index, gpu in enumerate(loaded.gpus) if gpu.fault
    ]  # fmt: skip
    companions = [
        CheckResult("FAIL", package, f"does not load: {why}", f"pip install --force-reinstall {package}")
        for package, why in ((module.partition(".")[0], why) for module, why in loaded.broken.items())
    ]
    return [_check_torch(loaded, found), *cards, *companions]


def _check_torch(loaded: LoadedLibraries, found: machine.Gpus) -> CheckResult:
    build = f"CUDA {loaded.cuda}" if loaded.cuda else "CPU only"
    message = f"{loaded.torch} ({build}) loads in {loaded.torch_s:.1f} s"
    count = len(found.found)
    if found.trouble:
        fix = "use a driver and kernel module of one version: restart after an update"
        return CheckResult("FAIL", "torch", f"{message}; the driver cannot be queried: {found.trouble}", fix)
    if not count:
        return CheckResult("OK", "torch", f"{message}; no GPU: only hardware=cpu runs here")
    if not loaded.cuda:
        fix = f"use a build of torch for CUDA {found.cuda} or older (pytorch.org tells where)"
        return CheckResult("FAIL", "torch", f"{message}, beside {count} GPUs", fix)
    if loaded.gpus:
        driver = f"driver {found.driver} (CUDA up to {found.cuda})"
        libraries = f"uses {len(loaded.gpus)} of {count} GPUs; {driver}, cuDNN {loaded.cudnn}"
        if loaded.nccl:
            return CheckResult("OK", "torch", f"{message}, {libraries}, NCCL {loaded.nccl}")
        return CheckResult("WARN", "torch", f"{message}, {libraries}, NCCL missing", "use a build with NCCL")
    if _major(loaded.cuda) > _major(found.cuda):
        message = f"is built for CUDA {loaded.cuda}; driver {found.driver} runs CUDA up to {found.cuda}"
        return CheckResult("FAIL", "torch", message, f"use a newer driver, or a build of torch for CUDA {found.cuda}")
    got = f"cannot use the GPUs: {loaded.why or 'torch sees none, and does not say why'}"
    fix = "see CUDA_VISIBLE_DEVICES and nvidia-smi, and restart after an update"
    return CheckResult("FAIL", "torch", got, fix)


def _major(version: str) -> int:
    return int(version.partition(".")[0])
