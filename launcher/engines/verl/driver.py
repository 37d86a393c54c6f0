"""`python -m launcher.engines.verl.driver RUN_FOLDER START_STEP COMMAND ...`: runs verl, and reports what it does.

verl's output goes to this process's own log. Its files (metrics, held-out answers, checkpoints) are polled, and events
are made of them and of the output. Exit codes: 0, 1 (failed), 2 (a user error), or 128 + the signal that asked it to
stop; verl cannot save on request, so the newest checkpoint is the last one of its schedule.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from launcher.core import checkpoints, machine
from launcher.core.events import Alert, Event, Loaded, Phase, Saved, Started, Step
from launcher.core.files import NewLines
from launcher.core.metrics import validation
from launcher.engines import process
from launcher.engines.verl import rows, saved, words
from launcher.engines.verl.reader import VerlReader
from launcher.spec.run import RunSpec
from launcher.spec.stored import read_run

GUARD = Path(__file__).with_name("guard.py")
LOOK_S = 0.2  # between two polls of verl's files
GROUPS = 25  # about how many steps of a run have their groups logged
BESIDE_GPUS, EACH_GPU = 12, 3
"""CPU cores that verl's processes reserve in Ray: for the queues that carry its batches and the process that drives it,
and for each GPU. With fewer it waits for ever."""

_signals: list[int] = []


def request_stop(number: int, _: object) -> None:
    _signals.append(number)


def main() -> int:
    folder, start, command = Path(sys.argv[1]).absolute(), int(sys.argv[2]), sys.argv[3:]
    process.set_up(request_stop)
    run = read_run(folder)
    if start == 0:
        name, algorithm = f"{folder.parent.name}/{folder.name}", type(run.algorithm).__name__
        process.emit(Started(run=name, algorithm=algorithm, processes=run.hardware.processes))
    else:  # emitted again: the log goes back to just before it
        process.emit(saved_event(start))
    process.emit(Phase(name="loading"))
    (folder / words.WORK).mkdir(mode=0o700, exist_ok=True)
    words.log_file(folder).unlink(missing_ok=True)
    train, val = rows.provide(run, folder)
    loaded = Loaded(  # before verl drops prompts that are too long
        rows=train, refused=0, val_rows=val, val_refused=0,
        steps_per_epoch=run.steps_per_epoch(train), steps=run.total_steps(train),
    )  # fmt: skip
    command = [*begun_epoch(run, folder, start, train, command), *cores(run)]
    return VerlRun(run, folder, start, command, loaded).follow()


def begun_epoch(run: RunSpec, folder: Path, start: int, train_rows: int, command: list[str]) -> list[str]:
    """The command; where SFT resumes at the end of an epoch, from a copy without the data loader's state. verl 0.9.1
    restores a loader without rows, so it skips the next epoch and exits with 0."""
    epoch_steps = run.steps_per_epoch(train_rows)
    if run.algorithm.sampled or not start or start % epoch_steps:
        return command
    key, resumed_copy = "trainer.resume_from_path=", folder / words.WORK / "resumed"
    return [f"{key}{saved.without_rows(word.removeprefix(key), resumed_copy)}" if word.startswith(key) else word
            for word in command]  # fmt: skip


def saved_event(step: int) -> Saved:
    return Saved(step=step, path=f"checkpoints/{checkpoints.name_of(step)}")


def cores(run: RunSpec) -> list[str]:
    """The argument that gives Ray enough cores, where this machine has fewer than verl reserves: they are only counted,
    and verl would wait for them without a message."""
    needed = BESIDE_GPUS + EACH_GPU * run.hardware.processes_per_node
    if not run.algorithm.sampled or run.cluster.remote_address or machine.cpu_count() >= needed:
        return []
    return [f"ray_kwargs.ray_init.num_cpus={needed}"]


class VerlRun:
    """verl's processes, started by a guard process that ends all of them with itself."""

    def __init__(self, run: RunSpec, folder: Path, start: int, command: Sequence[str], loaded: Loaded) -> None:
        self.run, self.folder = run, folder
        self._loaded = None if start else loaded
        """Reported at the beginning of a run, once verl has loaded everything."""
        self.reader = VerlReader(run.trainer.log_val_generations)
        self.reader.step = start
        self.reader.steps = loaded.steps
        self._metrics = NewLines(words.log_file(folder))
        self._answer_files: dict[Path, NewLines] = {}
        self._validation_metrics: dict[int, dict[str, float]] = {}
        self._not_kept = set[str]()
        """Messages on checkpoints that could not be kept; each is reported once."""
        self._started_at = time.time()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        print("verl:", *command, flush=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RLRUN_")}
        self._guard = subprocess.Popen(
            [sys.executable, str(GUARD), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=environment, cwd=folder / words.WORK,
        )  # fmt: skip
        assert self._guard.stdout
        threading.Thread(target=self._queue_lines, args=(self._guard.stdout,), daemon=True).start()

    def _queue_lines(self, output: IO[bytes]) -> None:
        """Lines end at a carriage return, too, as progress bars have no other end."""
        for raw in output:
            for part in raw.decode("utf-8", "replace").rstrip("\n").split("\r"):
                if part:
                    self._lines.put(part)
        self._lines.put(None)

    def follow(self) -> int:
        """Report events until verl has ended. Returns the exit code of this process."""
        stop_sent = False
        while self._guard.poll() is None:
            for event in self._new_events():
                process.emit(event)
            if _signals and not stop_sent:
                stop_sent = True
                self._guard.terminate()
            time.sleep(LOOK_S)
        for event in self._new_events(last=True):
            process.emit(event)
        code = self._guard.returncode
        if _signals:
            return 128 + _signals[0]
        if code < 0 and -code != signal.SIGABRT:  # killed: end likewise, so that it is known what happened
            signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
            os.kill(os.getpid(), -code)
        if crash := self.reader.end(code):
            process.emit(crash)
            return 1
        return 0

    def _new_events(self, *, last: bool = False) -> Iterator[Event]:
        """Answers come before the step of their validation, checkpoints after theirs: a run that goes back to the
        checkpoint of a step undoes what follows that step."""
        console, lines = list(self._console_events(last)), list(self._metrics.read(last=last))
        if self._loaded and (lines or self.reader.phase != "loading"):
            yield replace(self._loaded, at=time.time(), steps=self.reader.steps)
            self._loaded = None
        yield from console
        yield from self._new_answers()  # verl writes them before the metrics that were read above
        for line in lines:
            for event in self.reader.metrics(line):
                if isinstance(event, Step) and (measured := validation(event.metrics)):
                    self._validation_metrics[event.step] = dict(measured)
                    yield from self.reader.scores(event.step)
                yield event
            yield from self._new_checkpoints(False)  # before the next step, else going back to this one undoes it
        yield from self._new_groups(last)
        yield from self._new_checkpoints(last)

    def _console_events(self, last: bool) -> Iterator[Event]:
        while True:
            try:
                line = self._lines.get(timeout=5.0) if last else self._lines.get_nowait()
            except queue.Empty:
                return
            if line is None:
                return
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            yield from self.reader.console(line)

    def _new_answers(self) -> Iterator[Event]:
        paths = (self.folder / words.WORK / words.VALIDATION).glob("*.jsonl")
        for path in sorted(paths, key=lambda path: (len(path.name), path.name)):
            if path not in self._answer_files and path.stat().st_mtime < self._started_at:
                continue  # written by an earlier attempt
            for line in self._answer_files.setdefault(path, NewLines(path)).read():
                yield from self.reader.answer(line)

    def _new_groups(self, last: bool) -> Iterator[Event]:
        """Groups of the steps that are logged. verl writes all answers of each step; a step's file is complete when the
        next step is done. The files would fill the disk, so they are removed."""
        trainer, steps = self.run.trainer, self.reader.steps
        freq = trainer.log_groups_freq or -(-steps // GROUPS) or 1
        paths = (self.folder / words.WORK / words.TRAINING).glob("*.jsonl")
        for path in sorted(paths, key=lambda path: int(path.stem)):
            step = int(path.stem)
            if step >= self.reader.step and not last:
                continue
            if step in (1, steps) or step % freq == 0:
                with path.open(encoding="utf-8", errors="replace") as lines:
                    yield from self.reader.groups(step, lines, trainer.log_groups)
            path.unlink()

    def _new_checkpoints(self, last: bool) -> Iterator[Event]:
        """Checkpoints that verl lists as saved, once the metrics of their step are there: validation follows saving."""
        theirs, root = self.folder / words.WORK / words.SAVED, self.folder / "checkpoints"
        keep = (self.run.trainer.keep_last, self.run.trainer.keep_best, self.run.trainer.best_metric)
        newest = math.inf if last else min(saved.tracked(theirs) or 0, self.reader.step)
        for step, _ in reversed(saved.folders(theirs)):
            try:
                if step <= newest and saved.take_over(self.folder, step, self._validation_metrics.get(step)):
                    yield saved_event(step)
                    checkpoints.retain(root, *keep, root / checkpoints.name_of(step))
            except OSError as error:
                text = f"the checkpoint of step {step} could not be kept: {error}"
                if text not in self._not_kept:
                    self._not_kept.add(text)
                    yield Alert(step=step, text=text)


if __name__ == "__main__":
    process.run_main(main)
