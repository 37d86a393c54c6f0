"""Each form of log that is read (forms.yaml), with example lines of the documents (their items are cited as S...)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from launcher.core.events import LogProgress, Sample, Step
from launcher.core.problems import Problems
from launcher.logs.parser import LogParser
from launcher.logs.sources import open_log


def read(text: str | bytes) -> list:
    parser = LogParser()
    raw = text.encode() if isinstance(text, str) else text
    return [*parser.feed(raw), *parser.finish()]


def steps(text: str | bytes) -> list[tuple[int, dict[str, float]]]:
    return [(event.step, dict(event.metrics)) for event in read(text) if isinstance(event, Step)]


FORMS = yaml.safe_load((Path(__file__).parent / "forms.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("form", FORMS)
def test_the_steps_of_a_form(form: str):
    for row in FORMS[form]:
        assert repr(steps(row["text"])) == repr([(step, metrics) for step, metrics in row["steps"]]), row["text"]


BAR = "Training Progress:  15%|█▌        | 49/320 [1:06:07<4:11:40, 55.72s/it"
EPOCHS = "\rEpoch 1/2:  33%|██ | 1/3 [00:04<00:09,  4.72s/it]\rEpoch 2/2:  66%|████ | 2/3 [00:08<00:04,  4.72s/it]"
BESIDE = {
    "S2-20 a bar with metrics": (
        f"{BAR}, policy_loss=-0.1249, pg_loss=-0.1250, entropy=0.0321, kl_loss=0.00780, adv_mean=-0.0000, "
        "reward=0.3531, grad_norm=0.10]",
        [(49, 320, 3967.0, 15100.0, 55.72)],
        [(49, {"s/it": 55.72, "policy_loss": -0.1249, "pg_loss": -0.125, "entropy": 0.0321, "kl_loss": 0.0078,
               "adv_mean": -0.0, "reward": 0.3531, "grad_norm": 0.1})],
    ),
    "S1-30 the line with bars between": (
        "Step 100/10000 | Loss: 0.234 | Reward: 0.856 | KL: 0.0012 | LR: 9.8e-7\n",
        [(100, 10000, None, None, None)],
        [(100, {"Loss": 0.234, "Reward": 0.856, "KL": 0.0012, "LR": 9.8e-7})],
    ),
    "two bars on one line and a bar before a step": (
        f"{EPOCHS}step:5 - train/loss:5.8 - train/grad_norm:2.5\n",
        [(1, 6, 4.0, 9.0, 4.72), (5, 6, 8.0, 4.0, 4.72)],
        [(5, {"train/loss": 5.8, "train/grad_norm": 2.5})],
    ),
    "a bar of files": ("Loading checkpoint shards:  50%|█████ | 1/2 [00:05<00:04,  5.0s/it]\n", [], []),
    "a bar of rows": ("Map: 60%|███ | 4467/7473 [00:00<00:00, 44463 examples/s]\n", [], []),
}  # fmt: skip


@pytest.mark.parametrize("form", BESIDE)
def test_progress_beside_steps(form: str):
    text, progress, found = BESIDE[form]
    events = [event for event in read(text) if isinstance(event, LogProgress)]
    assert [(each.step, each.steps, each.elapsed_s, each.left_s, each.per_step_s) for each in events] == progress
    assert repr(steps(text)) == repr(found)


BLOCK = """loss: 0.1234
policy_loss: 0.8567
kl_penalty: 0.0045
mean_ratio: 1.0234
mean_advantage: 0.0123
mean_log_prob_current: -256.78
mean_log_prob_ref: -258.45
mean_reward: 0.6234
std_reward: 0.1234
"""
VALUES = {
    "loss": 0.1234, "policy_loss": 0.8567, "kl_penalty": 0.0045, "mean_ratio": 1.0234, "mean_advantage": 0.0123,
    "mean_log_prob_current": -256.78, "mean_log_prob_ref": -258.45, "mean_reward": 0.6234, "std_reward": 0.1234,
}  # fmt: skip
PREFIXES = (
    "2024-05-01 10:00:00,123 - INFO - ", "[2024-05-01 10:00:00] ", "2024-05-01T10:00:00.123456789Z stdout F ", "INFO: ",
    "INFO:root:", "[INFO] ", "[rank0]: ", "trainer-1  | ", "INFO 05-01 10:00:00 trainer.py:123] ",
    "[2024-05-01 10:00:00,123][trainer][INFO] - ", "2024-05-01T10:00:00.123Z ",
    "May 01 10:00:00 node01 train[1234]: ", "05/01/2025 10:00:00 - INFO - __main__ - ", "[pod/trainer-0/main] ",
    "[05/01/25 10:00:00] INFO     ", "                    INFO     ",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_s4_21_the_block_behind_what_loggers_and_containers_write(prefix):
    ((_, found),) = steps("".join(prefix + line + "\r\n" for line in BLOCK.splitlines()))
    assert found == VALUES
    text = "".join(f"{prefix}{line}\n" for line in ("Step 5/10", "loss: 0.5", "kl: 0.1"))
    assert steps(text) == [(5, {"loss": 0.5, "kl": 0.1})]


RAY = "\x1b[36m(TaskRunner pid=371299)\x1b[0m "
SAMPLE = """[prompt] user: Janet's ducks lay 16 eggs

