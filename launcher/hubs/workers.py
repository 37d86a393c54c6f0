"""Several files at once: threads that each bring one file after another, and all end together."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from launcher.core.problems import Problems, error_message
from launcher.hubs import transfer, web
from launcher.hubs.progress import Board, Watch
from launcher.hubs.repo import NetworkFaults
from launcher.hubs.transfer import Job, Stopped

LOOK_S = 0.1
END_S = 2.0  # a worker that waits for an answer ends later, and writes nothing any more


@dataclass
class _Work:
    """What the workers share: files that wait, hashes of those that are done, and what went wrong."""

    jobs: queue.SimpleQueue[Job] = field(default_factory=queue.SimpleQueue)
    hashes: dict[str, str] = field(default_factory=dict)
    refusals: list[Problems] = field(default_factory=list)

    def work(self) -> None:
        session = web.Session()
        with suppress(queue.Empty, Stopped):
            while True:
                job = self.jobs.get_nowait()
                try:
                    self.hashes[job.file.path] = transfer.bring(job, session)
                except (Problems, OSError) as error:
                    found = error if isinstance(error, Problems) else _of_disk(job, error)
                    self.refusals.append(found)
                    job.board.failed(job.file)


def _of_disk(job: Job, error: OSError) -> Problems:
    return Problems(
        [f"{job.folder / job.file.path}: {error_message(error)}; a folder that can be written, with room, would do"]
    )


def run(jobs: Sequence[Job], workers: int, watch: Watch, board: Board) -> dict[str, str]:
    """All jobs, several at once. However it ends, no thread writes afterwards."""
    shared = _Work()
    for job in jobs:
        shared.jobs.put(job)
    threads = [threading.Thread(target=shared.work, daemon=True) for _ in range(max(1, min(workers, len(jobs))))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(LOOK_S)
                watch(board.read())
    finally:
        board.stop()
        give_up = time.monotonic() + END_S
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(give_up - time.monotonic(), 0))
    if shared.refusals:
        lines = [line for found in shared.refusals for line in found.lines]
        raise (NetworkFaults if all(isinstance(found, NetworkFaults) for found in shared.refusals) else Problems)(lines)
    assert len(shared.hashes) == len(jobs), "a worker died of what it said above"
    return shared.hashes
