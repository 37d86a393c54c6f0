"""What the commands say of logs that they can read only in part, or not at all, and of wrong arguments."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.log_view import LogState, see_new
from launcher.cli.main import app
from launcher.logs.sources import GrowingLog

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3\nRuntimeError: CUDA out of memory\n'


def rlrun(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(app, list(arguments), prog_name="rlrun")
    return ran.exit_code, ran.output


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "verl.log"
    path.write_text("".join(f"step:{step} - critic/score/mean:{step / 10} - actor/lr:1e-6\n" for step in range(3, 8)))
    return str(path)


def test_diagnose_does_not_call_a_log_healthy_that_it_cannot_read(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("nothing of worth\n")
    code, text = rlrun("diagnose", str(path), "--json")
    assert code == 2 and "no line with metrics" in text


def test_diagnose_names_the_error_that_ended_a_log_and_what_helps(log, tmp_path):
    with Path(log).open("a") as file:
        file.write(TRACEBACK)
    code, text = rlrun("diagnose", log)
    assert code == 1 and "critical at step 7" in text and "RuntimeError: CUDA out of memory" in text
    _, text = rlrun("diagnose", log, "--profile", "platform")
    assert "out-of-memory" in text and "cause: " in text
    assert "use: actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2" in text and "param_offload=true" in text
    sft, trl, other = (tmp_path / name for name in ("sft.log", "trl.log", "other.log"))
    sft.write_text("step:1 - train/loss:2.0 - train/lr:1e-5\n" + TRACEBACK)
    trl.write_text("{'loss': 1.0, 'learning_rate': 1e-5}\n" + TRACEBACK)
    other.write_text("Step 1/10 | Loss: 0.5\n" + TRACEBACK)
    assert "use: data.micro_batch_size_per_gpu=1" in rlrun("diagnose", str(sft))[1]
    assert "use: --per_device_train_batch_size 1" in rlrun("diagnose", str(trl))[1]
    assert "use: a smaller micro-batch" in rlrun("diagnose", str(other))[1]


def test_diagnose_names_the_expression_of_a_value_that_is_not_the_metric(tmp_path):
    path = tmp_path / "verl.log"
    path.write_text("".join(f"step:{step} - critic/rewards/mean:{0.9 - step / 10}\n" for step in range(5)))
    text = rlrun("diagnose", str(path), "--profile", "verl_grpo_gsm8k")[1]
    assert "critic/rewards/mean, falls_in_a_row(reward) is 3, bound 3: " in text


@pytest.mark.parametrize("more", [(), ("--csv",)])
def test_a_step_that_is_not_there_is_an_error_in_every_output(log, tmp_path, more):
    code, text = rlrun("metrics", log, "--step", "99", *more)
    assert code == 2 and "the steps are 3 to 7; use --step 7" in text
    assert rlrun("metrics", log, "--step", "3", "--last", "2", *more)[0] == 2
    empty = tmp_path / "empty.log"
    empty.write_text("")
    code, text = rlrun("metrics", str(empty), "--step", "0", *more)
    assert code == 2 and "no line with metrics" in text


LINES = "Step 1/2 | Loss: 0.5\nStep 2/2 | Loss: 0.4\n"


def test_a_log_from_standard_input():
    ran = CliRunner().invoke(app, ["metrics", "-", "--keys", "loss", "--csv"], input=LINES)
    assert ran.output == "step,Loss\n1,0.5\n2,0.4\n"
    assert CliRunner().invoke(app, ["diagnose", "-"], input=TRACEBACK).exit_code == 1


def test_a_pipe_that_a_shell_opened():
    """`rlrun metrics <(zcat a.log.gz)` names one."""
    reads, writes = os.pipe()
    os.write(writes, LINES.encode())
    os.close(writes)
    try:
        assert rlrun("metrics", f"/dev/fd/{reads}", "--csv")[1] == "step,Loss\n1,0.5\n2,0.4\n"
    finally:
        os.close(reads)


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.log")
    assert rlrun("metrics", str(tmp_path / "pipe.log"))[0] == 2


@pytest.mark.parametrize("command", ["metrics", "watch"])
def test_a_folder_of_logs_names_them(tmp_path, command):
    (tmp_path / "a.log").write_text(LINES)
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "trainer_state.json").write_text("{}")
    code, text = rlrun(command, str(tmp_path))
    assert code == 2 and f"use {tmp_path}/a.log or {tmp_path}/checkpoint-500/trainer_state.json" in text


@pytest.mark.parametrize("more", [("--csv",), ("--last", "2"), ("--json",), ("--step", "1"), ()])
def test_a_key_that_is_a_name_of_the_log_is_no_other_spelling(tmp_path, more):
    """S2-20 has policy_loss beside pg_loss, which are spellings of one metric where a log has only one of them."""
    path = tmp_path / "a.log"
    path.write_text("Step 1/2 | policy_loss: 0.75 | pg_loss: 0.5\nStep 2/2 | pg_loss: 0.5\n")
    text = rlrun("metrics", str(path), "--keys", "policy_loss", *more)[1]
    assert "0.75" in text and "0.5" not in text.replace("0.75", "")
    path.write_text("Step 1/2 | pg_loss: 0.5\n")
    assert "0.5" in rlrun("metrics", str(path), "--keys", "policy_loss", "--csv")[1]


def test_watch_shows_an_error_until_a_step_follows(log):
    reader, state = GrowingLog(Path(log), lambda: 5.0), LogState("verl.log")

    def alert() -> str:
        for event in reader.new():
            state.see(event)
        return state.at(9.0, 1.0, counted=False, error=reader.parser.error).alert

    assert alert() == ""
    with Path(log).open("a") as file:
        file.write(TRACEBACK)
    assert alert() == "an error, and no step after it: RuntimeError: CUDA out of memory"
    with Path(log).open("a") as file:
        file.write("step:8 - critic/score/mean:0.8\n")
    assert alert() == ""


def test_what_is_piped_in_and_cannot_be_read():
    ran = CliRunner().invoke(app, ["metrics", "-"], input=gzip.compress(b"step:1 - a:1\n"))
    assert ran.exit_code == 2 and "standard input: is compressed" in ran.output and "use zcat | rlrun" in ran.output


def test_watch_counts_no_step_of_prints_before_the_first_line(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("reward: 1.0\n" * 3)
    log, state = GrowingLog(path, lambda: 0.0), LogState("a.log")
    state, _ = see_new(state, log)
    with path.open("a") as file:
        file.write("{'loss': 0.5, 'grad_norm': 0.5}\n")
    state, _ = see_new(state, log)
    assert state.at(0.0, 0.0, counted=False).step == 1
