"""The GPUs as the driver reports them; `nvidia-smi` tells more of a card's health and of its users."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from launcher.core import machine
from launcher.core.check_result import CheckResult

GB = 1 << 30
VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_USED = 0.1  # of a card's memory by others: a driver and a desktop take less


def check() -> list[CheckResult]:
    found = machine.query_gpus()
    return [_driver(found), *check_visible_devices(os.environ.get(VISIBLE), len(found.found)), *map(_card, found.found)]


def _driver(found: machine.Gpus) -> CheckResult:
    if found.trouble:
        fix = "use a driver and kernel module of one version: restart after an update"
        return CheckResult("FAIL", "gpus", f"the driver cannot be queried: {found.trouble}", fix)
    if found.found:
        return CheckResult("OK", "driver", f"{found.driver}, which supports CUDA up to {found.cuda}")
    for device in Path("/sys/bus/pci/devices").glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text() for name in ("vendor", "class"))
            if vendor.strip() == "0x10de" and kind.startswith("0x03"):  # a display or compute card of NVIDIA
                got = "this machine has an NVIDIA card and no driver"
                return CheckResult("FAIL", "gpus", got, "install NVIDIA's driver")
    return CheckResult("OK", "gpus", "none: only hardware=cpu runs here")


def check_visible_devices(value: str | None, count: int) -> list[CheckResult]:
    """GPUs that CUDA_VISIBLE_DEVICES hides: CUDA ignores everything from the first unknown entry on."""
    if value is None:
        return []
    if value.strip() in ("", "-1"):
        hidden = [CheckResult("WARN", VISIBLE, f"hides all GPUs, which are {count}", f"unset {VISIBLE}")]
        return hidden if count else []
    words = [part.strip() for part in value.split(",")]
    absent = [word for word in words if int(word) >= count] if all(map(str.isdigit, words)) else []
    if not absent:
        return [CheckResult("OK", VISIBLE, value)]
    fix = f"use {VISIBLE}={','.join(map(str, range(count)))}" if count else f"unset {VISIBLE}"
    return [CheckResult("FAIL", VISIBLE, f"names {', '.join(absent)}; this machine has {count}", fix)]


def _card(gpu: machine.Gpu) -> CheckResult:
    message = f"{gpu.name}, {gpu.free_bytes / GB:.1f} GB free of {gpu.memory_bytes / GB:.1f} GB"
    if gpu.free_bytes < (1 - MOST_USED) * gpu.memory_bytes:
        return CheckResult("WARN", f"gpu {gpu.index}", message, "end what nvidia-smi lists, or use another GPU")
    return CheckResult("OK", f"gpu {gpu.index}", message)
