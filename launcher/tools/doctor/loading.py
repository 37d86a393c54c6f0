"""Whether torch and its companions load here, and whether torch can use the GPUs; if not, why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from tempfile import TemporaryFile
from typing import IO, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.tools.doctor.gpus import VISIBLE

MODULE = "launcher.engines.torch.installed"
PATIENCE_S = 60.0
TAIL = 20_000  # bytes of what a process says last


@dataclass(frozen=True)
class TorchGpu:
    """One GPU as torch sees it."""

    name: str
    capability: str
    fault: str
    """Why a product of matrices on it failed; empty where it did not."""


@dataclass(frozen=True)
class LoadedLibraries:
    """What `launcher.engines.torch.installed` says."""

    torch_s: float
    torch: str
    cuda: str | None
    """What torch was built for; None for a CPU build."""
    cudnn: int | None
    nccl: str | None
    gloo: bool
    why: str
    """Why CUDA does not start."""
    gpus: tuple[TorchGpu, ...]
    kernels: tuple[str, ...]
    broken: dict[str, str]
    """Other libraries that cannot be loaded, and why."""


class Loading:
    """Loads torch in a process of its own, from the moment this is made."""

    def __init__(self) -> None:
        self._out, self._err = TemporaryFile(), TemporaryFile()  # noqa: SIM115  # open until it is read
        words = [sys.executable, "-m", MODULE]
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err)

    def wait(self, patience_s: float = PATIENCE_S) -> LoadedLibraries | CheckResult:
        """What was found, or why nothing was. Waits at most `patience_s`, and leaves no process behind."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            message = f"did not load in {patience_s:g} s"
            return CheckResult("FAIL", "torch", message, "use a faster disk, or a driver that answers (nvidia-smi)")
        finally:
            self.end()
        try:
            *_, last = tail(self._out).splitlines() or [""]
            return TypeAdapter(LoadedLibraries).validate_python(json.loads(last))
        except (ValueError, ValidationError):
            return CheckResult(
                "FAIL", "torch", f"does not load: {last_words(tail(self._err), code)}", "pip install torch"
            )

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def tail(file: IO[bytes]) -> str:
    file.seek(max(file.seek(0, os.SEEK_END) - TAIL, 0))
    return file.read().decode("utf-8", "replace").strip()


def last_words(output: str, code: int) -> str:
    """The last line of what a process said, or how it ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if lines:
        return lines[-1]
    return f"it was ended by signal {-code}" if code < 0 else f"it ended with {code} and said nothing"


def check(loaded: LoadedLibraries, found: machine.Gpus) -> list[CheckResult]:
    """Of torch, its GPUs, and of each companion that is broken."""
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
    if not count:
        return CheckResult("OK", "torch", message)
    if not loaded.cuda:
        fix = f"use a build of torch for CUDA {found.cuda} or older (pytorch.org tells where)"
        return CheckResult("FAIL", "torch", f"{message}, beside {count} GPUs", fix)
    if loaded.gpus:
        level: Literal["OK", "WARN"] = "OK" if loaded.nccl else "WARN"
        libraries = f"uses {len(loaded.gpus)} of {count} GPUs; cuDNN {loaded.cudnn}, NCCL {loaded.nccl or 'missing'}"
        fix = "" if loaded.nccl else "for several GPUs, use a build with NCCL"
        return CheckResult(level, "torch", f"{message}, {libraries}", fix)
    if _major(loaded.cuda) > _major(found.cuda):
        message = f"is built for CUDA {loaded.cuda}; driver {found.driver} runs CUDA up to {found.cuda}"
        return CheckResult("FAIL", "torch", message, f"use a newer driver, or a build of torch for CUDA {found.cuda}")
    if os.environ.get(VISIBLE, "0").strip() in ("", "-1"):
        return CheckResult("WARN", "torch", f"{message}, and sees no GPU: {VISIBLE} hides them", f"unset {VISIBLE}")
    got = f"cannot use the GPUs: {loaded.why or 'torch sees none, and does not say why'}"
    return CheckResult("FAIL", "torch", got, "see nvidia-smi, and restart after an update")


def _major(version: str) -> int:
    return int(version.partition(".")[0])
