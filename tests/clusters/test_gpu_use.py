"""A GPU as its driver tells it, whatever the driver leaves out; which one is a process's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from launcher.clusters.local import usage
from launcher.clusters.local.usage import gpu_of, gpu_usage


def test_which_gpu_a_process_computes_on() -> None:
    assert gpu_of({}) == "0", "CUDA sees all, and a process without a rank of its own takes the first"
    picked = {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": " GPU-aa , GPU-bb"}
    assert gpu_of(picked) == "GPU-bb"
    for hidden in ({"LOCAL_RANK": "2", "CUDA_VISIBLE_DEVICES": "4,6"}, {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": ""}):
        assert gpu_of(hidden) == "", "not there for CUDA either"


Answers = dict[str, Callable[..., Any]]


def refuse(code: int) -> Callable[..., Any]:
    def answer(*_: Any) -> Any:
        raise pynvml.NVMLError(code)

    return answer


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """NVML with two GPUs as numbers, which is loaded once. Its answers may be replaced."""
    names = {"GPU-aa": 0, "GPU-bb": 1}

    def by_index(index: int) -> int:
        return index if index in (0, 1) else refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)()

    answers: Answers = {
        "nvmlInit": iter([None]).__next__,
        "nvmlDeviceGetHandleByIndex": by_index,
        "nvmlDeviceGetHandleByUUID": lambda name: names[name],
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=[87, 3][gpu], memory=50),
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=[60 << 30, 1 << 30][gpu], total=80 << 30),
        "nvmlDeviceGetTemperature": lambda gpu, sensor: {pynvml.NVML_TEMPERATURE_GPU: [71, 40][gpu]}[sensor],
        "nvmlDeviceGetPowerUsage": lambda gpu: [612_345, 70_000][gpu],
    }
    for name in answers:
        monkeypatch.setattr(pynvml, name, lambda *words, name=name: answers[name](*words))
    usage._has_driver.cache_clear()
    yield answers
    usage._has_driver.cache_clear()


FIELDS = ("gpu_percent", "gpu_memory_bytes", "gpu_memory_total_bytes", "gpu_celsius", "gpu_watts")
BUSY = dict(zip(FIELDS, (87.0, 60 << 30, 80 << 30, 71.0, 612.345), strict=True))
MISSING = {
    "UtilizationRates": (pynvml.NVML_ERROR_NOT_SUPPORTED, ["gpu_percent"]),  # a part of a GPU (MIG)
    "PowerUsage": (pynvml.NVML_ERROR_NOT_SUPPORTED, ["gpu_watts"]),  # a virtual one
    "Temperature": (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, ["gpu_celsius"]),  # an old driver
    "MemoryInfo": (pynvml.NVML_ERROR_UNKNOWN, ["gpu_memory_bytes", "gpu_memory_total_bytes"]),
}


def test_it_is_found_by_index_and_by_uuid_and_what_is_not_told_is_unknown(card: Answers) -> None:
    assert gpu_usage("0") == gpu_usage("GPU-aa") == BUSY
    other = dict(zip(FIELDS, (3.0, 1 << 30, 80 << 30, 40.0, 70.0), strict=True))
    assert gpu_usage("1") == gpu_usage("GPU-bb") == other
    answers = dict(card)
    for question, (code, unknown) in MISSING.items():
        card.update({**answers, f"nvmlDeviceGet{question}": refuse(code)})
        assert gpu_usage("0") == {**BUSY, **dict.fromkeys(unknown)}, question


def test_where_there_is_no_gpu_or_no_driver_nothing_is_known(card: Answers) -> None:
    card["nvmlDeviceGetHandleByUUID"] = refuse(pynvml.NVML_ERROR_NOT_FOUND)
    assert gpu_usage("GPU-cc") == gpu_usage("7") == gpu_usage("") == {}
    usage._has_driver.cache_clear()
    card["nvmlInit"] = refuse(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert gpu_usage("0") == {}
