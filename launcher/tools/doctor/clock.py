"""Whether the clock tells the time: certificates, lock files and the logs of several nodes are read by it."""

from __future__ import annotations

import ctypes
import sys
import time
from datetime import datetime
from pathlib import Path

from launcher.core.check_result import CheckResult

SYNC = "timedatectl set-ntp true, or chronyd, would do"
WATCH_S, MOST_DRIFT = 0.2, 0.02
_UNSYNCED, _ERROR = 0x40, 5


def check() -> list[CheckResult]:
    wall, steady = time.time(), time.monotonic()
    time.sleep(WATCH_S)
    return [
        judged(time.time(), time.time() - wall, time.monotonic() - steady, Path(__file__).stat().st_mtime, _synced())
    ]


def judged(now: float, wall_s: float, steady_s: float, installed: float, synced: bool | None) -> CheckResult:
    """`now` is the clock, `installed` when rlrun's file was written by it; over the same span `wall_s` went by on it
    and `steady_s` on a clock that nobody sets; `synced` None: the system does not tell."""
    shown = datetime.fromtimestamp(now).astimezone().isoformat(timespec="seconds")
    if now < installed - 60:
        return CheckResult("FAIL", "clock", f"says {shown}, before rlrun was installed: it is wrong", SYNC)
    if abs(wall_s - steady_s) > MOST_DRIFT:
        return CheckResult("WARN", "clock", f"was set by {wall_s - steady_s:+.2f} s while it was looked at", SYNC)
    if synced is False:
        return CheckResult("WARN", "clock", f"{shown}; the system does not keep it by a time server", SYNC)
    return CheckResult("OK", "clock", shown + (", kept by a time server" if synced else ""))


def _synced() -> bool | None:
    """What the kernel was told by whoever keeps its clock (adjtimex(2)); nothing is changed by asking."""
    if sys.platform != "linux":
        return None
    told = ctypes.create_string_buffer(256)  # struct timex, whose `modes` of 0 asks only
    state = ctypes.CDLL(None).adjtimex(told)
    status = ctypes.c_int.from_buffer(told, _STATUS).value
    return None if state < 0 else state != _ERROR and not status & _UNSYNCED


_LONG = ctypes.sizeof(ctypes.c_long)
_STATUS = 5 * _LONG  # after `modes` (an int, padded) and the longs offset, freq, maxerror, esterror
