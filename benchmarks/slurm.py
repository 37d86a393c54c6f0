"""Runs in a real Slurm on this machine: `python benchmarks/slurm.py`.

The Slurm is one of `slurm_here`, made from nothing and ended with this. Every run must end with the events and the
final weights of a run that was never in a queue, byte for byte, times aside. Ends with 1 when one does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from chaos import result_of
from rich.console import Console
from rich.table import Table
from slurm_here import Here, missing, several, slurm

from launcher.core.checkpoints import newest_first
from launcher.core.events import Step, events_of

RLRUN = [sys.executable, "-m", "launcher"]
STEPS, LONG = 300, 2400
WORDS = [
    "algorithm=sft", "model=tiny", "data=reverse", "optim.lr=3e-3", "data.train_batch_size=32", "data.n_prompts=256",
    "data.n_demos=256", "data.n_val=32", "engine.num_threads=1", "trainer.project_name=slurm",
    f"trainer.total_training_steps={STEPS}", "trainer.save_freq=40",
]  # fmt: skip
TWO = ["hardware.nnodes=2"]
PATIENCE_S = 1200.0


@dataclass(frozen=True)
class Went:
    """What a case showed."""

    asked: str
    got: str
    ok: bool
    seconds: float


class Run:
    """A run that was handed over, and the command that follows it."""

    def __init__(self, here: Here, name: str, *words: str) -> None:
        self.here, self.folder, self.said = here, Path("runs/slurm") / name, Path(f"{name}.said")
        argv = [*RLRUN, "train", *WORDS, "cluster=slurm", f"trainer.experiment_name={name}", *words]
        with self.said.open("w") as output:
            self.process = subprocess.Popen(here.inside(argv), env=here.env, stdout=output, stderr=output)

    @property
    def step(self) -> int:
        told = events_of(self.folder / "events.jsonl")
        return max((event.step for event in told if isinstance(event, Step)), default=0)

    @property
    def starts(self) -> int:
        log = self.folder / "slurm" / "job.log"
        return log.read_text().count(" start ") if log.exists() else 0

    def at(self, step: int) -> None:
        self.until(lambda: self.step >= step, f"step {step}")

    def until(self, ready: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not ready():
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"{self.folder.name} never came to {what}:\n{self.said.read_text()[-3000:]}")
            time.sleep(0.1)

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def rlrun(self, *words: str) -> str:
        argv = self.here.inside([*RLRUN, *words])
        ran = subprocess.run(argv, env=self.here.env, capture_output=True, text=True, check=False)
        return f"{ran.stdout}{ran.stderr}".strip()


Expected = tuple[list[str], str]
Case = Callable[[Here, Expected], Went]


def _one_machine(name: str, *words: str, steps: int = STEPS) -> Expected:
    """What a run without a queue comes to."""
    argv = [*RLRUN, "train", *WORDS, f"trainer.experiment_name={name}", *words]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return result_of(Path("runs/slurm") / name, steps)


def _ended(run: Run, expected: Expected, starts: int, asked: str, began: float, steps: int = STEPS) -> Went:
    """`starts`: at least."""
    code = run.end()
    equal = code == 0 and result_of(run.folder, steps) == expected
    got = f"exit {code}, {run.starts} starts, {'equal' if equal else 'DIFFERS'}"
    return Went(asked, got, equal and run.starts >= starts, time.monotonic() - began)


def preempted(here: Here, expected: Expected) -> Went:
    began, run = time.monotonic(), Run(here, "preempted")
    run.at(100)
    here("sbatch", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap", "sleep 5")
    return _ended(run, expected, 2, "preempted by another job, saved, requeued by Slurm, resumed", began)


def out_of_time(here: Here, expected: Expected) -> Went:
    """Slurm looks at its clock twice a minute, so this run is longer than the others; on a slow machine it meets the
    limit more than once."""
    longer = f"trainer.total_training_steps={LONG}"
    expected = _one_machine("one-machine-longer", longer, steps=LONG)
    began, run = time.monotonic(), Run(here, "out-of-time", longer, "cluster.time=2", "cluster.save_s=110")
    return _ended(run, expected, 2, "its time limit is near: saved, requeued by the script, resumed", began, LONG)


def stopped(here: Here, expected: Expected) -> Went:
    began, run = time.monotonic(), Run(here, "stopped")
    run.at(100)
    output, code = run.rlrun("stop", str(run.folder)), run.end()
    saved = newest_first(run.folder / "checkpoints")[0].name
    ok = code == 143 and run.starts == 1 and saved == f"step_{run.step:06d}" and not here("squeue", "-h")
    again = subprocess.run(
        [*RLRUN, "train", "--resume", str(run.folder)], env=here.env, capture_output=True, check=False
    )
    equal = again.returncode == 0 and result_of(run.folder, STEPS) == expected
    got = f"{output.rpartition(': ')[2]}; exit {code}, {saved}; --resume {'equal' if equal else 'DIFFERS'}"
    return Went("rlrun stop, then --resume", got, ok and equal, time.monotonic() - began)


def over_two(here: Here, expected: Expected) -> Went:
    began = time.monotonic()
    run = Run(here, "over-two", *TWO)
    return _ended(run, expected, 1, "a Ray of two nodes in the allocation, brought up by the script", began)


def one_taken(here: Here, expected: Expected) -> Went:
    began, run = time.monotonic(), Run(here, "one-taken", *TWO)
    run.at(100)
    here("sbatch", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap", "sleep 5")
    return _ended(run, expected, 2, "one of its two nodes is taken by another job: saved, requeued, resumed", began)


CASES = (preempted, out_of_time, stopped)
SEVERAL = (over_two, one_taken)


def _went(cases: Sequence[Case], count: int) -> Iterator[Went]:
    """In a Slurm of so many nodes, against the same number of processes without Slurm."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        machines = stack.enter_context(several(count)) if count > 1 else []
        here = stack.enter_context(slurm(machines=machines))
        os.chdir(folder)
        stack.callback(os.chdir, "/")
        expected = _one_machine("one-machine", f"hardware.nproc_per_node={count}")
        for case in cases:
            yield case(here, expected)


def main() -> int:
    if lacking := missing():
        raise SystemExit(f"{', '.join(lacking)} missing; install slurmctld, slurmd, slurm-client and munge")
    table = Table("what happens", "what came of it", "", "s", title="runs in Slurm's queue")
    good = True
    for cases, count in ((CASES, 1), (SEVERAL, 2)):
        for went in _went(cases, count):
            good &= went.ok
            table.add_row(went.asked, went.got, "ok" if went.ok else "[red]FAILED[/]", f"{went.seconds:.0f}")
    Console(width=160).print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
