"""Other processes are out of reach by every call that could signal them, and a process cannot outlive its parent."""

from __future__ import annotations

import pytest

from launcher.rewards.code import Code
from launcher.sandbox import confine

pytestmark = pytest.mark.skipif(bool(confine.missing()), reason="this system has no sandbox")
SHELL = """
import ctypes, fcntl, os, struct, threading
try:
    {}
except OSError as error:
    print(type(error).__name__)
"""
REWARD = Code(workers=1)


@pytest.mark.parametrize(
    ("does", "printed"),
    [
        # the kernel would send the signal, when the descriptor is ready
        ("fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())", "PermissionError\n"),
        ("fcntl.fcntl(0, fcntl.F_SETSIG, 9)", "PermissionError\n"),
        ("fcntl.fcntl(0, 15, struct.pack('ii', 1, os.getppid()))", "PermissionError\n"),  # F_SETOWN_EX
        ("fcntl.ioctl(0, 0x8901, struct.pack('i', os.getppid()))", "PermissionError\n"),  # FIOSETOWN
        ("fcntl.ioctl(0, 0x8902, struct.pack('i', os.getppid()))", "PermissionError\n"),  # SIOCSPGRP
        ("print(ctypes.CDLL(None).prctl(1, 0, 0, 0, 0))", "-1\n"),  # PR_SET_PDEATHSIG
        # what programs need of these calls
        ("print(fcntl.fcntl(0, fcntl.F_GETFD) >= 0, os.isatty(0))", "True False\n"),
        ("t = threading.Thread(target=print, args=['x']); t.start(); t.join()", "x\n"),
    ],
)
def test_calls_that_depend_on_what_they_are_asked(does: str, printed: str) -> None:
    (found,) = REWARD._pool.ask([{"code": SHELL.format(does), "inputs": [""], "all": True}], 30)
    assert found[0]["out"] == printed
