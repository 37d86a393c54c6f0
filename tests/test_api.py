"""rlrun from Python: what docs/python.md shows is run, and errors are exceptions with their facts."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import launcher
from launcher import Problems, RunFailed, plan, resume, runs, train
from launcher.core.events import Ended, LoggedEvent
from launcher.core.files import AppendOnlyFile
from launcher.core.state import RunState
from launcher.launch import start
from launcher.launch.follow import Outcome
from launcher.runs.folder import Folder


@pytest.mark.slow
def test_the_page_prints_what_it_shows(
    all_pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (page,) = (page for page in all_pages if page.path.name == "python.md")
    exec(compile(page.files["first.py"], "first.py", "exec"), {})
    assert capsys.readouterr().out == page.blocks("text")[0]


def test_a_run_is_read_while_and_after_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"trainer.total_training_steps": 2, "trainer.test_freq": 1, "trainer.log_val_generations": 3,
                "trainer.experiment_name": "one"}  # fmt: skip
    with ThreadPoolExecutor(1) as threads:  # no main thread, as in a server
        run = threads.submit(train, "algorithm=grpo", *small, show=False, settings=settings).result()
    assert [row["step"] for row in run.metrics()] == [0, 1, 2]
    assert [row["step"] for row in run.samples()] == [step for step in (0, 1, 2) for _ in range(3)]
    assert {"prompt", "response", "score", "ground_truth", "data_source", "step", "episodes"} == set(run.samples()[0])
    assert run.settings["trainer"]["experiment_name"] == "one"
    assert [each.path for each in runs.every()] == [run.path] == [runs.find("one").path]
    (run.path / "checkpoints").rename(run.path / "elsewhere")
    assert runs.find("one").checkpoints() == []


def test_a_wrong_argument_is_a_result_of_a_plan_and_an_exception_of_a_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["algorithm=grop", "model=tiny", "data=reverse"]
    found = plan(*words)
    assert not found.ok
    assert found.results[0].subject == "algorithm"
    with pytest.raises(Problems) as raised:
        train(*words, show=False)
    assert raised.value.problems[0].where == "algorithm"
    with pytest.raises(Problems):
        resume("none")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_raises_with_what_it_wrote(tmp_path: Path, monkeypatch: Any, small: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Folder(tmp_path / "runs" / "p" / "r")
    folder.path.mkdir(parents=True)
    folder.spec.write_text("{}")
    AppendOnlyFile.open(folder.events).append(LoggedEvent(0, 0, Ended(how="failed", why="no more money")).line)
    monkeypatch.setattr(start, "start", lambda *_: (folder, Outcome(1, RunState())))
    with pytest.raises(RunFailed, match="p/r failed: no more money") as raised:
        train("algorithm=grpo", *small, show=False)
    assert raised.value.run.path == folder.path


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, launcher; print([name for name in ('torch', 'hydra', 'typer', 'rich') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        launcher.trian  # noqa: B018
