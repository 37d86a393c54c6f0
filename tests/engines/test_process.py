"""How a process of a run ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launcher.core.events import Crashed
from launcher.engines.torch import Torch

HANGS = """
import threading, time
from launcher.engines import process
def main():
    threading.Thread(target=time.sleep, args=(60,)).start()  # the interpreter would wait for it
    {body}
process.run_main(main)
"""


@pytest.mark.parametrize(
    ("body", "code", "crash"),
    [
        ("return 3", 3, None),
        ("raise ValueError('why')", 1, Crashed(lines=("ValueError: why",), cause="error")),
    ],
)
def test_it_waits_for_no_thread(body: str, code: int, crash: Crashed | None) -> None:
    script = HANGS.replace("{body}", body)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    told = [event for line in ran.stdout.splitlines() for event in Torch().reader().feed(line)]
    assert ran.returncode == code and [getattr(event, "lines", None) for event in told] == (
        [crash.lines] if crash else []
    )
    assert (crash is None) == ("Traceback" not in ran.stderr)
