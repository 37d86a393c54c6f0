"""`make verl-runs`: verl 0.9.1 itself, trained through `rlrun train engine=verl` on this CPU.

Each case trains a few steps, and is looked at as a person would: steps and metrics, held-out scores and answers,
checkpoints that verify, the end state; then it goes on for two more steps from its newest checkpoint. `kill` ends
verl's main process by SIGKILL in the middle: the run must go on by itself. Two plugins of verl in tests/verl/plugins
make a platform and a rollout of the CPU; nothing of verl is changed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from launch_model import Model
from rich.console import Console
from rich.table import Table

from launcher.core import checkpoints
from launcher.core.events import Ended, Event, Restarted, Resumed, Sample, Step, events_of

ROOT = Path(__file__).parents[1]
PLUGINS = ROOT / "tests" / "verl" / "plugins"
SDPA = "override_config.attn_implementation=sdpa"
ONE_GPU = ["+ray_kwargs.ray_init.num_gpus=1", f"+actor_rollout_ref.model.{SDPA}"]
SCORED = ("reward=length", "reward.high=4")  # of 8 tokens: a score that a model without training varies in
PATIENCE_S = 1500
E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Case:
    """A training, what it is called, and what its metrics must have."""

    name: str
    words: Sequence[str]
    extra: Sequence[str] = field(default=tuple(ONE_GPU))
    metrics: Sequence[str] = ("critic/score/mean", "actor/pg_loss", "actor/grad_norm", "timing_s/step")
    steps: int = 3
    kill: bool = False


CASES = (
    Case("sft", ("algorithm=sft",), [f"+model.{SDPA}", "trainer.device=cpu"], ("train/loss", "train/grad_norm"), 6),
    Case("grpo", ("algorithm=grpo", "algorithm.kl_loss_coef=0.01", *SCORED)),
    Case("ppo", ("algorithm=ppo", *SCORED), [*ONE_GPU, f"+critic.model.{SDPA}"],
         ("critic/score/mean", "critic/vf_loss", "actor/pg_loss")),
    Case("dapo", ("algorithm=dapo", "algorithm.overlong_buffer_len=2", *SCORED)),
    Case("gspo", ("algorithm=gspo", "trainer.ppo_mini_batch_size=4", *SCORED)),
    Case("kill", ("algorithm=grpo", *SCORED), steps=8, kill=True),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="of the environment with verl")
    parser.add_argument("names", nargs="*", help="cases; all by default")
    given = parser.parse_args()
    chosen = [case for case in CASES if not given.names or case.name in given.names]
    table = Table("case", "steps", "metrics", "held out", "answers", "checkpoints", "end", "resumed to", "s", "")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="rlrun-verl-") as folder:
        Model(random=True).save(Path(folder) / "model")
        write_rows(Path(folder))
        for case in chosen:
            begin = time.monotonic()
            row, wrong = look(case, Path(folder), given.python)
            failed += bool(wrong)
            table.add_row(case.name, *row, f"{time.monotonic() - begin:.0f}", wrong or "pass")
    Console(width=140).print(table)
    return 1 if failed else 0


def write_rows(folder: Path) -> None:
    for name, numbers in (("train", range(32)), ("val", range(50, 58))):
        rows = [{"prompt": f"{n}+1=", "response": str(n + 1), "ground_truth": str(n + 1), "data_source": "sums"}
                for n in numbers]  # fmt: skip
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def words(case: Case, folder: Path, python: str) -> list[str]:
    env = {"PYTHONPATH": str(PLUGINS), "VERL_USE_EXTERNAL_MODULES": "verl_cpu_platform,verl_cpu_rollout",
           "VERL_ENGINE_DEVICE": "cuda"}  # fmt: skip
    sampled = [] if case.name == "sft" else ["sampler.name=hfcpu", "sampler.n=4"]
    return [
        f"model={folder}/model", "data=files", f"data.train_files=[{folder}/train.jsonl]",
        f"data.val_files=[{folder}/val.jsonl]", "data.train_batch_size=8", "data.max_prompt_length=64",
        "data.max_response_length=8", "engine=verl", f"engine.python={python}", "engine.strategy=fsdp2",
        f"engine.env={quoted(env)}", f"engine.extra=[{','.join(json.dumps(word) for word in case.extra)}]",
        "hardware=cpu", f"trainer.total_training_steps={case.steps}", "trainer.save_freq=2", "trainer.test_freq=2",
        f"trainer.experiment_name={case.name}", "optim.lr=0.001", *sampled, *case.words,
    ]  # fmt: skip


def quoted(values: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{name}:{json.dumps(value)}" for name, value in values.items()) + "}"


@dataclass(frozen=True)
class Seen:
    """What a run's folder shows."""

    events: Sequence[Event]
    sound: Sequence[int]
    """Steps of the checkpoints that verify."""

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def held_out(self) -> list[int]:
        return sorted({step.step for step in self.of(Step) if any(name.startswith("val") for name in step.metrics)})


