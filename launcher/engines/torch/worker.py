"""One training process: `python -m launcher.engines.torch.worker RUN_FOLDER START_STEP`.

Its environment names its rank (RANK, WORLD_SIZE, LOCAL_RANK) and, for several, where they meet. It reads the
run's spec.yaml, tells what happens in the log that it is given, or on standard output, and ends with 0, 1 (failed), 2
(something to mend), or 128 + the signal that asked it to stop.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from functools import cache
from pathlib import Path
from types import TracebackType

from launcher import checkpoints, machine
from launcher.clusters.local import LIFELINE, TOLD
from launcher.clusters.standing import STACK
from launcher.engines.torch import MARK, Torch
from launcher.events import Crashed, Event, Phase, Started, to_line
from launcher.files import Log
from launcher.problems import Problems
from launcher.spec.run import RunSpec
from launcher.spec.stored import from_yaml

_asked: list[int] = []


@cache
def _out() -> Log:
    """What tells events: a log of this process's own, where there is one. What we start has no business there."""
    if TOLD not in os.environ:
        return Log(1)
    descriptor = int(os.environ.pop(TOLD))
    os.set_inheritable(descriptor, False)
    return Log(descriptor)


def emit(event: Event) -> None:
    _out().append(MARK + to_line(event))


def ask(number: int, _: object) -> None:
    """Save and end at the next step. Who does not want to wait for that kills: a whole process group is often
    asked at once, so we may hear of one wish twice.
    """
    _asked.append(number)


def watch_parent() -> None:
    """End at once when the process that started us is gone: nobody would read what we say."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    if os.environ.get(LIFELINE):
        threading.Thread(target=watch, daemon=True).start()


def tell_stacks() -> None:
    """Where we stand, whenever we are asked by SIGUSR1."""
    if STACK in os.environ:
        descriptor = int(os.environ.pop(STACK))
        os.set_inheritable(descriptor, False)
        faulthandler.register(signal.SIGUSR1, file=descriptor, all_threads=True)


def last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An uncaught error as an event for people, and as a traceback for the log."""
    said = f"{kind.__name__}: {error}" if str(error) else kind.__name__
    lines = tuple(error.lines) if isinstance(error, Problems) else (said,)
    emit(Crashed(lines=lines, mendable=isinstance(error, Problems)))
    traceback.print_exception(kind, error, trace)


def main() -> int:
    folder, start = Path(sys.argv[1]), int(sys.argv[2])
    tell_stacks()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask)
    _out()
    watch_parent()
    sys.excepthook = last_words
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    run = from_yaml((folder / "spec.yaml").read_text(encoding="utf-8"))
    try:
        finished = train(run, folder, start)
    except Problems as problems:
        last_words(Problems, problems, None)
        return 2
    return 0 if finished else 128 + (_asked[0] if _asked else signal.SIGTERM)


def preload() -> None:
    """Load what every run needs, and touch no device."""
    gc.disable()  # importing makes no garbage, and looking for it would take a fifth of the time
    try:
        from launcher.engines.torch import assemble, decode, world  # noqa: F401, PLC0415  # late: torch takes seconds
    finally:
        gc.freeze()
        gc.enable()


def train(run: RunSpec, folder: Path, start: int) -> bool:
    """Load everything, then train; False when asked to stop."""
    rank, first = int(os.environ.get("RANK", "0")), start == 0
    tell = emit if rank == 0 else _nothing
    if first:
        tell(
            Started(
                run=f"{folder.parent.name}/{folder.name}",
                algorithm=type(run.algorithm).__name__,
                processes=run.hardware.processes,
            )
        )
        tell(Phase(name="loading"))

    preload()
    from launcher.engines.torch import assemble, world  # noqa: PLC0415  # late: torch takes seconds

    device = assemble.device(run, run.engine.num_threads if isinstance(run.engine, Torch) else 0)
    world.join(device)
    if run.hardware.processes != world.SIZE:
        raise RuntimeError(f"{world.SIZE} processes meet, and the run has {run.hardware.processes}")
    checkpoint = folder / "checkpoints" / checkpoints.name_of(start) if start else None
    parts = assemble.parts(run, device, checkpoint, folder / "refused.jsonl")
    if first:
        tell(assemble.loaded(parts))
    finished = assemble.training(run, parts, folder, start, tell, lambda: bool(_asked), _out().sync).go()
    parts.writer.close()
    world.leave()
    return finished


def _nothing(event: Event) -> None:
    """Only rank 0 tells."""


if __name__ == "__main__":
    ended = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        machine.wind_up()  # what torch's threads do while the interpreter is taken apart has aborted finished processes
        os._exit(ended)
    sys.exit(ended)
