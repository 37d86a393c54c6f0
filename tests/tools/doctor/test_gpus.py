"""What a driver and torch say of GPUs, and what that means. The driver's library is the edge: it is stood in for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from launcher.core.check_result import CheckResult
from launcher.core.machine import Gpu, Gpus
from launcher.tools.doctor import gpus, loading
from launcher.tools.doctor.gpus import NvmlGpu, check_card, check_visible_devices
from launcher.tools.doctor.loading import LoadedLibraries, Loading

ONE = Gpu(0, "NVIDIA H200", 141 << 30, 140 << 30)
TWO = Gpus("550.54", "12.4", (ONE, Gpu(1, "NVIDIA H200", 141 << 30, 140 << 30)))
NONE = Gpus()


@pytest.mark.parametrize(
    ("value", "found", "level", "word"),
    [
        (None, TWO, None, ""),  # nothing is hidden
        ("0,1", TWO, "OK", "0,1"),
        ("", TWO, "WARN", "hides all 2 GPUs"),
        ("-1", TWO, "WARN", "hides all 2 GPUs"),
        ("", NONE, None, ""),  # there is nothing to hide
        ("0,2", TWO, "FAIL", "names 2; this machine has 2, numbered from 0"),
        ("0", NONE, "FAIL", "names 0; this machine has none"),
        ("GPU-abc", TWO, "OK", "GPU-abc"),  # a beginning of its id will do
        ("GPU-xyz", TWO, "FAIL", "names GPU-xyz"),
        ("gpu0", TWO, "FAIL", "names gpu0"),
    ],
)
def test_hidden_gpus(value: str | None, found: Gpus, level: str | None, word: str) -> None:
    told = check_visible_devices(value, found, ["GPU-abcdef", "GPU-123456"])
    assert [one.level for one in told] == ([level] if level else [])
    assert not told or word in told[0].message


def test_the_real_check_of_this_machine_names_absent_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "97")
    assert any(one.subject == "CUDA_VISIBLE_DEVICES" and one.level == "FAIL" for one in gpus.check())


@pytest.mark.parametrize(
    ("card", "levels", "word"),
    [
        (NvmlGpu("u"), ["OK"], "140.0 GB free of 141.0 GB"),
        (NvmlGpu("u", users=((77, "python", 3 << 30),)), ["WARN"], "held by python (pid 77) 3.0 GB"),
        (NvmlGpu("u", uncorrected=2), ["OK", "FAIL"], "2 uncorrectable memory errors"),
        (NvmlGpu("u", remap=True), ["OK", "WARN"], "faulty memory rows"),
        (NvmlGpu("u", slowed="by heat"), ["OK", "WARN"], "throttled by heat"),
        (NvmlGpu("u", persistent=False), ["OK", "WARN"], "persistence mode is off"),
    ],
)
def test_a_card(card: NvmlGpu, levels: list[str], word: str) -> None:
    found = check_card(ONE, card)
    assert [one.level for one in found] == levels
    assert word in found[-1].message


def test_what_a_card_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer's card knows nothing of ECC or replaced rows; the rest is still told."""

    def unknown(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    heat = pynvml.nvmlClocksEventReasonHwThermalSlowdown | pynvml.nvmlClocksEventReasonGpuIdle
    for name, answer in {
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=1 << 30, usedGpuMemory=5)],
        "nvmlDeviceGetTotalEccErrors": unknown, "nvmlDeviceGetRemappedRows": unknown,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: heat,
        "nvmlDeviceGetPersistenceMode": lambda _: 0, "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
    }.items():  # fmt: skip
        monkeypatch.setattr(pynvml, name, answer)
    user = ((1 << 30, "a process", 5),)  # of another namespace: it has no name here
    assert gpus._cards(1) == [NvmlGpu("GPU-0", user, 0, False, "by heat", False)]


def loaded(**more: object) -> LoadedLibraries:
    cards = (loading.TorchGpu("NVIDIA H200", "9.0", ""), loading.TorchGpu("NVIDIA H200", "9.0", ""))
    usual = {"torch_s": 2.0, "torch": "2.13.0", "cuda": "12.4", "cudnn": 91000, "nccl": "2.27.3", "gloo": True,
             "why": "", "gpus": cards, "kernels": ("sm_90",), "broken": {}}  # fmt: skip
    return LoadedLibraries(**{**usual, **more})


@pytest.mark.parametrize(
    ("received", "found", "level", "word"),
    [
        (loaded(), TWO, "OK", "uses 2 of 2 GPUs; cuDNN 91000, NCCL 2.27.3"),
        (loaded(cuda=None, gpus=()), NONE, "OK", "(CPU only)"),
        (loaded(gpus=()), NONE, "OK", "(CUDA 12.4)"),  # a CUDA build runs on the CPU, too
        (loaded(cuda=None, gpus=()), TWO, "FAIL", "a build for the CPU only, beside 2 GPUs"),
        (loaded(cuda="13.0", gpus=()), TWO, "FAIL", "built for CUDA 13.0; driver 550.54 runs CUDA up to 12.4"),
        (loaded(cuda="12.8"), TWO, "OK", "uses 2 of 2"),  # one major version: its builds run on every driver of it
        (loaded(gpus=(), why="RuntimeError: no device"), TWO, "FAIL", "RuntimeError: no device"),
        (loaded(nccl=None), TWO, "WARN", "NCCL missing"),
    ],
)
def test_torch_beside_its_driver(received: LoadedLibraries, found: Gpus, level: str, word: str) -> None:
    told = loading.check(received, found)[0]
    assert told.level == level and word in told.message, told


def test_cards_and_companions_that_do_not_work() -> None:
    new = loading.TorchGpu("NVIDIA B300", "10.3", "RuntimeError: no kernel image is available")
    _, card, peft = loading.check(loaded(gpus=(new,), broken={"peft": "ImportError: no x"}), TWO)
    assert card.subject == "cuda:0" and "this one has sm_90" in card.fix
    assert (peft.level, peft.subject) == ("FAIL", "peft") and "ImportError: no x" in peft.message


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("raise OSError('libcudnn.so.9: cannot open shared object file')", "libcudnn.so.9: cannot open"),
        ("import os; os.kill(os.getpid(), 11)", "it was ended by signal 11"),  # a broken build
        ("import time; time.sleep(60)", "did not load in 1.5 s"),  # a driver that hangs
    ],
)
def test_a_torch_that_does_not_load(code: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(gpus.__file__).parents[3]}")
    found = Loading().ended(1.5 if "time" in code else 60)
    assert isinstance(found, CheckResult) and found.level == "FAIL" and word in found.message, (found, sys.path)