def see(run: Path) -> Seen:
    saved = checkpoints.newest_first(run / "checkpoints")
    sound = [checkpoints.step_of(path) for path in saved if not checkpoints.faults(path)]
    return Seen([*events_of(run / "events.jsonl")] if (run / "events.jsonl").is_file() else [], sorted(sound))


def look(case: Case, folder: Path, python: str) -> tuple[list[str], str]:
    """The figures of one case, and what is wrong."""
    run = folder / "runs" / "rlrun" / case.name
    launched = begin(folder, "train", *words(case, folder, python))
    if case.kill:
        kill_verl(run, launched)
    code, seen = launched.wait(PATIENCE_S), see(run)
    resumed = begin(folder, "train", "--resume", case.name, f"trainer.total_training_steps={case.steps + 2}")
    codes, after = (code, resumed.wait(PATIENCE_S)), see(run)
    last = max((step.step for step in after.of(Step)), default=0)
    wrong = [f"exit codes {codes}"] if any(codes) else []
    wrong += find_faults(case, seen)
    wrong += [] if after.of(Resumed) and last == case.steps + 2 else ["not resumed"]
    if wrong:
        sys.stdout.write((folder / f"{case.name}.out").read_text(errors="replace")[-6000:])
    steps, names = seen.of(Step), {name for step in seen.of(Step) for name in step.metrics}
    row = [len({step.step for step in steps}), len(names), seen.held_out, len(seen.of(Sample)), seen.sound,
           [event.how for event in seen.of(Ended)], last]  # fmt: skip
    return [str(value).strip("[]") for value in row], "; ".join(wrong)


def find_faults(case: Case, seen: Seen) -> list[str]:
    """What a run of this case lacks at its end."""
    steps = seen.of(Step)
    lacking = [name for name in case.metrics if not any(name in step.metrics for step in steps)]
    whole = list(range(1 if case.name == "sft" else 0, case.steps + 1))
    sound = {
        f"no {', '.join(lacking)}": not lacking,
        "steps are missing": sorted({step.step for step in steps}) == whole,
        "the end is not checkpointed": case.steps in seen.sound,
        "no held-out score": seen.held_out,
        "no answers": case.name == "sft" or seen.of(Sample),
        "not restarted": not case.kill or seen.of(Restarted),
    }
    return [what for what, good in sound.items() if not good]


def begin(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """`rlrun` as a person calls it; what it prints goes to a file."""
    name = next(word.partition("=")[2] for word in [*arguments, f"x_name={arguments[-2]}"] if "_name=" in word)
    rlrun = shutil.which("rlrun") or str(Path(sys.executable).with_name("rlrun"))
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with (folder / f"{name}.out").open("ab") as output:
        return subprocess.Popen([rlrun, *arguments], cwd=folder, env=env, stdout=output, stderr=output)


def kill_verl(run: Path, launched: subprocess.Popen[bytes]) -> None:
    """End verl's main process by SIGKILL once a checkpoint is there and a step after it."""
    while launched.poll() is None:
        saved = checkpoints.newest_first(run / "checkpoints")
        if saved and (pid := main_process(run)):
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.2)


def main_process(run: Path) -> int | None:
    """The process that runs verl.trainer.main_ppo for this run, and no guard or driver of it."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if argv[1:4] == [b"-u", b"-m", b"verl.trainer.main_ppo"] and any(
                str(run).encode() in word for word in argv
            ):
                return int(entry.name)
    return None


if __name__ == "__main__":
    sys.exit(main())
