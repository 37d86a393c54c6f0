"""Runs a command and leaves nothing of it behind: `python guard.py COMMAND ...`.

Programs that start a Ray cluster leave its processes behind when they are killed, with their GPU memory. This process
adopts every orphan below it (PR_SET_CHILD_SUBREAPER, prctl(2)), and kills all that is left when the command has ended,
when it is asked to end (SIGTERM), or when its standard input ends: that is a pipe from its parent, so a parent that was
killed counts, too. It exits as the command did.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 10  # for the command to end after SIGTERM
ROUNDS = 200  # rounds of killing, as a process may start others meanwhile


def main() -> int:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # later signals are ignored
        command.terminate()
        signal.alarm(GRACE_S)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, lambda *_: command.kill())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_wait_for_parent, daemon=True).start()
    code = command.wait()
    kill_all()
    return code


def _wait_for_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def kill_all() -> None:
    """Kill every process below this one, and wait for each."""
    for _ in range(ROUNDS):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.05)


if __name__ == "__main__":
    exit_code = main()
    if exit_code < 0:  # end by the signal that ended the command, so that the parent sees it
        signal.signal(-exit_code, signal.SIG_DFL) if -exit_code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -exit_code)
    sys.exit(exit_code)
