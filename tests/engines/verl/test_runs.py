"""Whole runs of engine=verl, with a program that writes what verl writes: nothing that it reports or saves is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.core import checkpoints
from launcher.core.events import HeldOutScores, Loaded, Sample, Saved, Step, TrainingGroup, events_of
from launcher.core.prompt_scores import prompt_digest

Words = Callable[..., list[str]]


def events(run: Path, kind: type) -> list[Any]:
    return [event for event in events_of(run / "events.jsonl") if isinstance(event, kind)]


def steps(run: Path) -> list[int]:
    return [event.step for event in events(run, Step)]


def saved(run: Path) -> list[int]:
    """The steps of its checkpoints; each verifies, and holds verl's own files."""
    folders = checkpoints.newest_first(run / "checkpoints")
    for folder in folders:
        step = checkpoints.step_of(folder)
        assert not checkpoints.faults(folder)
        assert (folder / f"state/global_step_{step}/actor/model_world_size_1_rank_0.pt").is_file()
    return sorted(map(checkpoints.step_of, folders))


def test_all_that_verl_reports_arrives(words: Words, tmp_path: Path, commands: Any) -> None:
    call = commands(tmp_path)
    ran = call("train", *words("trainer.experiment_name=a", "trainer.keep_last=9"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    run = call.run("a")
    assert steps(run) == [0, 1, 2, 3, 4, 5, 6]
    assert saved(run) == [2, 4, 6] == [event.step for event in events(run, Saved)]
    (loaded,) = events(run, Loaded)
    assert (loaded.rows, loaded.val_rows, loaded.steps) == (40, 8, 6)
    metrics = events(run, Step)[3].metrics
    assert metrics["critic/score/mean"] == 0.3
    assert metrics["val-core/sums/reward/mean@1"] == 0.3, "by our name, which every view looks for"
    assert metrics["perf/max_memory_allocated_gb"] == 1.5
    assert metrics["a/name/nobody/has"] == 7.0, "a metric without an alias is kept under verl's name"
    samples = events(run, Sample)
    assert len(samples) == 9 * 7, "trainer.log_val_generations of each validation"
    assert (samples[0].prompt, samples[0].response, samples[0].score) == ("0+1=", "1", 1.0)
    scores = events(run, HeldOutScores)
    assert [event.step for event in scores] == steps(run)
    assert scores[3].prompts == tuple(prompt_digest(f"{n}+1=", str(n + 1)) for n in range(9)), "of all prompts"
    assert set(scores[3].scores) == {1.0}
    groups = events(run, TrainingGroup)
    assert [(group.step, group.group) for group in groups] == [(step, g) for step in range(1, 7) for g in (1, 2, 3, 4)]
    assert groups[5].responses == ("4", "5", "6", "7") and groups[5].scores == (0.0, 1.0, 0.0, 0.0)
    assert not [*(run / "verl" / "training").iterdir()], "they would fill the disk"
    shown = call("samples", "a", "--step", "2", "--group", "2", "--training").stdout
    assert "group 2  step 2  score 1\n  5" in shown and "nan" not in shown
    held_out = json.loads((run / "checkpoints/step_000004/trainer.json").read_text())["validated"]
    assert (held_out["step"], held_out["metrics"]["val-core/sums/reward/mean@1"]) == (4, 0.4)
    assert "finished" in (run / "console.log").read_text().splitlines()[-1]


def test_a_killed_verl_is_started_again_from_its_newest_checkpoint(words: Words, tmp_path: Path, commands: Any) -> None:
    call = commands(tmp_path)
    ran = call(
        "train", *words("trainer.experiment_name=a", "trainer.keep_last=9", wrong=f"kill=5,once={tmp_path}/mark")
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    run = call.run("a")
    assert saved(run) == [2, 4, 6] == [event.step for event in events(run, Saved)]
    assert steps(run) == [0, 1, 2, 3, 4, 5, 6] == [event.step for event in events(run, HeldOutScores)]
    assert "went back to step 4" in (run / "console.log").read_text() or "restart" in ran.stdout + ran.stderr


@pytest.mark.parametrize("wrong", ["half=4", pytest.param("empty=4", marks=pytest.mark.long)])
def test_a_save_that_was_cut_off_does_not_count(words: Words, tmp_path: Path, commands: Any, wrong: str) -> None:
    """Killed within it, its shards are not complete; where only the tracker is empty, the checkpoint is whole."""
    call = commands(tmp_path)
    more = ",kill=5" if wrong == "empty=4" else ""
    ran = call("train", *words("trainer.experiment_name=a", "trainer.max_restarts=0", wrong=wrong + more))
    assert ran.returncode == 1
    run = call.run("a")
    assert saved(run) == ([2] if wrong == "half=4" else [2, 4])
    words("", wrong="")  # the program is sound now
    again = call("train", "--resume", "a")
    assert again.returncode == 0, again.stdout + again.stderr
    assert steps(run) == [0, 1, 2, 3, 4, 5, 6]
    assert 6 in saved(run)


@pytest.mark.parametrize(
    ("wrong", "message", "most"),
    [
        ("fail=3", "ZeroDivisionError: division by zero", 2),  # not tried again
        pytest.param("early=3", "verl ended with exit code 0 after step 3 of 6", 3, marks=pytest.mark.long),
    ],
)
def test_an_error_of_verl_or_an_early_end_is_no_success(
    words: Words, tmp_path: Path, commands: Any, wrong: str, message: str, most: int
) -> None:
    call = commands(tmp_path)
    limit = ["trainer.max_restarts=0"] if wrong == "early=3" else []
    ran = call("train", *words("trainer.experiment_name=a", *limit, wrong=wrong))
    assert ran.returncode == 1 and message in ran.stdout + ran.stderr
    assert steps(call.run("a"))[-1] == most


def test_a_killed_launcher_loses_nothing_and_leaves_nobody(
    words: Words, tmp_path: Path, commands: Any, until: Any
) -> None:
    """`kill -9` of the launcher: the driver, verl and what verl had started end; what was saved is taken over."""
    call = commands(tmp_path)
    launcher = call.begin("train", *words("trainer.experiment_name=a", wrong=f"slow=0.5,orphan={tmp_path}/orphan"))
    run = call.run("a")
    until(lambda: (run / "events.jsonl").is_file() and 3 in steps(run))
    launcher.kill()
    launcher.wait()
    orphan = int((tmp_path / "orphan").read_text())
    until(lambda: not Path(f"/proc/{orphan}").exists())
    words("", wrong="")
    again = call("train", "--resume", "a")
    assert again.returncode == 0, again.stdout + again.stderr
    assert steps(run) == [0, 1, 2, 3, 4, 5, 6]
    assert 6 in saved(run)


def test_stop_ends_verl_and_what_it_started(words: Words, tmp_path: Path, commands: Any, until: Any) -> None:
    call = commands(tmp_path)
    launcher = call.begin(
        "train",
        *words(
            "trainer.experiment_name=a", "trainer.total_training_steps=9999", wrong=f"slow=0.1,orphan={tmp_path}/orphan"
        ),
    )
    run = call.run("a")
    until(lambda: (run / "events.jsonl").is_file() and 3 in steps(run))
    assert call("stop", "a").returncode == 0
    assert launcher.wait(600) == 128 + 15
    orphan = int((tmp_path / "orphan").read_text())
    until(lambda: not Path(f"/proc/{orphan}").exists())
    assert saved(run), "what verl had saved by then is kept"
