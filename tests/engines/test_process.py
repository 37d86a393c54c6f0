"""How a process of a run ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.core.events import Crashed
from launcher.spec.engine import marked_events

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
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    events = [event for line in ran.stdout.splitlines() for event in marked_events(line)]
    assert ran.returncode == code and [getattr(event, "lines", None) for event in events] == (
        [crash.lines] if crash else []
    )
    assert (crash is None) == ("Traceback" not in ran.stderr)


FULL = """
import os, sys, threading
from launcher.core.events import Phase
from launcher.engines import process
log = os.open("/dev/full", os.O_WRONLY)
os.environ["RLRUN_EVENT_LOG"] = str(log)
process.set_up(lambda number, frame: print("asked to stop"))
def room():
    while not process.event_log().disk_full:
        pass
    {then}
threading.Thread(target=room).start()
process.emit(Phase(name="saving"))
print("goes on")
"""


@pytest.mark.parametrize(
    ("then", "output", "kept"),
    [
        ("os.dup2(os.open('room', os.O_WRONLY | os.O_CREAT, 0o600), log)", "goes on\n", True),
        ("os.kill(os.getpid(), 15)", "asked to stop\ngoes on\n", False),
    ],
    ids=["until there is room", "until it is asked to stop"],
)
def test_it_waits_while_the_disk_is_full(tmp_path: Path, then: str, output: str, kept: bool) -> None:
    script = FULL.replace("{then}", then)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert ran.stdout == output
    assert kept == ((tmp_path / "room").exists() and '"kind":"Phase"' in (tmp_path / "room").read_text())
