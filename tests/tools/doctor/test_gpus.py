"""What a driver and torch say of GPUs, and what that means."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.core.check_result import CheckResult
from launcher.core.machine import Gpu, Gpus
from launcher.tools.doctor import loading
from launcher.tools.doctor.loading import load_libraries
from launcher.tools.doctor.system import check_visible_devices

ONE = Gpu(0, "NVIDIA H200", 141 << 30, 140 << 30)
TWO = Gpus("550.54", "12.4", (ONE, Gpu(1, "NVIDIA H200", 141 << 30, 40 << 30)))
NONE = Gpus()


@pytest.mark.parametrize(
    ("value", "count", "message"),
    [
        (None, 2, ""),
        ("0,1", 2, ""),
        ("", 2, ""),
        ("0,2", 2, "names 2; this machine has 2"),
        ("0", 0, "names 0; this machine has 0"),
        ("GPU-abc", 2, ""),  # which card an id means, only the driver knows
    ],
)
def test_gpus_that_are_named_and_not_there(value: str | None, count: int, message: str) -> None:
    found = check_visible_devices(value, count)
    assert [(one.level, one.message) for one in found] == ([("FAIL", message)] if message else [])


CARD = {"name": "NVIDIA H200", "capability": "9.0", "fault": ""}


def loaded(**more: object) -> dict[str, Any]:
    return {"torch_s": 2.0, "torch": "2.13.0", "cuda": "12.4", "cudnn": 91000, "nccl": "2.27.3",
            "why": "", "gpus": [CARD, CARD], "kernels": ["sm_90"], "broken": {}} | more  # fmt: skip


@pytest.mark.parametrize(
    ("received", "found", "level", "word"),
    [
        (loaded(), TWO, "OK", "uses 2 of 2 GPUs; driver 550.54 (CUDA up to 12.4), cuDNN 91000, NCCL 2.27.3"),
        (loaded(cuda=None, gpus=[]), NONE, "OK", "(CPU only)"),
        (loaded(gpus=[]), NONE, "OK", "(CUDA 12.4)"),  # a CUDA build runs on the CPU, too
        (loaded(cuda=None, gpus=[]), TWO, "FAIL", "(CPU only) loads in 2.0 s, beside 2 GPUs"),
        (loaded(cuda="13.0", gpus=[]), TWO, "FAIL", "built for CUDA 13.0; driver 550.54 runs CUDA up to 12.4"),
        (loaded(cuda="12.8"), TWO, "OK", "uses 2 of 2"),  # one major version: its builds run on every driver of it
        (loaded(gpus=[], why="RuntimeError: no device"), TWO, "FAIL", "RuntimeError: no device"),
        (loaded(nccl=None), TWO, "WARN", "NCCL missing"),
        (loaded(), Gpus(trouble="versions differ"), "FAIL", "the driver cannot be queried: versions differ"),
    ],
)
def test_torch_beside_its_driver(received: dict[str, Any], found: Gpus, level: str, word: str) -> None:
    told = loading.check(received, found)[0]
    assert told.level == level and word in told.message, told


def test_hidden_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert loading.check(loaded(gpus=[]), TWO)[0].fix == "unset CUDA_VISIBLE_DEVICES, which hides them"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,7")
    assert "uses 1 of 2 GPUs (CUDA_VISIBLE_DEVICES is 0,7)" in loading.check(loaded(gpus=[CARD]), TWO)[0].message


def test_cards_and_companions_that_do_not_work() -> None:
    new = {"name": "NVIDIA B300", "capability": "10.3", "fault": "RuntimeError: no kernel image is available"}
    _, card, peft = loading.check(loaded(gpus=[new], broken={"peft": "ImportError: no x"}), TWO)
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
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(loading.__file__).parents[3]}")
    found = load_libraries(1.5 if "time" in code else 60)
    assert isinstance(found, CheckResult) and found.level == "FAIL" and word in found.message, (found, sys.path)
