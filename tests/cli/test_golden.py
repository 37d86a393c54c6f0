"""What programs read: the JSON of each command that looks at runs and logs, on a few runs of every kind.

`python tests/cli/test_golden.py` writes golden.json anew; its difference is what a change does to programs.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.resolve import resolve
from launcher.core.events import (
    Alert,
    Ended,
    Event,
    Loaded,
    Phase,
    Restarted,
    Sample,
    Saved,
    Started,
    Step,
    to_line,
)
from launcher.core.prompt_scores import held_out_scores, prompt_digest
from launcher.spec.stored import to_yaml

GOLDEN = Path(__file__).with_name("golden.json")
COMMANDS = (
    *(f"{look} {of} --json" for of in ("sft", "dpo", "grpo", "verl.log", "trl.log")
      for look in ("metrics", "diagnose")),
    "runs --json", "logs grpo --json", "metrics grpo --csv", "metrics grpo --step 3 --json",
    "metrics grpo --last 2 --keys reward,entropy --csv", "samples grpo --json", "samples grpo --compare 0 6 --json",
    "samples verl.log --json", "compare grpo again --json", "config diff grpo again --json",
)  # fmt: skip
HOSTILE = "\x1b[2J\x9b31m\u202e<b>=HYPERLINK()"


def life(algorithm: str, metrics: dict[str, Any], *, end: Event | None, seed: int = 0) -> Iterator[Event]:
    """Seven steps, of which two are done twice, with validations at the first and the last."""
    yield Started(at=1.0, run="p/r", algorithm=algorithm, processes=2)
    yield Loaded(at=2.0, rows=64, refused=1, val_rows=4, val_refused=0, steps_per_epoch=8, steps=6)
    yield Phase(at=2.5, name="rollout")
    for attempt, steps in ((1, range(6)), (2, range(4, 7))):
        for step in steps:
            found = {name: of(step) for name, of in metrics.items()}
            if step in (0, 6):
                scores = [float((step + number + seed) % 3 > 1) for number in range(4)]
                yield from (
                    Sample(at=3.0 + step, step=step, data_source="maths", prompt=f"{number} + 1 = ?",
                           response=f"{number + step} {HOSTILE if number == 3 else ''}", ground_truth="2", score=score)
                    for number, score in enumerate(scores)
                )  # fmt: skip
                prompts = [prompt_digest(f"{number} + 1 = ?", "2") for number in range(4)]
                scored = [("maths", *pair) for pair in zip(prompts, scores, strict=True)]
                yield from (replace(each, at=3.5 + step) for each in held_out_scores(step, scored))
                found |= {"val-core/maths/reward/mean@1": sum(scores) / 4}
            yield Step(at=4.0 + step + 10 * attempt, step=step, metrics={**found, "timing_s/step": 1.5})
        if attempt == 1:
            yield Alert(at=21.0, step=5, text=f"look {HOSTILE}", level="warn", rule="x", metric="actor/entropy")
            yield Restarted(at=22.0, step=3, attempt=2, cause="killed", why="rank 1 was killed")
    yield Saved(at=40.0, step=6, path="checkpoints/step_000006")
    if end:
        yield end


def make_folders(root: Path) -> None:
    """The runs p/sft, p/dpo, p/grpo, p/again and p/killed, and two logs, at fixed times."""
    grpo = {
        "critic/score/mean": lambda n: n / 10, "actor/entropy": lambda n: math.nan if n == 2 else 1 / (n + 1),
        "actor/pg_loss": lambda n: -0.1 * n, HOSTILE: float,
    }  # fmt: skip
    finished = Ended(at=50.0, how="finished")
    doubtful = Ended(at=50.0, how="finished", why="the score fell; use optim.lr=1e-6", following=("rerun", "seed=1"))
    runs = {
        "sft": ("sft", {"train/loss": lambda n: 3 - n / 4, "train/lr": lambda n: 1e-5}, finished),
        "dpo": (
            "dpo",
            {"rewards/accuracies": lambda n: 0.5 + n / 20, "actor/dpo_loss": lambda n: 0.7 - n / 50},
            finished,
        ),
        "grpo": ("grpo", grpo, doubtful),
        "again": ("grpo", grpo, finished),
        "killed": ("grpo", grpo, None),
    }
    for place, (name, (algorithm, metrics, end)) in enumerate(runs.items()):
        folder = root / "runs" / "p" / name
        folder.mkdir(parents=True)
        words = [f"algorithm={algorithm}", "model=tiny", "data=reverse", f"seed={int(name == 'again')}",
                 "trainer.project_name=p", f"trainer.experiment_name={name}"]  # fmt: skip
        (folder / "spec.yaml").write_text(to_yaml(resolve(words)))
        events = life(algorithm.upper(), metrics, end=end, seed=int(name == "again"))
        lines = (to_line(event, seq=seq, attempt=1) for seq, event in enumerate(events))
        (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        os.utime(folder / "events.jsonl", (1000 - place, 1000 - place))
    verl = "".join(
        f"(TaskRunner pid=1) step:{n} - critic/rewards/mean:{0.9 - n / 10} - actor/lr:1e-06\n" for n in range(1, 9)
    )
    verl += "[prompt] 1 + 1 = ?\n[response] 3\n[ground_truth] 2\n[score] 0.0\n"
    trl = "".join(f"{{'loss': {2 / n}, 'learning_rate': 1e-05, 'epoch': {n / 8}}}\n" for n in range(1, 9))
    trl += 'Traceback (most recent call last):\n  File "a.py", line 3\nRuntimeError: CUDA out of memory\n'
    for name, text in (("verl.log", verl), ("trl.log", trl)):
        (root / name).write_text(text)
        os.utime(root / name, (2000, 2000))


def answer(command: str) -> dict[str, Any]:
    ran = CliRunner().invoke(app, shlex.split(command), prog_name="rlrun")
    assert ran.exit_code in (0, 1) and not any(c in ran.stdout for c in "\x1b\x9b\u202e"), command
    whole = "--json" in command and not command.startswith("logs")
    no_constants = lambda name: pytest.fail(f"{name} is no JSON")
    printed = json.loads(ran.stdout, parse_constant=no_constants) if whole else ran.stdout.splitlines()
    if command.startswith("diagnose"):
        printed = [{name: value for name, value in alert.items() if name != "at"} for alert in printed]  # is now
    return {"exit code": ran.exit_code, "printed": printed}


@pytest.fixture(scope="session")
def canonical(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("canonical")
    make_folders(folder)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_programs_read_what_they_did(command: str, canonical: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(canonical)
    assert answer(command) == json.loads(GOLDEN.read_text())[command]


@pytest.mark.parametrize("run", ["sft", "dpo", "grpo", "killed", "again"])
def test_one_run_is_what_it_is_in_the_list(run: str, canonical: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(canonical)
    (state,) = (each for each in json.loads(GOLDEN.read_text())["runs --json"]["printed"] if each["run"] == f"p/{run}")
    assert answer(f"status {run} --json") == {"exit code": 0, "printed": state}
    assert answer(f"show {run} --json") == {"exit code": 0, "printed": state | {"attempts": []}}


if __name__ == "__main__":
    make_folders(Path(sys.argv[1]))
    os.chdir(sys.argv[1])
    GOLDEN.write_text(json.dumps({command: answer(command) for command in COMMANDS}, indent=1) + "\n")
