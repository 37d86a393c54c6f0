"""Kill a run with SIGKILL at random moments: `python benchmarks/chaos.py KILLS [SEED]`.

Every run must end with the events and the final weights of a run that was never touched, byte for byte, times and what
became of its processes aside. The victim is the launcher, the training process, or both; the moment is any in its life,
a moment of training, or the middle of writing a checkpoint. Where the launcher lives, the run must go on by itself and
end with 0; where it was killed, `--resume` goes on. Ends with 1 when one run differs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launcher.core.checkpoints import sha256
from launcher.core.events import LAUNCHER_EVENTS, Event, Restarted, Step, events_of
from launcher.core.metrics import TIMES

PROJECT = ["trainer.project_name=chaos", "engine.num_threads=1"]
DATA = ["data=reverse", "data.n_prompts=256", "data.n_demos=256", "data.n_val=32"]
LEARNT = [
    "algorithm=sft",
    "model=tiny",
    "optim.lr=3e-3",
    "data.train_batch_size=32",
    "trainer.total_training_steps=250",
]
BEGIN = ["model=hf", "model.path=runs/chaos/learnt"]  # a model that is sometimes right, so that there is a gradient
STEPS = ["trainer.total_training_steps=60", "trainer.save_freq=4", "trainer.test_freq=15"]
WORDS = ["algorithm=grpo", "sampler.n=8", "optim.lr=1e-3", *BEGIN, *STEPS, *DATA, *PROJECT]
RLRUN = [sys.executable, "-m", "launcher"]
MOMENTS, VICTIMS = ("any", "training", "saving"), ("launcher", "training process", "both")


@dataclass(frozen=True)
class Kill:
    moment: str
    victim: str
    at_step: int
    by_itself: bool
    """Whether the supervisor went on."""
    equal: bool
    lost_s: float
    """From the kill until a step was done that had not been done before."""
    seconds: float


def begin(name: str) -> subprocess.Popen[bytes]:
    words = [*RLRUN, "train", *WORDS, f"trainer.experiment_name={name}"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def without_times(event: Event) -> str:
    """An event as it must be again: the name and the clock taken off."""
    node = {"kind": type(event).__name__, **asdict(event), "at": 0, "run": ""}
    if isinstance(event, Step):
        node["metrics"] = {name: value for name, value in event.metrics.items() if not name.startswith(TIMES)}
    return json.dumps(node)


def result_of(folder: Path, step: int) -> tuple[list[str], str]:
    """What equal runs have equal: their events, and the weights after `step`."""
    weights = folder / "checkpoints" / f"step_{step:06d}" / "policy" / "model.safetensors"
    told = [event for event in events_of(folder / "events.jsonl") if not isinstance(event, LAUNCHER_EVENTS)]
    return [without_times(event) for event in told], sha256(weights)


def gradient_norms(log: Path) -> list[float]:
    return [event.metrics["actor/grad_norm"] for event in events_of(log) if isinstance(event, Step) and event.step]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not ready():
        time.sleep(0.001)


def wait_for_moment(
    moment: str, process: subprocess.Popen[bytes], folder: Path, life: float, rng: random.Random
) -> None:
    if moment == "any":
        time.sleep(rng.uniform(0, life))
        return
    after = rng.randrange(60)
    log = folder / "events.jsonl"
    wait_for(lambda: log.exists() and log.read_bytes().count(b'"kind":"Step"') > after, process)
    if moment == "saving":
        wait_for(lambda: any((folder / "checkpoints").glob(".*")), process)
        time.sleep(rng.uniform(0, 0.01))
    else:
        time.sleep(rng.uniform(0, 0.05))


def kill(process: subprocess.Popen[bytes], victim: str) -> None:
    """SIGKILL to processes of ours only: the one we started, and its children."""
    if process.poll() is not None:
        return
    pids = {"launcher": [process.pid], "training process": children(process.pid)}
    for pid in pids.get(victim, [process.pid, *children(process.pid)]):
        os.kill(pid, signal.SIGKILL)


def one(number: int, life: float, expected: tuple[list[str], str], rng: random.Random) -> Kill:
    moment, victim = MOMENTS[number % 3], VICTIMS[number // 3 % 3]
    folder, start = Path("runs/chaos") / f"kill-{number}", time.monotonic()
    process = begin(folder.name)
    wait_for_moment(moment, process, folder, life, rng)
    killed_at, step = time.time(), max(steps_of(folder), default=0)
    kill(process, victim)
    code = process.wait()
    equal = code == 0
    if victim != "training process" and code:
        again = ["--resume", str(folder)]
        if not (folder / "spec.yaml").exists():  # killed before there was anything to resume
            again = [*WORDS, f"trainer.experiment_name={folder.name}"]
        resumed = subprocess.run([*RLRUN, "train", *again], capture_output=True, check=False)
        equal = resumed.returncode == 0
        print(resumed.stderr.decode()[-2000:], end="", file=sys.stderr)
    by_itself = any(isinstance(event, Restarted) for event in events_of(folder / "events.jsonl"))
    lost_s = max(steps_of(folder).get(step + 1, killed_at) - killed_at, 0.0)
    equal = equal and result_of(folder, 60) == expected
    return Kill(moment, victim, step, by_itself, equal, lost_s, time.monotonic() - start)


def steps_of(folder: Path) -> dict[int, float]:
    """When each step was told."""
    return {event.step: event.at for event in events_of(folder / "events.jsonl") if isinstance(event, Step)}


def main(kills: int, seed: int) -> int:
    rng = random.Random(seed)
    columns = ("kill", "moment", "victim", "at step", "went on", "result", "lost s", "s")
    table = Table(*columns, title=f"kill -9 at random moments, seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        learnt = [*RLRUN, "train", *LEARNT, *DATA, *PROJECT, "trainer.experiment_name=learnt"]
        subprocess.run(learnt, check=True, stdout=subprocess.DEVNULL)
        start = time.monotonic()
        if begin("untouched").wait() != 0:
            raise SystemExit("the untouched run failed")
        norms = gradient_norms(Path("runs/chaos/untouched/events.jsonl"))
        if sum(norm > 0 for norm in norms) < len(norms) / 2:
            raise SystemExit("the untouched run learns nothing, so that equal weights would prove nothing")
        life, expected = time.monotonic() - start, result_of(Path("runs/chaos/untouched"), 60)
        found = [one(number, life, expected, rng) for number in range(kills)]
        os.chdir("/")
    for number, row in enumerate(found, 1):
        told = "equal" if row.equal else "[red]DIFFERS[/]"
        way = "by itself" if row.by_itself else "by --resume" if row.victim != "training process" else "was not hit"
        seconds = f"{row.lost_s:.1f}", f"{row.seconds:.1f}"
        table.add_row(str(number), row.moment, row.victim, str(row.at_step), way, told, *seconds)
    good = sum(row.equal for row in found)
    Console().print(table, f"{good}/{kills} equal to the untouched run: events and final weights, byte for byte")
    return 0 if good == kills else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
