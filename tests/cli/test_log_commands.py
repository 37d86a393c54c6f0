"""`rlrun metrics` and `rlrun samples` of logs and runs, and `rlrun watch` of a log."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from launcher.cli.log_view import LogState
from launcher.cli.main import app
from launcher.cli.output import out
from launcher.core.events import LogProgress, Step, to_line
from launcher.core.problems import Problems
from launcher.views.read import find


def rlrun(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(app, list(arguments), prog_name="rlrun")
    return ran.exit_code, ran.output


def step_line(step: int) -> str:
    return (
        f"(TaskRunner pid=1) step:{step} - training/global_step:{step} - critic/score/mean:{-0.5 + step / 20} - "
        f"actor/entropy:{'nan' if step == 3 else 1 / step} - timing_s/step:{40 + step}\n"
    )


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "verl.log"
    text = "".join(step_line(step) for step in range(1, 21))
    path.write_text(text + "step:20 - val/test_score/openai/gsm8k:0.567\n")
    return str(path)


@pytest.fixture
def run_root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "p" / "r"
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text("")
    events = [Step(at=1.0, step=step, metrics={"critic/score/mean": step / 10}) for step in range(1, 6)]
    (folder / "events.jsonl").write_text("".join(to_line(event) + "\n" for event in events))
    return tmp_path / "runs"


def test_the_overview_has_first_last_best_and_a_curve(log):
    code, text = rlrun("metrics", log)
    rows = {line.split()[0]: line.split() for line in text.splitlines()[2:]}
    assert code == 0 and "to step 20" in text.splitlines()[0]
    assert rows["critic/score/mean"][:5] == ["critic/score/mean", "-0.45", "0.5", "0.5", "20"]
    assert set(rows["critic/score/mean"][-1]) <= set("▁▂▃▄▅▆▇█")
    assert "1 not finite" in text and "val/test_score/openai/gsm8k" in rows


def test_s0_03_and_s0_36_the_last_steps_with_chosen_metrics(log):
    """Document 000 greps for training/global_step, critic/score/mean and timing_s/step of the last 10."""
    code, text = rlrun("metrics", log, "--last", "10", "--keys", "training/global_step,critic/score/mean,timing_s/step")
    rows = [line.split() for line in text.splitlines()]
    assert code == 0 and rows[0] == ["step", "training/global_step", "critic/score/mean", "timing_s/step"]
    assert [row[0] for row in rows[1:]] == [str(step) for step in range(11, 21)]
    assert rows[-1] == ["20", "20", "0.5", "60"]
    code, text = rlrun("metrics", log, "--keys", "val/test_score/*", "--csv")
    assert code == 0 and text == "step,val/test_score/openai/gsm8k\n20,0.567\n"


def test_metrics_name_the_trainer_whose_steps_are_left_out(tmp_path):
    path = tmp_path / "two.log"
    path.write_text("".join(f"(TaskRunner pid={pid}) step:{step} - critic/score/mean:0.{pid}\n"
                            for step in (1, 2, 3) for pid in (1, 2)))  # fmt: skip
    text = rlrun("metrics", str(path), "--csv")[1]
    assert text.count("those of (TaskRunner pid=2) are left out") == 1


def test_what_is_neither_a_log_nor_a_run(run_root, tmp_path):
    for name in ("nothing", "x" * 5_000, "~nobody/log", "a\x00b"):
        with pytest.raises(Problems, match="no log file, and no run of that name"):
            find(name, run_root)
    empty = tmp_path / "empty.log"
    empty.write_text("nothing of worth\n")
    code, text = rlrun("metrics", str(empty))
    assert code == 2 and "no line with metrics" in text


def test_what_is_for_runs_alone_says_what_reads_a_log(log, run_root):
    for command in (["report", log], ["compare", log, "r"], ["track", log, "--to", "file"]):
        code, text = rlrun(*command, "--root", str(run_root))
        assert code == 2 and "a file, and no run; use the name of a run; rlrun watch, metrics, samples and" in text


def test_secrets_and_control_characters_of_a_log_are_not_printed(tmp_path):
    path = tmp_path / "a.log"
    secret = "hf_" + "a" * 34
    path.write_text(f"step:1 - {secret}:0.5 - evil\x07name:1.0\n")
    for more in ((), ("--csv",), ("--json",), ("--step", "1"), ("--last", "1")):
        text = rlrun("metrics", str(path), "--keys", "*", *more)[1]
        assert secret not in text and "\x07" not in text


SAMPLES = """[prompt] What is 1+1?
[response] It is {answer}.
[ground_truth] 2
[score] {score}
[prompt] What is 2+2?
[response] It is 4, surely.
[ground_truth] 4
[score] 1.0
step:{step} - critic/score/mean:0.5
"""


@pytest.fixture
def sampled(tmp_path: Path) -> str:
    path = tmp_path / "samples.log"
    path.write_text(SAMPLES.format(answer=3, score=0.0, step=10) + SAMPLES.format(answer=2, score=1.0, step=20))
    return str(path)


def test_samples_by_text_and_score_stand_side_by_side_by_prompt(sampled):
    code, text = rlrun("samples", sampled, "--max-score", "0.5")
    assert code == 0 and "It is 3." in text and "surely" not in text
    code, text = rlrun("samples", sampled, "--search", "1+1")
    assert text.count("What is 1+1?") == 1 and "It is 3." in text and "It is 2." in text
    assert [each["score"] for each in json.loads(rlrun("samples", sampled, "--search", "1+1", "--json")[1])] == [
        0.0,
        1.0,
    ]
    assert rlrun("samples", sampled, "--search", "nowhere")[0] == 2


def test_what_changed_between_two_steps(sampled):
    code, text = rlrun("samples", sampled, "--compare", "10", "20")
    assert code == 0 and "2 prompts of both steps: 1 better, 0 worse, 1 of equal score; 1 answers are the same" in text
    assert "It is [-3.-] {+2.+}" in text and text.index("1+1") < text.index("2+2")
    assert json.loads(rlrun("samples", sampled, "--compare", "10", "20", "--json")[1])[0]["score"] == [0.0, 1.0]


def test_a_logs_state_has_our_names_and_the_bars_time():
    state = LogState("a.log")
    state.see(Step(step=1, metrics={"reward": 0.25, "step_time": 30.0}))
    state.see(Step(step=2, metrics={"reward": 0.5, "loss": 0.1, "step_time": 30.0}))
    state.see(LogProgress(step=10, steps=40, elapsed_s=600.0))
    now = state.at(10_000.0, 5.0, counted=True)
    assert (now.step, now.steps, now.score, now.score_name) == (10, 40, 0.5, "critic/score/mean")
    assert now.started_at == 10_000.0 - 605.0 and now.metrics["train/loss"] == 0.1


def test_watching_a_log_draws_it_and_what_is_appended(log):
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    watching = subprocess.Popen(
        [sys.executable, "-m", "launcher", "watch", log], stdout=secondary, stdin=secondary, env=environment
    )
    try:
        assert "20/" in _read_until(primary, "20/")
        with Path(log).open("a") as file:
            file.write(step_line(21) + "\rTraining Progress:  50%|█ | 21/42 [1:00<1:00, 2.0s/it]")
        assert "21/42" in _read_until(primary, "21/42")
    finally:
        watching.terminate()
        watching.wait()
        os.close(primary)
        os.close(secondary)


def _read_until(terminal: int, wanted: str, patience_s: float = 120.0) -> str:
    text = ""
    while wanted not in text and select.select([terminal], [], [], patience_s)[0]:
        text += os.read(terminal, 65536).decode(errors="replace")
    return text


@pytest.fixture
def narrow(monkeypatch):
    """A terminal of 80 columns."""
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(out, "_width", 80)
    monkeypatch.setattr(out, "legacy_windows", False)


def test_numbers_and_steps_are_whole_on_80_columns(log, narrow):
    with Path(log).open("a") as file:
        file.write("step:12345 - response_length/mean:208.123456 - val-core/openai/gsm8k/reward/mean@1:-0.00012345\n")
    _, text = rlrun("metrics", log)
    rows = {line.split()[0]: line.split() for line in text.splitlines()[2:]}
    assert max(map(len, text.splitlines()[1:])) <= 80
    assert rows["critic/score/mean"][1:5] == ["-0.45", "0.5", "0.5", "20"]
    assert rows["response_length/mean"][1:3] == ["208.1", "208.1"]
    _, text = rlrun("metrics", log, "--last", "2")
    assert [line.split()[0] for line in text.splitlines() if line.strip()] == ["step", "20", "12345"]
    _, text = rlrun("metrics", log, "--last", "3", "--keys", "*")
    head, *rows = (line.split() for line in text.splitlines() if line.strip())
    assert head[:3] == ["3", "more", "metrics"] and [row[0] for row in rows] == ["step", "19", "20", "12345"]
    _, text = rlrun("metrics", log, "--step", "12345")
    assert "208.123456" in text and "-0.00012345" in text and max(map(len, text.splitlines())) <= 80
