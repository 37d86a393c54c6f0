"""`rlrun metrics`, `samples` and `diagnose` of logs and runs, also of logs that can be read only in part."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from launcher.cli.log_view import LogState, see_new
from launcher.cli.main import app
from launcher.cli.output import out
from launcher.core.events import Event, Loaded, Sample, Step, TrainingGroup, to_line
from launcher.core.problems import Problems
from launcher.logs.sources import GrowingLog
from launcher.views.findings import judge_of
from launcher.views.read import find

LINES = "Step 1/2 | Loss: 0.5\nStep 2/2 | Loss: 0.4\n"


def rlrun(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(app, list(arguments), prog_name="rlrun")
    return ran.exit_code, ran.output


def step_line(step: int) -> str:
    return (
        f"(TaskRunner pid=1) step:{step} - training/global_step:{step} - critic/score/mean:{-0.5 + step / 20} - "
        f"actor/entropy:{'nan' if step == 3 else 1 / step} - timing_s/step:{40 + step}\n"
    )


Log = Callable[[str], str]


@pytest.fixture
def log_of(tmp_path: Path) -> Log:
    """Writes a log with this text; its path."""

    def write(text: str) -> str:
        (tmp_path / "a.log").write_text(text)
        return str(tmp_path / "a.log")

    return write


@pytest.fixture
def log(log_of: Log) -> str:
    return log_of("".join(map(step_line, range(1, 21))) + "step:20 - val/test_score/openai/gsm8k:0.567\n")


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


def test_what_is_neither_a_log_nor_a_run(run_root, log_of):
    for name in ("nothing", "x" * 5_000, "~nobody/log", "a\x00b"):
        with pytest.raises(Problems, match="no log file, and no run of that name"):
            find(name, run_root)
    empty = log_of("nothing of worth\n")
    metrics = [["metrics", *options] for options in ([], ["--json"], ["--csv"], ["--last", "3"], ["--step", "1"])]
    for command in (*metrics, ["diagnose", "--json"], ["status"], ["report"]):  # what cannot be read is not healthy
        code, text = rlrun(*command, empty)
        assert code == 2 and "no line with metrics" in text


def test_what_is_for_runs_alone_says_what_reads_a_log(log, run_root):
    for command in (["logs", log], ["track", log, "--to", "file"]):
        code, text = rlrun(*command, "--root", str(run_root))
        assert code == 2 and "a file, and no run; use the name of a run; rlrun status, show, watch, metrics," in text


def test_a_log_has_a_status_and_a_report_as_a_run_has(log):
    code, text = rlrun("status", log, "--json")
    found = json.loads(text)
    assert code == 0 and (found["run"], found["step"], found["score"], found["last_at"]) == (log, 20, 0.5, 1010.0)
    assert found["last"]["value"] == 0.567 and found["status"] == "running"
    assert "step 20/?; 16:50; score 0.5; held out openai/gsm8k 0.567 at step 20" in rlrun("status", log)[1]
    code, text = rlrun("show", log)
    assert code == 0 and "score 0.5" in text and "1970" not in text and "attempt" not in text
    code, text = rlrun("report", log, "--json")
    found = json.loads(text)
    assert code == 0 and found["run"] == log and found["measured"]["value"] == 0.567
    page = Path(f"{log}.report.html").read_text()
    assert "<svg" in page and "openai/gsm8k" in page
    copy = Path(log).with_name("copy.html")
    code, text = rlrun("report", log, "--page", "--out", str(copy))
    assert code == 0 and text.endswith(f"wrote {copy}\n") and copy.read_text() == page


def test_a_log_that_tells_its_end_has_it_as_its_status(log_of):
    assert json.loads(rlrun("status", log_of(LINES), "--json")[1])["status"] == "finished"
    path = log_of('Step 1/9 | Loss: 0.5\nTraceback (most recent call last):\n  File "a"\nValueError: no\n')
    found = json.loads(rlrun("status", path, "--json")[1])
    assert found["status"] == "failed" and "ValueError: no" in found["why"]


def test_an_accuracy_of_ties_is_no_start_of_a_rise(log_of):
    """Before its first update DPO's policy is the reference: all margins are 0, and TRL's accuracy is 0."""
    records = [{"rewards/margins": step / 100, "rewards/accuracies": 0.6 * (step > 0)} for step in range(4)]
    rows = [records[0] | {"eval_" + name: value for name, value in records[0].items()}, *records[1:]]
    path = log_of("".join(f"{ {'loss': 0.69, 'step': step} | row }\n" for step, row in enumerate(rows)))
    found = json.loads(rlrun("status", path, "--json")[1])
    assert found["curve"]["points"] == [0.5, 0.6, 0.6, 0.6] and found["first"]["value"] == 0.5
    judge = judge_of(None, "trl")
    for step, row in enumerate(rows):
        judge.see(Step(at=0.0, step=step, metrics=row))
    assert judge.series["accuracy"].min == 0.5


def test_logs_and_runs_are_compared_as_different_settings(log, run_root, tmp_path):
    other = tmp_path / "other.log"
    other.write_text(Path(log).read_text().replace(":0.567", ":0.7"))
    code, text = rlrun("compare", log, str(other), "r", "--root", str(run_root), "--json")
    found = json.loads(text)
    assert code == 0 and found["runs"] == {"A": [log], "B": [str(other)], "C": ["p/r"]}
    assert found["settings"]["log"] == {"A": log, "B": str(other), "C": "-"}
    code, text = rlrun("compare", log, str(other))
    assert code == 0 and "+0.133 (0.7 and 0.567)" in text


def test_secrets_and_control_characters_of_a_log_are_not_printed(log_of):
    secret = "hf_" + "a" * 34
    path = log_of(f"step:1 - {secret}:0.5 - evil\x07name:1.0\n")
    for more in ((), ("--csv",), ("--json",), ("--step", "1"), ("--last", "1")):
        text = rlrun("metrics", path, "--keys", "*", *more)[1]
        assert secret not in text and "\x07" not in text


SAMPLES = """[prompt] What is 2+2?
[response] It is 4, surely.
[ground_truth] 4
[score] 1.0
[prompt] What is 1+1?
[response] It is {answer}.
[ground_truth] 2
[score] {score}
step:{step} - critic/score/mean:0.5
"""


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),  # shown in this order: of those compared what changed most comes first
    [
        ("--max-score 0.5", ["It is 3."], "surely"),
        ("--search 1+1", ["1+1", "It is 3.", "It is 2."], "surely"),
        ("--search nowhere", ["no such answer"], "surely"),
        ("--compare 10 20", ["2 prompts of both steps: 1 better, 0 worse, 1 of equal score; 1 answers are the same",
                             "1+1", "It is [-3.-] {+2.+}", "2+2", "surely"], "not scored"),
    ],
)  # fmt: skip
def test_samples_by_text_and_score_stand_side_by_side_by_prompt(words, shown, hidden, log_of):
    path = log_of(SAMPLES.format(answer=3, score=0.0, step=10) + SAMPLES.format(answer=2, score=1.0, step=20))
    code, text = rlrun("samples", path, *words.split())
    places = [text.find(part) for part in shown]
    assert code == 2 * ("nowhere" in words) and -1 not in places and places == sorted(places)
    assert hidden not in text and text.count("What is 1+1?") <= 1


@pytest.fixture
def groups(run_root: Path) -> Path:
    """Two groups of each of the steps 1, 20 and 40, in a run without held-out answers."""
    events = [
        TrainingGroup(
            at=1.0, step=step, group=group, data_source="sums", prompt=f"{group}+{group}=?",
            ground_truth=str(2 * group), responses=(f"It is {2 * group}.", f"\x9b31m\u202e{step}"),
            scores=(1.0, math.nan if step == 40 else 0.0),
            parts={"exact": (1.0, 0.0), "format": (0.5, 0.25)}, advantages=(0.7, -0.7),
        )
        for step in (1, 20, 40) for group in (1, 2)
    ]  # fmt: skip
    append(run_root, *events)
    return run_root


def append(run_root: Path, *events: Event) -> None:
    with (run_root / "p" / "r" / "events.jsonl").open("a") as log:
        log.writelines(to_line(event) + "\n" for event in events)


def test_groups_of_training_steps_stand_side_by_side(groups):
    of = ("--root", str(groups))
    code, text = rlrun("samples", "r", *of)  # the newest, where nothing is held out
    assert code == 0 and text.count("group 1  step 40") == text.count("group 2  step 40") == 2
    code, text = rlrun("samples", "r", *of, "--step", "20", "--group", "2")
    head = "group 2  step 20  score 1  advantage 0.7  exact 1  format 0.5"
    assert text.splitlines()[:4] == ["sums  ·  2+2=?", "ground truth 4", head, "  It is 4."]
    assert "1+1" not in text and "\x9b" not in text and "\u202e" not in text
    code, text = rlrun("samples", "r", *of, "--step", "20", "--group", "2", "--json")
    assert "\\u009b31m\\u202e20" in text and not {"\x9b", "\u202e"} & set(text)
    first, second = json.loads(text)
    assert (first["parts"], first["advantage"]) == ({"exact": 1.0, "format": 0.5}, 0.7) and second["score"] == 0.0
    code, text = rlrun("samples", "r", *of, "--compare", "1", "20")
    assert code == 0 and "2 prompts of both steps" in text and "step 1  score 0.5  →  step 20  score 0.5" in text
    assert "step 7: has no answers; use 1 or 20 or 40" in rlrun("samples", "r", *of, "--step", "7")[1]
    assert "no such answer" in rlrun("samples", "r", *of, "--group", "3")[1]


def test_held_out_answers_come_before_those_of_training(groups):
    append(groups, Sample(at=1.0, step=40, data_source="", prompt="3+3=?", response="6", ground_truth="6", score=None))
    assert "group" not in (text := rlrun("samples", "r", "--root", str(groups))[1]) and "not scored" in text
    assert "3+3" not in rlrun("samples", "r", "--root", str(groups), "--training")[1]
    assert "2 prompts of both" in rlrun("samples", "r", "--root", str(groups), "--compare", "20", "40")[1]


def test_a_run_without_answers_says_why(run_root):
    code, text = rlrun("samples", "r", "--root", str(run_root))
    assert code == 2 and "trainer.log_val_generations" in text and "verl" not in text
    append(run_root, Loaded(at=1.0, rows=2, refused=0, val_rows=0, val_refused=0, steps_per_epoch=1, steps=5))
    text = rlrun("samples", "r", "--root", str(run_root))[1]
    assert "no answers: no rows are held out; use data.val_files=FILE" in text


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
    assert rows["response_length/mean"][1:3] == ["208", "208"]
    _, text = rlrun("metrics", log, "--last", "2")
    assert [line.split()[0] for line in text.splitlines() if line.strip()] == ["step", "20", "12345"]
    _, text = rlrun("metrics", log, "--last", "3", "--keys", "*")
    head, *rows = (line.split() for line in text.splitlines() if line.strip())
    assert head[:3] == ["3", "more", "metrics"] and [row[0] for row in rows] == ["step", "19", "20", "12345"]
    _, text = rlrun("metrics", log, "--step", "12345")
    assert "208.123456" in text and "-0.00012345" in text and max(map(len, text.splitlines())) <= 80


# ---- logs that can be read only in part

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3\nRuntimeError: CUDA out of memory\n'


def test_diagnose_names_the_error_that_ended_a_log_and_what_helps(log, log_of):
    with Path(log).open("a") as file:
        file.write(TRACEBACK)
    code, text = rlrun("diagnose", log)
    assert code == 1 and "critical at step 20" in text and "RuntimeError: CUDA out of memory" in text
    _, text = rlrun("diagnose", log, "--profile", "platform")
    assert "out-of-memory" in text and "cause: " in text
    assert "use: actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2" in text and "param_offload=true" in text
    for line, use in (
        ("step:1 - train/loss:2.0 - train/lr:1e-5", "data.micro_batch_size_per_gpu=1"),
        ("{'loss': 1.0, 'learning_rate': 1e-5}", "--per_device_train_batch_size 1"),
        ("Step 1/10 | Loss: 0.5", "a smaller micro-batch"),
    ):
        assert f"use: {use}" in rlrun("diagnose", log_of(f"{line}\n{TRACEBACK}"))[1]


def test_diagnose_names_the_expression_of_a_value_that_is_not_the_metric(log_of):
    path = log_of("".join(f"step:{step} - critic/rewards/mean:{0.9 - step / 10}\n" for step in range(5)))
    text = rlrun("diagnose", path, "--profile", "verl_grpo_gsm8k")[1]
    assert "critic/rewards/mean, falls_in_a_row(reward) is 3, bound 3: " in text


@pytest.mark.parametrize("more", [(), ("--csv",)])
def test_a_step_that_is_not_there_is_an_error_in_every_output(log, log_of, more):
    code, text = rlrun("metrics", log, "--step", "99", *more)
    assert code == 2 and "the steps are 1 to 20; use --step 20" in text
    assert rlrun("metrics", log, "--step", "3", "--last", "2", *more)[0] == 2
    code, text = rlrun("metrics", log_of(""), "--step", "0", *more)
    assert code == 2 and "no line with metrics" in text


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


@pytest.mark.parametrize("command", ["metrics", "watch"])
def test_a_folder_of_logs_names_them(tmp_path, log_of, command):
    log_of(LINES)
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "trainer_state.json").write_text("{}")
    code, text = rlrun(command, str(tmp_path))
    assert code == 2 and f"use {tmp_path}/a.log or {tmp_path}/checkpoint-500/trainer_state.json" in text


@pytest.mark.parametrize("more", [("--csv",), ("--last", "2"), ("--json",), ("--step", "1"), ()])
def test_a_key_that_is_a_name_of_the_log_is_no_other_spelling(log_of, more):
    """S2-20 has policy_loss beside pg_loss, which are spellings of one metric where a log has only one of them."""
    path = log_of("Step 1/2 | policy_loss: 0.75 | pg_loss: 0.5\nStep 2/2 | pg_loss: 0.5\n")
    text = rlrun("metrics", path, "--keys", "policy_loss", *more)[1]
    assert "0.75" in text and "0.5" not in text.replace("0.75", "")
    assert "0.5" in rlrun("metrics", log_of("Step 1/2 | pg_loss: 0.5\n"), "--keys", "policy_loss", "--csv")[1]


def test_watch_shows_an_error_until_a_step_follows(tmp_path):
    log = tmp_path / "verl.log"
    log.write_text("step:20 - critic/score/mean:0.7\n")
    reader, state = GrowingLog(log, lambda: 5.0), LogState("verl.log")

    def alert() -> str:
        for event in reader.new():
            state.see(event)
        return state.at(9.0, 1.0, counted=False, error=reader.parser.error).alert

    assert alert() == ""
    with log.open("a") as file:
        file.write(TRACEBACK)
    assert alert() == "an error, and no step after it: RuntimeError: CUDA out of memory"
    with log.open("a") as file:
        file.write("step:21 - critic/score/mean:0.8\n")
    assert alert() == ""


def test_watch_counts_no_step_of_prints_before_the_first_line(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("reward: 1.0\n" * 3)
    log, state = GrowingLog(path, lambda: 0.0), LogState("a.log")
    state, _ = see_new(state, log)
    with path.open("a") as file:
        file.write("{'loss': 0.5, 'grad_norm': 0.5}\n")
    state, _ = see_new(state, log)
    assert state.at(0.0, 0.0, counted=False).step == 1
