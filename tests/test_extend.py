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
from typer.testing import CliRunner

from launcher.cli.main import app
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


@pytest.mark.parametrize(("name", "most"), [("rloo", 25), ("calculator", 20)])
def test_what_one_adds_is_short(name: str, most: int, extend: Any) -> None:
    assert len([line for line in extend.files[f"mine/{name}.py"].splitlines() if line.strip()]) <= most


def steps(run: Path) -> list[Step]:
    return [event for event in events_of(run / "events.jsonl") if isinstance(event, Step) and event.step]


def test_the_commands_run(rlrun: Any, extend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first `train` has is in the others, too: it is planned alone, by tests/test_printed_commands.py."""
    monkeypatch.chdir(rlrun.folder)
    typed = [shlex.split(command)[1:] for command in "".join(extend.blocks("bash")).splitlines()]
    checked, *trained = [words for words in typed if words[0] == "env" or "data=sums" in words]
    ran = CliRunner().invoke(app, [*checked, *SMALL])
    assert ran.exit_code == 0 and "each has an equal score a second time" in ran.output, ran.output
    for number, words in enumerate(trained):
        ran = rlrun(*words, *SMALL, f"trainer.experiment_name=run{number}")
        assert ran.returncode == 0, ran.stderr
        assert "no chat template" not in ran.stderr
        found = steps(rlrun.run(f"run{number}"))
        assert [step.step for step in found] == [1, 2]
        assert all("actor/pg_loss" in step.metrics for step in found)
    agent, run = rlrun.run("run0"), rlrun.run("run1")
    assert (agent / "code" / "environment" / "calculator.py").is_file()
    assert steps(agent)[0].metrics["agent/faults/share"] == 0 and steps(agent)[0].metrics["agent/turns/mean"] >= 1
    assert any(step.metrics["actor/grad_norm"] > 0 for step in found), "vowels tell answers apart"
    assert "critic/score/length/mean" in found[-1].metrics, "a reward's part is a metric"
    (rlrun.folder / "mine" / "calculator.py").write_text("raise OSError\n")  # the run has a copy
    for each in (run, agent):
        shutil.rmtree(each / "checkpoints" / "step_000002")
        ran = rlrun("train", "--resume", each.name)  # with its own code, without the flag
        assert ran.returncode == 0, ran.stderr
        assert [step.step for step in steps(each)][-1] == 2
        assert isinstance(list(events_of(each / "events.jsonl"))[-1], Ended)
        assert (each / "checkpoints" / "step_000002").is_dir()
    assert steps(agent)[-1].metrics["agent/faults/share"] == 0


def test_settings_of_own_classes_are_shown(rlrun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(rlrun.folder)
    ran = CliRunner().invoke(app, ["config", "show", "--config-dir", "mine", "--json", "reward=vowels"])
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