assistant
[response] 1: Janet eats 3 eggs...
step 2: #### 18
20 files, 2025-05-01 10:00:00 INFO x
[ground_truth] 18
[score] 1.0
"""


def samples(text: str) -> list[Sample]:
    return [event for event in read(text) if isinstance(event, Sample)]


@pytest.mark.parametrize("prefix", ["", RAY, "2025-05-01 10:00:00,123 INFO ", "2025-05-01 10:00:00 - INFO - "])
def test_s2_printed_samples_are_of_the_step_that_follows_and_as_they_were_written(prefix):
    step = "step:{} - critic/score/mean:0.5\n".format
    text = f"{step(9)}{SAMPLE}{step(10)}{SAMPLE}Final validation metrics: {{'val/x': 0.5}}\n"
    text = "".join(f"{prefix}{line}\n" for line in text.splitlines())
    found = samples(text)
    assert [(each.step, each.ground_truth, each.score) for each in found] == [(10, "18", 1.0), (11, "18", 1.0)]
    assert {each.prompt for each in found} == {"user: Janet's ducks lay 16 eggs\n\nassistant"}
    response = "1: Janet eats 3 eggs...\nstep 2: #### 18\n20 files, 2025-05-01 10:00:00 INFO x"
    assert {each.response for each in found} == {response}
    assert steps(text)[2:] == [(11, {"val/x": 0.5})]
    assert [each.step for each in samples(step(9) + SAMPLE)] == [10], "at the end of the log"


@pytest.mark.parametrize(
    ("written", "score"),
    [("1.0  # correct", 1.0), ("-0.5, too long", -0.5), ("1e-3 (partial)", 0.001), ("nano", None), ("none", None)],
)
def test_a_remark_behind_a_score_does_not_hide_it(written, score):
    (found,) = samples(SAMPLE.replace("1.0", written))
    assert found.score == score or (score is None and found.score != found.score)


def test_a_sample_is_not_mixed_with_lines_of_other_processes():
    (found,) = samples("".join(f"(TaskRunner pid=1) {line}\n(Worker pid=2) noise\n" for line in SAMPLE.splitlines()))
    assert "noise" not in found.prompt + found.response


def test_samples_that_verl_writes_as_lines_of_json():
    node = {"input": "1+1", "output": "2", "gts": "2", "score": 1.0, "step": 20}
    (found,) = read(json.dumps(node) + "\n")
    assert (found.step, found.prompt, found.response, found.ground_truth, found.score) == (20, "1+1", "2", "2", 1.0)


def test_trainer_state(tmp_path: Path):
    history = [
        {"epoch": 0.1, "loss": 0.5, "step": 5},
        {"epoch": 0.1, "loss": math.nan, "step": 10},
        {"eval_loss": 0.25, "note": "ü{[", "step": 10},
    ]
    path, text = (
        tmp_path / "trainer_state.json",
        json.dumps({"best_metric": None, "log_history": history, "max_steps": 40}, indent=2),
    )
    path.write_text(text)
    log = open_log(path)
    found = [event for event in log.events() if isinstance(event, Step)]
    assert log.kind == "trainer_state" and [event.step for event in found] == [5, 10, 10]
    assert math.isnan(found[1].metrics["loss"]) and found[2].metrics == {"eval_loss": 0.25}
    assert [event.steps for event in log.events() if isinstance(event, LogProgress)] == [40]
    path.write_text(text[: text.index("eval_loss")])  # cut while it was written
    with pytest.raises(Problems, match=r"trainer_state.json: .*; use a copy of the whole file"):
        list(open_log(path).events())


def test_the_last_line_of_ms_swifts_jsonl_repeats_the_history_of_the_others(tmp_path: Path):
    lines = [{"loss": 1.0, "global_step/max_steps": "1/2"}, {"loss": 0.5, "global_step/max_steps": "2/2"}]
    last = {"global_step": 2, "best_metric": 0.5, "log_history": [{"loss": 1.0, "step": 1}], "memory": 12.5}
    (path := tmp_path / "logging.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (*lines, last)))
    found = [(event.step, dict(event.metrics)) for event in open_log(path).events() if isinstance(event, Step)]
    assert found == [(1, {"loss": 1.0}), (2, {"loss": 0.5})]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{RAY}step:1 - a:1\n", "verl"), ('{"step":4,"data":{"a":1}}\n', "verl_file"), ("{'loss': 1.0}\n", "dicts"),
        ("{'loss': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n", "transformers"),
        ("{'loss': 1.0, 'learning_rate': 1e-05, 'completions/mean_length': 9.0, 'epoch': 0.1}\n", "trl"),
        ("Step 1/2 | Loss: 0.5\n", "lines"), (BLOCK, "block"), ("nothing\n", "unknown"), ("", "unknown"),
        ("Training: 10%|█ | 1/10 [00:01<00:09, 1.0s/it, reward=0.5]\n", "bars"),
    ],
)  # fmt: skip
def test_the_form_is_recognised(tmp_path: Path, text: str, kind: str):
    (path := tmp_path / "a.log").write_text(text)
    assert open_log(path).kind == kind


def test_many_pairs_before_a_step_are_read_in_one_way():
    """Each pair could be split in several ways: with all of them tried this line would never be read to its end."""
    assert steps(f"a{':bcd' * 60}! step 5 | loss: 0.5\n") == [(5, {"loss": 0.5})]
