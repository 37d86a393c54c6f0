"""The GPUs as NVML reports them, whatever CUDA_VISIBLE_DEVICES says: in use, throttled, faulty or hidden."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pynvml

from launcher.core import machine
from launcher.core.check_result import CheckResult

GB = 1 << 30
VISIBLE = "CUDA_VISIBLE_DEVICES"
SLOWED = {
    pynvml.nvmlClocksEventReasonHwSlowdown: "by its hardware",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "by heat",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "by heat",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "by its power supply",
}


@dataclass(frozen=True)
class NvmlGpu:
    """What NVML reports of one GPU beyond its memory; defaults stand for what it does not report."""

    uuid: str
    users: tuple[tuple[int, str, int], ...] = ()
    """Process, its name, and bytes of this GPU that it holds."""
    uncorrected: int = 0
    """Memory errors since the driver was loaded that could not be corrected."""
    remap: bool = False
    """Rows of memory wait for a reset to be replaced, or could not be."""
    slowed: str = ""
    persistent: bool = True
    """Persistence mode: without it each start waits for the driver to load."""


def check() -> list[CheckResult]:
    found = machine.query_gpus()
    try:
        cards = _cards(len(found.found)) if found.found else []
    except pynvml.NVMLError as error:
        fix = "run nvidia-smi for details; restart the machine"
        return [CheckResult("FAIL", "gpus", f"the driver does not answer: {error}", fix)]
    results = [_driver(found), *check_visible_devices(os.environ.get(VISIBLE), found, [card.uuid for card in cards])]
    for gpu, card in zip(found.found, cards, strict=True):
        results += check_card(gpu, card)
    return [result for result in results if result]


def _driver(found: machine.Gpus) -> CheckResult | None:
    if found.trouble:
        fix = "use a driver and kernel module of one version: restart after an update"
        return CheckResult("FAIL", "gpus", f"the driver cannot be queried: {found.trouble}", fix)
    if found.found:
        return CheckResult("OK", "driver", f"{found.driver}, which supports CUDA up to {found.cuda}")
    if _on_the_bus():
        return CheckResult("FAIL", "gpus", "this machine has an NVIDIA card and no driver", "install NVIDIA's driver")
    return CheckResult("OK", "gpus", "none: only hardware=cpu runs here")


def _on_the_bus() -> bool:
    """Whether a display or compute card of NVIDIA (PCI vendor 10de, class 03) is there."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text() for name in ("vendor", "class"))
            if vendor.strip() == "0x10de" and kind.startswith("0x03"):
                return True
    return False


def check_visible_devices(value: str | None, found: machine.Gpus, uuids: list[str]) -> list[CheckResult]:
    """GPUs that CUDA_VISIBLE_DEVICES hides: CUDA ignores everything from the first unknown entry on."""
    if value is None:
        return []
    here = len(found.found)
    if value.strip() in ("", "-1"):
        message = f"hides {'all ' if here > 1 else ''}{here} GPU{'' if here == 1 else 's'}"
        return [CheckResult("WARN", VISIBLE, message, f"unset {VISIBLE}")] if here else []
    absent = [word for word in (part.strip() for part in value.split(",")) if not _known(word, here, uuids)]
    if not absent:
        return [CheckResult("OK", VISIBLE, value)]
    have = f"this machine has {here}, numbered from 0" if here else "this machine has none"
    fix = f"{VISIBLE}={','.join(map(str, range(here)))}" if here else f"unset {VISIBLE}"
    return [CheckResult("FAIL", VISIBLE, f"names {', '.join(absent)}; {have}", f"use {fix}")]


def _known(word: str, here: int, uuids: list[str]) -> bool:
    if word.startswith("MIG-"):
        return here > 0  # which parts a card is split into, only CUDA tells
    if word.isdigit():
        return int(word) < here
    return word.startswith("GPU-") and any(uuid.startswith(word) for uuid in uuids)


def check_card(gpu: machine.Gpu, card: NvmlGpu) -> list[CheckResult]:
    """One result for the card's memory and one for each fault."""
    what = f"gpu {gpu.index}"
    message = f"{gpu.name}, {gpu.free_bytes / GB:.1f} GB free of {gpu.memory_bytes / GB:.1f} GB"
    found = []
    if card.users:
        held = ", ".join(f"{name} (pid {pid}) {held / GB:.1f} GB" for pid, name, held in card.users)
        found.append(CheckResult("WARN", what, f"{message}; held by {held}", "end them, or use another GPU"))
    else:
        found.append(CheckResult("OK", what, message))
    if card.uncorrected:
        message = f"{card.uncorrected} uncorrectable memory errors since the driver was loaded"
        found.append(CheckResult("FAIL", what, message, "have the card reset, or use another"))
    if card.remap:
        message = "faulty memory rows wait to be remapped"
        found.append(CheckResult("WARN", what, message, "have the card reset"))
    if card.slowed:
        found.append(CheckResult("WARN", what, f"is throttled {card.slowed}", "check its cooling and power limit"))
    if not card.persistent:
        message = "persistence mode is off, so each start waits for the driver to load"
        found.append(CheckResult("WARN", what, message, "run nvidia-smi -pm 1 as root"))
    return found


def _cards(count: int) -> list[NvmlGpu]:
    """Raises `pynvml.NVMLError` where the driver does not answer."""
    pynvml.nvmlInit()
    try:
        return [_card(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    finally:
        pynvml.nvmlShutdown()


def _card(handle: object) -> NvmlGpu:
    users: tuple[tuple[int, str, int], ...] = ()
    errors, remap, reasons, persistent = 0, False, 0, True
    with suppress(pynvml.NVMLError):
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        users = tuple((one.pid, _name(one.pid), int(one.usedGpuMemory or 0)) for one in running)
    with suppress(pynvml.NVMLError):  # a card without ECC, as the next
        kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        errors = int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since))
    with suppress(pynvml.NVMLError):
        _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
        remap = bool(pending or failed)
    with suppress(pynvml.NVMLError):
        reasons = int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    with suppress(pynvml.NVMLError):
        persistent = bool(pynvml.nvmlDeviceGetPersistenceMode(handle))
    slowed = " and ".join(sorted({why for bit, why in SLOWED.items() if reasons & bit}))
    return NvmlGpu(pynvml.nvmlDeviceGetUUID(handle), users, errors, remap, slowed, persistent)


def _name(pid: int) -> str:
    """A container sees the numbers of its host's processes, but not the processes."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "a process"
