"""One tracker of a run that trains, as a process: `python -m launcher.trackers.process NAME FOLDER`.

Standard input is a pipe that the launcher holds. Its end says that the run has ended, or that the launcher was killed:
the process sends what is left and exits, at most `FINISH_S` seconds later, even if a library hangs. Exit codes: 0
everything has arrived, 1 something has not, 2 it cannot work at all.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from pathlib import Path

from launcher.core.problems import Problems
from launcher.trackers.sending import Sender

FINISH_S = 15.0


def main(name: str, folder: str) -> int:
    ended = threading.Event()
    threading.Thread(target=_end_with, args=(ended,), daemon=True).start()
    say = partial(print, flush=True)
    try:
        sent = Sender(name, Path(folder), lambda: not ended.is_set(), say, pause=ended.wait).run()
    except Problems as problems:
        say("\n".join(problems.lines))
        return 2
    except OSError as error:  # a full disk, a folder that may not be written
        say(f"{name}: {error}")
        return 1
    say(f"{name}: {sent.steps} steps sent{f' to {sent.where}' if sent.where else ''}")
    return 1 if sent.failure else 0


def _end_with(ended: threading.Event) -> None:
    """Set `ended` at the end of standard input; exit the process FINISH_S seconds later, if it has not ended."""
    while os.read(0, 4096):
        pass
    ended.set()
    threading.Event().wait(FINISH_S)
    os._exit(1)


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads of a library may never end
