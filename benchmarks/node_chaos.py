"""Kill parts of a run over two nodes: `python benchmarks/node_chaos.py [EACH] [SEED] [VICTIM...]`.

Two nodes on this machine (`nodes`), each with a Ray of its own; GRPO with one process on each. At a random moment one
of these gets SIGKILL: a training process, the Ray worker that started it, the process that speaks with Ray, a node's
raylet, the head, or `rlrun train` itself (which is resumed, as a person would). The run must go on to the same final
weights and the same metrics, each step once; the time from the kill to the next step that is told, the work that was
lost and is done again taken off, is the recovery. Ends with 1 where one run differs or took longer than PATIENCE_S.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from chaos import BEGIN, DATA, LEARNT, PROJECT, result_of
from nodes import RLRUN, Nodes, nodes
from rich.console import Console
from rich.table import Table

from launcher.core.events import Restarted, Step, events_of

PATIENCE_S = 60.0
LAST = 60
STEPS = ["trainer.total_training_steps=60", "trainer.save_freq=4", "trainer.test_freq=15", "data.train_batch_size=16"]
RUN = ["algorithm=grpo", "sampler.n=4", "optim.lr=1e-3", *BEGIN, *STEPS, *DATA, *PROJECT]
THERE = ["cluster=ray", "cluster.address=auto", "hardware.nnodes=2"]
Victim = Callable[[Nodes, psutil.Process], None]


@dataclass(frozen=True)
class Outcome:
    victim: str
    at_step: int
    equal: bool
    recovery_s: float
    restarts: int


def on(cluster: Nodes, number: int, mark: str) -> list[psutil.Process]:
    """Processes of a node's network whose command line holds `mark`."""
    told = subprocess.run(["ip", "netns", "pids", cluster.space(number)], capture_output=True, text=True, check=True)
    found = []
    for pid in map(int, told.stdout.split()):
        try:
            if mark in " ".join(psutil.Process(pid).cmdline()):
                found.append(psutil.Process(pid))
        except psutil.Error:
            continue
    return found


def _kill(cluster: Nodes, number: int, mark: str) -> None:
    """What a restart has not brought back yet is waited for: each kill is to hit something."""
    give_up = time.monotonic() + PATIENCE_S
    while not (found := on(cluster, number, mark)):
        assert time.monotonic() < give_up, f"node {number} runs no {mark}"
        time.sleep(0.05)
    for process in found:
        process.kill()


def _worker(cluster: Nodes, launcher: psutil.Process) -> None:
    _kill(cluster, random.randrange(2), "-m launcher.engines.torch.worker")


def _actor(cluster: Nodes, launcher: psutil.Process) -> None:
    _kill(cluster, random.randrange(2), "ray::Rank")


def _driver(cluster: Nodes, launcher: psutil.Process) -> None:
    _kill(cluster, 0, "-m launcher.clusters.ray.driver")


VICTIMS: dict[str, tuple[int, Victim]] = {
    "driver": (2, _driver),
    "worker": (2, _worker),
    "actor": (1, _actor),
    "raylet": (1, lambda cluster, _: cluster.kill_raylet(random.randrange(2))),
    "head": (1, lambda cluster, _: cluster.kill_head()),
    "launcher": (1, lambda _, launcher: launcher.kill()),
}
"""Of each, how many kills one round has."""


def _begin(cluster: Nodes, name: str, *words: str) -> subprocess.Popen[str]:
    typed = words or (*RUN, *THERE, f"trainer.experiment_name={name}")
    with Path(f"{name}.log").open("a") as log:
        return cluster.begin(0, [*RLRUN, "train", *typed], stdout=log, stderr=log)


def launcher_of(process: subprocess.Popen[str]) -> psutil.Process:
    """`rlrun` below what puts it on its node."""
    top = psutil.Process(process.pid)
    for one in [top, *top.children(recursive=True)]:
        with suppress(psutil.Error):  # it has just ended
            if "launcher" in one.cmdline():
                return one
    return top


def steps_told(folder: Path) -> list[tuple[int, float]]:
    return [(event.step, event.at) for event in events_of(folder / "events.jsonl") if isinstance(event, Step)]


def one(cluster: Nodes, victim: str, number: int, expected: tuple[list[str], str], rng: random.Random) -> Outcome:
    folder = Path("runs/chaos") / f"{victim}-{number}"
    process, after = _begin(cluster, folder.name), rng.randrange(2, LAST - 4)
    while process.poll() is None and not (folder.is_dir() and len(steps_told(folder)) > after):
        time.sleep(0.02)
    time.sleep(rng.uniform(0, 0.3))
    at_step, killed = max((step for step, _ in steps_told(folder)), default=0), time.time()
    VICTIMS[victim][1](cluster, launcher_of(process))
    code = process.wait()
    if victim == "launcher":
        code = _begin(cluster, folder.name, "--resume", str(folder)).wait()
    equal = code == 0 and result_of(folder, LAST) == expected
    restarts = sum(isinstance(event, Restarted) for event in events_of(folder / "events.jsonl"))
    again = [at for _, at in steps_told(folder) if at > killed + 1]
    return Outcome(victim, at_step, equal, min(again, default=time.time()) - killed, restarts)


def main(each: int, seed: int, victims: Sequence[str]) -> int:
    rng = random.Random(seed)
    random.seed(seed)
    table = Table("victim", "at step", "run", "recovery", "restarts", title=f"kill -9 on two nodes, seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        single = ["trainer.experiment_name=learnt"]
        subprocess.run([*RLRUN, "train", *LEARNT, *DATA, *PROJECT, *single], check=True, stdout=subprocess.DEVNULL)
        with nodes(2) as cluster:
            if _begin(cluster, "untouched").wait():
                raise SystemExit(Path("untouched.log").read_text()[-3000:])
            expected = result_of(Path("runs/chaos/untouched"), LAST)
            found = []
            for number in range(each):
                for victim, count in [(name, VICTIMS[name][0]) for name in victims]:
                    for turn in range(count):
                        cluster.whole(120)
                        found.append(one(cluster, victim, number * count + turn, expected, rng))
                        row = found[-1]
                        told = "equal" if row.equal else "[red]DIFFERS[/]"
                        print(row, flush=True)
                        table.add_row(victim, str(row.at_step), told, f"{row.recovery_s:.1f} s", str(row.restarts))
                        if not row.equal:
                            print(Path(f"{victim}-{number * count + turn}.log").read_text()[-3000:], file=sys.stderr)
        os.chdir("/")
    good = sum(row.equal for row in found)
    slow = [row for row in found if row.recovery_s > PATIENCE_S]
    Console().print(
        table, f"{good}/{len(found)} equal; recovery {median(row.recovery_s for row in found):.1f} s in the middle, "
        f"{max(row.recovery_s for row in found):.1f} s at most",
    )  # fmt: skip
    return 0 if good == len(found) and not slow else 1


if __name__ == "__main__":
    each, seed = [*sys.argv[1:3], *("1", "0")[len(sys.argv[1:3]) :]]
    sys.exit(main(int(each), int(seed), sys.argv[3:] or list(VICTIMS)))
