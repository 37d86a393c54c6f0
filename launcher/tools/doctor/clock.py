"""Whether the clock is right: certificates, lock files and the logs of several nodes depend on it."""

from __future__ import annotations

import ctypes
import sys
import time
from datetime import datetime
from pathlib import Path

from launcher.core.check_result import CheckResult

SYNC = "run timedatectl set-ntp true, or chronyd"
WATCH_S, MOST_DRIFT = 0.2, 0.02
_UNSYNCED, _ERROR = 0x40, 5


def check() -> list[CheckResult]:
    wall, steady = time.time(), time.monotonic()
    time.sleep(WATCH_S)
    return [
        check_clock(
            time.time(), time.time() - wall, time.monotonic() - steady, Path(__file__).stat().st_mtime, _synced()
        )
    ]


def check_clock(now: float, wall_s: float, steady_s: float, installed: float, synced: bool | None) -> CheckResult:
    """`now`: the clock; `installed`: when rlrun was installed; `wall_s`, `steady_s`: the same span on the clock and
    on the monotonic one; `synced`: None where the system does not report it."""
    shown = datetime.fromtimestamp(now).astimezone().isoformat(timespec="seconds")
    if now < installed - 60:
        return CheckResult("FAIL", "clock", f"is wrong: {shown} is before rlrun was installed", SYNC)
    if abs(wall_s - steady_s) > MOST_DRIFT:
        return CheckResult("WARN", "clock", f"jumped by {wall_s - steady_s:+.2f} s while it was checked", SYNC)
    if synced is False:
        return CheckResult("WARN", "clock", f"{shown}; no time server keeps it", SYNC)
    return CheckResult("OK", "clock", shown + (", kept by a time server" if synced else ""))


def _synced() -> bool | None:
    """Whether the kernel's clock is synchronised (adjtimex(2), read only)."""
    if sys.platform != "linux":
        return None
    told = ctypes.create_string_buffer(256)  # struct timex, `modes` 0 only reads
    state = ctypes.CDLL(None).adjtimex(told)
    status = ctypes.c_int.from_buffer(told, _STATUS).value
    return None if state < 0 else state != _ERROR and not status & _UNSYNCED


_LONG = ctypes.sizeof(ctypes.c_long)
_STATUS = 5 * _LONG  # after `modes` (an int, padded) and the longs offset, freq, maxerror, esterror
