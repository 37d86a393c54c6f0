#!/usr/bin/env python3
"""Stands for the Python of verl's environment: `fake_verl.py -u -m verl.trainer.main_ppo key=value ...`.

It writes what verl 0.9.1 writes, where it writes it: console lines behind Ray's prefix, the file logger's JSONL,
held-out answers, checkpoints and their tracker. FAKE_VERL in the environment holds what goes wrong: fail=3 (an error in
step 3), kill=3 (killed in step 3), once=FILE (only where FILE is not there yet), half=4 (killed while it saves step 4),
empty=4 (the tracker is emptied as step 4 is saved), early=2 (ends with 0 after step 2), orphan=FILE (leaves a process
of a session of its own behind, whose id is in FILE), slow=S (seconds a step).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

ARGUMENTS = dict(word.lstrip("+").partition("=")[::2] for word in sys.argv[1:] if "=" in word and word[0] != "-")
WRONG = dict(part.partition("=")[::2] for part in os.environ.get("FAKE_VERL", "").split(",") if part)
PREFIX = "\x1b[36m(TaskRunnerV1 pid=77)\x1b[0m "
TOTAL, SAVE = int(ARGUMENTS["trainer.total_training_steps"]), int(ARGUMENTS["trainer.save_freq"])
ROOT = Path(ARGUMENTS["trainer.default_local_dir"])


def goes_wrong(what: str, step: int) -> bool:
    if WRONG.get(what) != str(step):
        return False
    if mark := WRONG.get("once"):
        if Path(mark).exists():
            return False
        Path(mark).touch()
    return True


def write_zip(path: Path, size: int = 1000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", os.urandom(size))


def save(step: int) -> None:
    print(f"{PREFIX}INFO:Saving checkpoint to {ROOT}/global_step_{step}", flush=True)
    folder = ROOT / f"global_step_{step}"
    for kind in ("model", "optim", "extra_state"):
        write_zip(folder / "actor" / f"{kind}_world_size_1_rank_0.pt")
        if kind == "model" and goes_wrong("half", step):
            os.kill(os.getpid(), signal.SIGKILL)
    (folder / "actor" / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    write_zip(folder / "data.pt")
    (ROOT / "latest_checkpointed_iteration.txt").write_text("" if goes_wrong("empty", step) else str(step))


def log(step: int, **more: float) -> None:
    """The answers of a validation before its metrics, as verl does."""
    if folder := ARGUMENTS.get("trainer.validation_data_dir"):
        Path(folder).mkdir(exist_ok=True)
        rows = [
            {"input": f"{n}+1=", "output": str(n + 1), "gts": str(n + 1), "score": 1.0, "step": step} for n in range(9)
        ]
        Path(folder, f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if folder := step and ARGUMENTS.get("trainer.rollout_data_dir"):
        Path(folder).mkdir(exist_ok=True)
        rows = [{"input": f"{n // 4}+1=", "output": str(n), "gts": str(n // 4 + 1), "score": float(n % 4 == 1),
                 "step": step, "uid": f"x{n // 4}_{n % 4}_0"} for n in range(32)]  # fmt: skip
        Path(folder, f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"critic/score/mean": step / 10, "actor/pg_loss": -0.5, "actor/perf/max_memory_allocated_gb": 1.5,
            "val-core/sums/acc/mean@1": step / 10, "a/name/nobody/has": 7.0, "timing_s/step": 0.1, **more}  # fmt: skip
    with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("ab") as file:
        file.write(json.dumps({"step": step, "data": data}).encode() + b"\n")
    print(f"{PREFIX}step:{step} - " + " - ".join(f"{name}:{value}" for name, value in data.items()), flush=True)


def main() -> None:
    if "verl.model_merger" in sys.argv:
        sys.exit("RuntimeError: nothing is merged here")
    if mark := WRONG.get("orphan"):
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path(mark).write_text(str(left.pid))
    begin = 0
    if ARGUMENTS["trainer.resume_mode"] == "resume_path":
        folder = Path(ARGUMENTS["trainer.resume_from_path"])
        assert (folder / "actor" / "model_world_size_1_rank_0.pt").is_file()
        begin = int(folder.name.removeprefix("global_step_"))
    print(f"{PREFIX}INFO:Total training steps: {TOTAL}", flush=True)
    if not begin:
        log(0)
    print(f"{PREFIX}Training Progress:   0%|          | {begin}/{TOTAL} [00:00<?, ?it/s]\r", end="", flush=True)
    for step in range(begin + 1, TOTAL + 1):
        time.sleep(float(WRONG.get("slow", "0")))
        if goes_wrong("fail", step):
            print(f"{PREFIX}Traceback (most recent call last):\n{PREFIX}  File \"x.py\", line 1, in f\n"
                  f"{PREFIX}ZeroDivisionError: division by zero", flush=True)  # fmt: skip
            sys.exit(1)
        if goes_wrong("kill", step):
            os.kill(os.getpid(), signal.SIGKILL)
        if step % SAVE == 0 or step == TOTAL:
            save(step)
        log(step)
        if goes_wrong("early", step):
            return


if __name__ == "__main__":
    main()
