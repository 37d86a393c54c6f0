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


class FakeRun:
    """The run `a` in a folder of its own, of the program that stands for verl; `wrong` is what goes wrong with that."""

    def __init__(self, call: Any, words: Words) -> None:
        self.call, self.words, self.run = call, words, call.run("a")

    def train(self, *more: str, wrong: str = "", code: int = 0) -> str:
        """What it printed."""
        ran = self.call("train", *self.words("trainer.experiment_name=a", *more, wrong=wrong))
        assert ran.returncode == code, ran.stdout + ran.stderr
        return str(ran.stdout + ran.stderr)

    def begin(self, until: Any, *more: str, wrong: str) -> Any:
        """The launcher, once step 3 is reported."""
        launcher = self.call.begin("train", *self.words("trainer.experiment_name=a", *more, wrong=wrong))
        until(lambda: (self.run / "events.jsonl").is_file() and 3 in steps(self.run))
        return launcher

    def resume(self) -> None:
        """With a program that is sound now, to the end; every step stands once."""
        self.words("", wrong="")
        again = self.call("train", "--resume", "a")
        assert again.returncode == 0, again.stdout + again.stderr
        assert steps(self.run) == [0, 1, 2, 3, 4, 5, 6] and 6 in saved(self.run)


@pytest.fixture
def a(words: Words, tmp_path: Path, commands: Any) -> FakeRun:
    return FakeRun(commands(tmp_path), words)


def test_all_that_verl_reports_arrives(a: FakeRun) -> None:
    a.train("trainer.keep_last=9")
    run = a.run
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
    shown = a.call("samples", "a", "--step", "2", "--group", "2", "--training").stdout
    assert "group 2  step 2  score 1\n  5" in shown and "nan" not in shown
    held_out = json.loads((run / "checkpoints/step_000004/trainer.json").read_text())["validated"]
    assert (held_out["step"], held_out["metrics"]["val-core/sums/reward/mean@1"]) == (4, 0.4)
    assert "finished" in (run / "console.log").read_text().splitlines()[-1]


def test_a_killed_verl_is_started_again_from_its_newest_checkpoint(a: FakeRun, tmp_path: Path) -> None:
    output = a.train("trainer.keep_last=9", wrong=f"kill=5,once={tmp_path}/mark")
    assert saved(a.run) == [2, 4, 6] == [event.step for event in events(a.run, Saved)]
    assert steps(a.run) == [0, 1, 2, 3, 4, 5, 6] == [event.step for event in events(a.run, HeldOutScores)]
    assert "went back to step 4" in (a.run / "console.log").read_text() or "restart" in output


@pytest.mark.parametrize(
    ("wrong", "kept"), [("half=4", [2]), pytest.param("empty=4,kill=5", [2, 4], marks=pytest.mark.long)]
)
def test_a_save_that_was_cut_off_does_not_count(a: FakeRun, wrong: str, kept: list[int]) -> None:
    """Killed within it, its shards are not complete; where only the tracker is empty, the checkpoint is whole."""
    a.train("trainer.max_restarts=0", wrong=wrong, code=1)
    assert saved(a.run) == kept
    a.resume()


@pytest.mark.parametrize(
    ("wrong", "more", "message", "most"),
    [
        ("fail=3", (), "ZeroDivisionError: division by zero", 2),  # not tried again
        pytest.param("early=3", ("trainer.max_restarts=0",), "verl ended with exit code 0 after step 3 of 6", 3,
                     marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_an_error_of_verl_or_an_early_end_is_no_success(
    a: FakeRun, wrong: str, more: tuple[str, ...], message: str, most: int
) -> None:
    assert message in a.train(*more, wrong=wrong, code=1) and steps(a.run)[-1] == most


def test_a_killed_launcher_loses_nothing_and_leaves_nobody(a: FakeRun, tmp_path: Path, until: Any) -> None:
    """`kill -9` of the launcher: the driver, verl and what verl had started end; what was saved is taken over."""
    launcher = a.begin(until, wrong=f"slow=0.5,orphan={tmp_path}/orphan")
    launcher.kill()
    launcher.wait()
    until(lambda: not Path(f"/proc/{(tmp_path / 'orphan').read_text()}").exists())
    a.resume()


def test_stop_ends_verl_and_what_it_started(a: FakeRun, tmp_path: Path, until: Any) -> None:
    launcher = a.begin(until, "trainer.total_training_steps=9999", wrong=f"slow=0.1,orphan={tmp_path}/orphan")
    assert a.call("stop", "a").returncode == 0 and launcher.wait(600) == 128 + 15
    until(lambda: not Path(f"/proc/{(tmp_path / 'orphan').read_text()}").exists())
    assert saved(a.run), "what verl had saved by then is kept"
