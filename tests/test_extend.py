"""docs/extend.md: its files are written down as they stand there, and its commands are run."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.core.events import Ended, Step, events_of
from launcher.core.problems import Problems
from launcher.preflight.plan import ready

SMALL = ["model.hidden_size=16", "model.num_hidden_layers=1", "model.intermediate_size=32", "engine.num_threads=1",
         "trainer.save_freq=1"]  # fmt: skip


@pytest.fixture(scope="module")
def extend(all_pages: Any) -> Any:
    (found,) = (page for page in all_pages if page.path.name == "extend.md")
    return found


@pytest.fixture(scope="module")
def rlrun(tmp_path_factory: pytest.TempPathFactory, commands: Any, extend: Any) -> Any:
    home = tmp_path_factory.mktemp("home")
    for name, text in extend.files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return commands(home)


def test_an_algorithm_is_short(extend: Any) -> None:
    code = [line for line in extend.files["mine/rloo.py"].splitlines() if line.strip()]
    assert len(code) <= 25


def test_an_environment_is_short(extend: Any) -> None:
    assert len([line for line in extend.files["mine/calculator.py"].splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("resumes", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_run_reads_its_copy_of_an_environment_and_goes_on_with_it(rlrun: Any, resumes: bool) -> None:
    name = f"agent-{resumes}"
    words = [
        *("train", "--config-dir", "mine", "algorithm=grpo", "model=tiny", "model.chat=true", "data=sums"),
        *("sampler.n=2", "data.max_response_length=64", "environment=python", "environment.name=Calculator"),
        *("environment.path=mine/calculator.py", "trainer.total_training_steps=1", f"trainer.experiment_name={name}"),
        *SMALL,
    ]
    ran = rlrun(*words)
    assert ran.returncode == 0, ran.stderr
    run = rlrun.run(name)
    assert (run / "code" / "environment" / "calculator.py").is_file()
    assert "no chat template" not in ran.stderr
    (step,) = steps(run)
    assert step.metrics["agent/faults/share"] == 0 and step.metrics["agent/turns/mean"] >= 1
    if not resumes:
        return
    own = rlrun.folder / "mine" / "calculator.py"
    text = own.read_text()
    own.write_text("raise OSError\n")
    try:
        ran = rlrun("train", "--resume", name, "trainer.total_training_steps=2")
    finally:
        own.write_text(text)
    assert ran.returncode == 0, ran.stderr
    assert [step.step for step in steps(run)] == [1, 2]
    assert steps(run)[-1].metrics["agent/faults/share"] == 0


def steps(run: Path) -> list[Step]:
    return [event for event in events_of(run / "events.jsonl") if isinstance(event, Step) and event.step]


def test_the_commands_run(rlrun: Any, extend: Any) -> None:
    for number, command in enumerate("".join(extend.blocks("bash")).splitlines()):
        program, *words = shlex.split(command)
        assert program == "rlrun"
        ran = rlrun(*words, *SMALL, f"trainer.experiment_name=run{number}")
        assert ran.returncode == 0, ran.stderr
        if words[0] == "env":
            assert "each has an equal score a second time" in ran.stdout
            continue
        if words[0] == "plan":
            assert "FAIL" not in ran.stdout and "rloo" in ran.stdout.lower()
            continue
        run = rlrun.run(f"run{number}")
        found = steps(run)
        assert [step.step for step in found] == [1, 2]
        assert all("actor/pg_loss" in step.metrics for step in found)
    assert any(step.metrics["actor/grad_norm"] > 0 for step in found), "vowels tell answers apart"
    assert "critic/score/length/mean" in found[-1].metrics, "a reward's part is a metric"
    shutil.rmtree(run / "checkpoints" / "step_000002")
    ran = rlrun("train", "--resume", run.name)  # with its own code, without the flag
    assert ran.returncode == 0, ran.stderr
    assert [step.step for step in steps(run)][-1] == 2
    assert isinstance(list(events_of(run / "events.jsonl"))[-1], Ended)
    assert (run / "checkpoints" / "step_000002").is_dir()


def test_settings_of_own_classes_are_shown(rlrun: Any) -> None:
    ran = rlrun("config", "show", "--config-dir", "mine", "--json", "reward=vowels")
    (section,) = json.loads(ran.stdout)
    assert section["class"] == "Vowels" and section["says"] == "The share of vowels in the answer."
    assert [(one["setting"], one["says"]) for one in section["settings"]] == [
        ("reward.empty", "Score of an empty answer.")
    ]


def test_a_check_of_ones_own_stops_the_run(rlrun: Any) -> None:
    words = ["algorithm=rloo", "model=tiny", "data=sums", "sampler.n=2"]
    ready(resolve(words, rlrun.folder / "mine"))
    with pytest.raises(Problems, match=r"data\.largest: 10 has more than one digit"):
        ready(resolve([*words, "data.largest=10"], rlrun.folder / "mine"))


def test_own_modules_never_hide_installed_ones(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported')\n")
    code = "import sys; from launcher.core.classes import add_code_dir; add_code_dir(sys.argv[1]); import json"
    ran = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
