"""Runs a command and leaves nothing of it behind: `python guard.py COMMAND ...`.

Programs that start a Ray cluster leave its processes behind when they are killed, with their GPU memory. This process
adopts every orphan below it, and kills all that is left when the command has ended, when it is asked to end (SIGTERM),
or when its standard input ends: that is a pipe from its parent, so a parent that was killed counts, too. It exits as
the command did.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from launcher.sandbox.confine import adopt_orphans
from launcher.sandbox.keeper import end_descendants

GRACE_S = 10  # for the command to end after SIGTERM
END_S = 10.0  # for what is left to be killed


def main() -> int:
    adopt_orphans()
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
    end_descendants(END_S)
    return code


def _wait_for_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    exit_code = main()
    if exit_code < 0:  # end by the signal that ended the command, so that the parent sees it
        signal.signal(-exit_code, signal.SIG_DFL) if -exit_code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -exit_code)
    sys.exit(exit_code)
