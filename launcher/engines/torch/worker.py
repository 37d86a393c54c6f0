"""One training process: `python -m launcher.engines.torch.worker RUN_FOLDER START_STEP`.

Its environment holds its rank (RANK, WORLD_SIZE, LOCAL_RANK) and, for several, the rendezvous address. It reads the
run's spec.yaml, writes events to its log file or to standard output, and exits with 0, 1 (failed), 2 (a user error),
or 128 + the signal that asked it to stop.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

from launcher.core import activity
from launcher.core.events import Phase, Started, Waiting
from launcher.engines import process
from launcher.engines.torch import Torch
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.spec.run import RunSpec
from launcher.spec.stored import read_run

_signals: list[int] = []


def request_stop(number: int, _: object) -> None:
    """Save and end at the next step. Repeated signals are ignored, as a process group often gets the same one twice; to
    end at once, kill the process."""
    _signals.append(number)


def main() -> int:
    folder, start = Path(sys.argv[1]), int(sys.argv[2])
    process.set_up(request_stop)
    with activity.reported_to(_report):
        finished = train(read_run(folder), folder, start)
    return 0 if finished else 128 + (_signals[0] if _signals else signal.SIGTERM)


def train(run: RunSpec, folder: Path, start: int) -> bool:
    """Load everything, then train; False if a stop was requested."""
    rank = int(os.environ.get("RANK", "0"))
    emit = process.emit if rank == 0 else lambda event: None
    if not start:
        name, algorithm = f"{folder.parent.name}/{folder.name}", type(run.algorithm).__name__
        emit(Started(run=name, algorithm=algorithm, processes=run.hardware.processes))
        emit(Phase(name="loading"))

    if run.hardware.processes == 1 and run.hardware.is_cpu and isinstance(run.sampler, TorchSampler):
        from launcher.engines.torch import light_imports  # noqa: PLC0415  # late: torch takes seconds

        light_imports.leave_out_unused()
    gc.disable()  # importing makes no garbage, and looking for it would take a fifth of the time
    from launcher.engines.torch import assemble  # noqa: PLC0415  # late: torch takes seconds
    from launcher.engines.torch.parallel import world  # noqa: PLC0415  # late: torch takes seconds

    gc.freeze()
    gc.enable()
    device = assemble.select_device(run, run.engine.num_threads if isinstance(run.engine, Torch) else 0)
    world.init_distributed(device)
    if run.hardware.processes != world.SIZE:
        raise RuntimeError(f"{world.SIZE} processes meet, and the run has {run.hardware.processes}")
    sync = process.event_log().sync
    training = assemble.build_training(run, device, folder, start, emit, lambda: bool(_signals), sync)
    finished = training.train()
    training.answerer.close()
    world.destroy_distributed()
    return finished


def _report(text: str, for_s: float) -> None:
    if os.environ.get("RANK", "0") == "0":
        process.emit(Waiting(text=text, for_s=for_s))


if __name__ == "__main__":
    process.run_main(main)
