"""How much of its time a run trains while parts of it are killed: `node_storm.py [SECONDS] [SEED] [EVERY]`.

GRPO over two nodes of this machine (`nodes`); every EVERY seconds (120) one part, drawn as often as `SHARE` says, gets
SIGKILL. What counts is the time of steps that are part of the run in the end, with their checkpoints; loading anew,
waiting, and steps that were done again do not. The time begins with the first step. Ends with 1 where that is less than
LEAST of it, or where the run did not go on by itself.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from chaos import BEGIN, DATA, LEARNT, PROJECT
from node_chaos import THERE, VICTIMS, launcher_of, steps_told
from nodes import RLRUN, Nodes, nodes
from rich.console import Console
from rich.table import Table

from launcher.core.events import Event, Loaded, Restarted, Step, events_of
from launcher.runs.store import RunReader

LEAST = 0.8
SHARE = {"driver": 2, "worker": 2, "raylet": 1, "head": 1}
STEPS = ["trainer.total_training_steps=100000", "trainer.save_freq=5", "data.train_batch_size=16"]
RUN = ["algorithm=grpo", "sampler.n=4", "optim.lr=1e-4", *BEGIN, *STEPS, *DATA, *PROJECT, *THERE]
NAME = "storm"
FOLDER = Path("runs/chaos") / NAME


def drawn(rng: random.Random, kills: int) -> list[str]:
    """As many of each as its share, in any order."""
    every = [name for name, share in SHARE.items() for _ in range(share)]
    row: list[str] = []
    while len(row) < kills:
        row += rng.sample(every, len(every))
    return row[:kills]


def counts_s(events: Sequence[Event]) -> float:
    """Seconds in which what is told at the end came about: from a step to the next of the same attempt, or where
    another begins, as long as its first step took itself."""
    seconds, before = 0.0, None
    for event in events:
        if isinstance(event, Restarted | Loaded):
            before = None
        elif isinstance(event, Step) and event.step:
            seconds += event.at - before if before is not None else event.metrics["timing_s/step"]
            before = event.at
    return seconds


Killed = list[tuple[str, float]]


def kill_parts(
    cluster: Nodes, process: subprocess.Popen[str], seconds: float, every_s: float, rng: random.Random
) -> Killed:
    """Kill until the time is over: what was killed, and how long until the run, begun again, told a step."""
    began, found, news = time.time(), Killed(), RunReader(FOLDER / "events.jsonl")
    for number, victim in enumerate(drawn(rng, int(seconds / every_s) - 1), 1):
        time.sleep(max(began + number * every_s - time.time(), 0))
        news.look()
        killed = time.time()
        VICTIMS[victim][1](cluster, launcher_of(process))
        _until_again(process, news, killed, killed + every_s - 1)
        if process.poll() is not None:
            break
        found.append((victim, time.time() - killed))
        print(f"{time.time() - began:6.1f} s  {victim} killed, a step told after {found[-1][1]:.1f} s", flush=True)
    time.sleep(max(began + seconds - time.time(), 0))
    return found


def _until_again(process: subprocess.Popen[str], news: RunReader, killed: float, give_up: float) -> None:
    """Until a step is told by an attempt that began after `killed`, or it is time for the next kill."""
    begun = False
    while process.poll() is None and time.time() < give_up:
        for logged in news.new():
            event = logged.event
            begun = begun or (isinstance(event, Restarted) and event.at > killed)
            if begun and isinstance(event, Step) and event.at > killed:
                return
        time.sleep(0.1)


def main(seconds: float, seed: int, every_s: float) -> int:
    random.seed(seed)  # which node is hit
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        subprocess.run(
            [*RLRUN, "train", *LEARNT, *DATA, *PROJECT, "trainer.experiment_name=learnt"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        with nodes(2) as cluster, Path("storm.log").open("w") as log:
            words = [*RLRUN, "train", *RUN, f"trainer.experiment_name={NAME}"]
            process = cluster.begin(0, words, stdout=log, stderr=log)
            while process.poll() is None and not (FOLDER.is_dir() and steps_told(FOLDER)):
                time.sleep(0.1)
            began = time.time()
            found = kill_parts(cluster, process, seconds, every_s, random.Random(seed))
            events, took, alive = list(events_of(FOLDER / "events.jsonl")), time.time() - began, process.poll() is None
            if alive:
                launcher_of(process).send_signal(signal.SIGTERM)
            process.wait()
        if not alive:
            print(Path("storm.log").read_text()[-3000:], file=sys.stderr)
        os.chdir("/")
    share = counts_s([event for event in events if event.at >= began]) / took
    table = Table(
        "killed", "times", "until a step", title=f"something killed every {every_s:g} s, {took / 60:.1f} minutes"
    )
    for victim, times in Counter(victim for victim, _ in found).items():
        table.add_row(victim, str(times), f"{median(s for name, s in found if name == victim):.1f} s")
    at = [event.at for event in events if isinstance(event, Step)]
    paces = [late - soon for soon, late in pairwise(at)]
    told = f"{share:.1%} of the time counts (at least {LEAST:.0%}); a step takes {1000 * median(paces):.0f} ms"
    Console().print(table, told)
    return 0 if share >= LEAST and alive else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, [*sys.argv[1:], *("1800", "0", "120")[len(sys.argv) - 1 :]])))
