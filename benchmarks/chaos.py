"""Kill a run with SIGKILL at random moments: `python benchmarks/chaos.py KILLS [SEED [plain | agent [WORD...]]]`;
with `agent` one of episodes of several turns, with tools and credit by turn. Words are added to its settings.

Every run must end with the events and the final weights of a run that was never touched, byte for byte, except for
times, for what became of its processes, and for what vLLM rounds differently (`VARYING`). The victim is the launcher,
the training process, or both; the moment is any in its life, a moment of training, or the middle of writing a
checkpoint. Where the launcher lives, the run must go on by itself and end with 0; where it was killed, `--resume` goes
on. Ends with 1 when one run differs.
"""

from __future__ import annotations

import json
import os
import random
import re
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

VARYING = (*TIMES, "agent/tool_s/", "rollout_corr/", "training/rollout_")
"""Metrics that differ in equal runs: times, and what vLLM rounds differently in batches that depend on times."""

PROJECT = ["trainer.project_name=chaos", "engine.num_threads=1"]
DATA = ["data=reverse", "data.n_prompts=256", "data.n_demos=256", "data.n_val=32"]
LEARNT = ["algorithm=sft", "model=tiny", "data.train_batch_size=32", "trainer.total_training_steps=250", *DATA]
WORDS = ["algorithm=grpo", *DATA, "trainer.save_freq=4", "trainer.test_freq=15"]
MAILS = ["data=email_search", "data.n_mails=200", "data.n_prompts=256", "data.n_val=32"]
LEARNT_MAILS = [
    "algorithm=sft", "model=tiny-email", "data.train_batch_size=32", "trainer.total_training_steps=250", *MAILS,
    "trainer.micro_batch_size_per_gpu=32",
    "model.num_attention_heads=2", "model.num_key_value_heads=1",  # vLLM computes no heads of 16 on a CPU
]  # fmt: skip
AGENT = [
    "algorithm=turn_grpo", "environment=email_search", "environment.system_prompt=", "environment.max_turns=5",
    "data.train_batch_size=4", *MAILS, "trainer.save_freq=4", "trainer.test_freq=12",
    "trainer.micro_batch_size_per_gpu=32",
]  # fmt: skip
KINDS = {"plain": (60, LEARNT, WORDS), "agent": (24, LEARNT_MAILS, AGENT)}
"""Steps of a run, the words of the SFT before it, and its own."""
BEGIN = ["model=hf", "model.path=runs/chaos/learnt", "sampler.n=8", "optim.lr=1e-3"]
"""A model that is sometimes right, so that there is a gradient."""
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


def begin(words: list[str], name: str, errors: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    command = [*RLRUN, "train", *words, f"trainer.experiment_name={name}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


def without_times(event: Event) -> str:
    """An event as it must be again: the name and the clock taken off."""
    node = {"kind": type(event).__name__, **asdict(event), "at": 0, "run": ""}
    if isinstance(event, Step):
        node["metrics"] = {name: value for name, value in event.metrics.items() if not name.startswith(VARYING)}
    return re.sub(r'"seconds": [^,}]+', "", json.dumps(node))  # of calls of tools, and of validations


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
    moment: str, process: subprocess.Popen[bytes], folder: Path, life: float, steps: int, rng: random.Random
) -> None:
    if moment == "any":
        time.sleep(rng.uniform(0, life))
        return
    after = rng.randrange(steps)
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


def one(
    words: list[str], steps: int, number: int, life: float, expected: tuple[list[str], str], rng: random.Random
) -> Kill:
    moment, victim = MOMENTS[number % 3], VICTIMS[number // 3 % 3]
    folder, start = Path("runs/chaos") / f"kill-{number}", time.monotonic()
    process = begin(words, folder.name)
    wait_for_moment(moment, process, folder, life, steps, rng)
    killed_at, step = time.time(), max(steps_of(folder), default=0)
    kill(process, victim)
    code = process.wait()
    equal = code == 0
    if victim != "training process" and code:
        again = ["--resume", str(folder)]
        if not (folder / "spec.yaml").exists():  # killed before there was anything to resume
            again = [*words, f"trainer.experiment_name={folder.name}"]
        resumed = subprocess.run([*RLRUN, "train", *again], capture_output=True, check=False)
        equal = resumed.returncode == 0
        print(resumed.stderr.decode()[-2000:], end="", file=sys.stderr)
    by_itself = any(isinstance(event, Restarted) for event in events_of(folder / "events.jsonl"))
    lost_s = max(steps_of(folder).get(step + 1, killed_at) - killed_at, 0.0)
    equal = equal and result_of(folder, steps) == expected
    return Kill(moment, victim, step, by_itself, equal, lost_s, time.monotonic() - start)


def steps_of(folder: Path) -> dict[int, float]:
    """When each step was told."""
    return {event.step: event.at for event in events_of(folder / "events.jsonl") if isinstance(event, Step)}


def main(kills: int, seed: int, kind: str, more: list[str]) -> int:
    rng, (steps, sft, words) = random.Random(seed), KINDS[kind]
    words = [*words, *BEGIN, *PROJECT, f"trainer.total_training_steps={steps}", *more]
    columns = ("kill", "moment", "victim", "at step", "went on", "result", "lost s", "s")
    table = Table(*columns, title=f"kill -9 at random moments, {' '.join([kind, *more])}, seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        learnt = [*RLRUN, "train", *sft, *PROJECT, "optim.lr=3e-3", "trainer.experiment_name=learnt"]
        subprocess.run(learnt, check=True, stdout=subprocess.DEVNULL)
        start = time.monotonic()
        if begin(words, "untouched", None).wait():  # what it says of an error is shown
            raise SystemExit("the untouched run failed")
        norms = gradient_norms(Path("runs/chaos/untouched/events.jsonl"))
        if sum(norm > 0 for norm in norms) < len(norms) / 2:
            raise SystemExit("the untouched run learns nothing, so that equal weights would prove nothing")
        life, expected = time.monotonic() - start, result_of(Path("runs/chaos/untouched"), steps)
        found = [one(words, steps, number, life, expected, rng) for number in range(kills)]
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
    kills, seed, kind, *more = [*sys.argv[1:], *["20", "0", "plain"][len(sys.argv) - 1 :]]
    sys.exit(main(int(kills), int(seed), kind, more))
