"""Training against TRL, on this CPU: same model, rows, batch and lengths, both sides in turn.

    python benchmarks/train_vs_trl.py [--sizes tiny small] [--repeats 5] [--peer PYTHON]

Ends with 1 when a bound is missed. Each repetition runs the real command and then TRL's script (`trl_peer.py`).
CPU seconds are those of all threads. What a step costs is the median of a repetition's steps after the warm-up;
a figure is the median of the repetitions, and a ratio the median of the ratios of neighbouring runs, because other
work on the machine comes and goes. Tokens are real ones, without padding. The start is what the whole process tree
has spent when the first step is written down; the peak is its resident memory up to the last step, libraries counted
once for each process. On a busy machine two threads wait for one another while they spin, and neither side's
figures mean much: the share that others took stands beside each repetition, and `--threads 1` is steadier.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from peer_task import MAX_ANSWER, SIZES, write_model, write_rows
from rich.console import Console
from rich.table import Table
from watching import Watched, watch

from launcher.core.events import Step, events_of

RLRUN = (sys.executable, "-m", "launcher")
PEER = Path(__file__).with_name("trl_peer.py")
WARM_UP = 3  # steps
OTHERS = 0.1  # of the machine: with more, threads wait for one another, and that counts as CPU time
START, MEMORY = 0.8, 1.0  # at most this share of TRL's


@dataclass(frozen=True)
class Work:
    """One kind of training, as each side is told of it."""

    words: tuple[str, ...]
    arguments: Mapping[str, Any]
    bound: float  # at least this many times TRL's tokens a CPU second
    same_tokens: bool = True  # both read the same rows in the same order; sampled answers differ


WORKS = {
    "sft": Work(
        ("data.train_batch_size=8", "data.max_response_length=512", "trainer.micro_batch_size_per_gpu=8"),
        {"per_device_train_batch_size": 8},
        bound=1.5,
    ),
    "dpo": Work(
        ("data.train_batch_size=4", "data.max_response_length=512", "trainer.micro_batch_size_per_gpu=8",
         "algorithm.beta=0.1"),
        {"per_device_train_batch_size": 4},
        bound=1.5,
    ),
    "grpo": Work(
        ("data.train_batch_size=2", "sampler.n=8", f"data.max_response_length={MAX_ANSWER}",
         "trainer.micro_batch_size_per_gpu=16", "reward=gsm8k", "reward.method=flexible"),
        {"per_device_train_batch_size": 16, "max_completion_length": MAX_ANSWER},
        bound=2.0,
        same_tokens=False,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """One step, as the side itself tells of it."""

    cpu_s: float
    tokens: float
    answer: float  # tokens of an answer, in the mean


@dataclass(frozen=True)
class Seen:
    """One repetition of one side."""

    steps: Sequence[Taken]  # after the warm-up
    watched: Watched

    @property
    def speed(self) -> float:
        return median(step.tokens / step.cpu_s for step in self.steps)

    @property
    def answer(self) -> float:
        return sum(step.answer for step in self.steps) / len(self.steps)


# ---- the sides


class Bench:
    """What both sides share: a folder with the task, and how many steps to take."""

    def __init__(self, folder: Path, peer: str, threads: int) -> None:
        self.folder, self.peer, self.threads, self.runs = folder, peer, threads, 0

    def words(self, size: str, what: str, name: str, seed: int = 0) -> list[str]:
        steps = WARM_UP + SIZES[size].steps
        return [
            f"algorithm={what}", "model=hf", f"model.path={self.folder / size}", "data=files",
            f"data.train_files={self.folder / f'{what}.jsonl'}", "data.shuffle=false", "data.val_share=0",
            "hardware=cpu", "optim.lr=1e-9", f"seed={seed}",
            f"engine.num_threads={self.threads}", f"trainer.total_training_steps={steps}",
            "trainer.val_before_train=false", f"trainer.run_root={self.folder / 'runs'}",
            "trainer.project_name=bench", f"trainer.experiment_name={name}", *WORKS[what].words,
        ]  # fmt: skip

    def ours(self, size: str, what: str, seed: int) -> Seen:
        name, steps = self._next(), WARM_UP + SIZES[size].steps
        log = self.folder / "runs" / "bench" / name / "events.jsonl"
        command = [*RLRUN, "train", *self.words(size, what, name, seed)]
        watched = watch(command, log, b'"kind":"Step"', steps, self.folder / "said")
        metrics = [event.metrics for event in events_of(log) if isinstance(event, Step)]
        taken = [Taken(m["perf/cpu_s"], m["perf/total_num_tokens"], m["response_length/mean"]) for m in metrics]
        return Seen(taken[WARM_UP:], watched)

    def trl(self, size: str, what: str, seed: int) -> Seen:
        name, steps = self._next(), WARM_UP + SIZES[size].steps
        log, scratch = self.folder / f"{name}.jsonl", self.folder / "scratch"
        command = [
            self.peer, str(PEER), what, str(self.folder / size), str(self.folder / f"{what}.jsonl"), str(steps),
            str(log), str(scratch), str(self.threads), json.dumps({**WORKS[what].arguments, "seed": seed}),
        ]  # fmt: skip
        watched = watch(command, log, b'"cpu_s"', steps, self.folder / "said")
        taken = [Taken(**json.loads(line)) for line in log.read_text().splitlines()]
        return Seen(taken[WARM_UP:], watched)

    def _next(self) -> str:
        self.runs += 1
        return f"run-{self.runs}"


# ---- the table


def compared(size: str, what: str, pairs: Sequence[tuple[Seen, Seen]]) -> tuple[list[str], bool]:
    """A row of the table, and whether all its bounds are kept."""
    work = WORKS[what]
    if work.same_tokens:
        for ours, trl in pairs:
            told = [[step.tokens for step in side.steps] for side in (ours, trl)]
            assert told[0] == told[1], f"{what}: the sides do not read the same tokens: {told}"

    def cell(value: Callable[[Seen], float], form: str) -> str:
        return " / ".join(format(median(value(pair[side]) for pair in pairs), form) for side in (0, 1))

    def ratio(value: Callable[[Seen], float]) -> float:
        return median(value(ours) / value(trl) for ours, trl in pairs)

    speed, start, memory = ratio(lambda x: x.speed), ratio(lambda x: x.watched.start), ratio(lambda x: x.watched.peak)
    speeds = sorted(ours.speed / trl.speed for ours, trl in pairs)

    def judged(text: str, good: bool) -> str:
        return text if good else f"[red]{text}[/red]"

    kept = (speed >= work.bound, start <= START, memory <= MEMORY)
    cells = [
        size, what.upper(), cell(lambda x: x.speed, ",.0f"),
        judged(f"{speed:.2f}", kept[0]) + f" ({speeds[0]:.2f}–{speeds[-1]:.2f})", f"≥ {work.bound}",
        cell(lambda x: x.answer, ".1f"),
        f"{cell(lambda x: x.watched.start, '.1f')} = {judged(f'{start:.2f}', kept[1])}",
        f"{cell(lambda x: x.watched.peak, ',.0f')} = {judged(f'{memory:.2f}', kept[2])}",
    ]  # fmt: skip
    return cells, all(kept)


def machine(peer: str, threads: int) -> str:
    """Where this was measured, with which versions."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    packages = ("torch", "transformers")
    ask = (
        f"from importlib.metadata import version as v; print(*(n + ' ' + v(n) for n in {(*packages, 'trl')}), sep=', ')"
    )
    theirs = subprocess.run([peer, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    return (
        f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, {threads} threads a side, float32\n"
        f"ours: {', '.join(f'{name} {version(name)}' for name in ('rlrun', *packages))}\nTRL:  {theirs}"
    )


def main(arguments: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 150)
    table = Table(
        "size", "work", "tokens a CPU s", "ratio (range)", "bound", "answer tokens", f"CPU s to step 1, ≤ {START}",
        f"peak MiB, ≤ {MEMORY}", title=f"ours / TRL, medians of {arguments.repeats}",
    )  # fmt: skip
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.peer, arguments.threads)
        write_rows(bench.folder)
        for size in arguments.sizes:
            write_model(bench.folder / size, SIZES[size])
            for what in WORKS:
                pairs = []
                for number in range(arguments.repeats):
                    pairs.append((bench.ours(size, what, number), bench.trl(size, what, number)))
                    ours, trl = (f"{side.speed:,.0f}" for side in pairs[-1])
                    others = max(side.watched.others for side in pairs[-1])
                    output = f"{size} {what} {number + 1}: {ours} / {trl} tokens a CPU s; others took {others:.0%}"
                    console.print(output, style="red" if others > OTHERS else "dim")
                cells, good = compared(size, what, pairs)
                table.add_row(*cells)
                bad += not good
    console.print(table, machine(arguments.peer, arguments.threads), highlight=False)
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="training against TRL on this CPU")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", default=".venv-oracles/bin/python", help="a Python that has TRL")
    sys.exit(main(parser.parse_args()))
