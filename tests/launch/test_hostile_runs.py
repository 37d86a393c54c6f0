"""Runs and models that others made: nothing in them is believed, followed, waited for or said aloud."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.resolve import resolve
from launcher.core.events import Ended, Started, to_line
from launcher.core.problems import Problems
from launcher.launch import job, start, supervise
from launcher.monitor.failure import read_exit
from launcher.preflight import plan
from launcher.preflight.checks import history
from launcher.runs.folder import Folder, take, unheard_events
from launcher.spec.stored import to_yaml
from tests.conftest import Within

pytestmark = pytest.mark.usefixtures("here")
BASE = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"]
LEVELS = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
BOMB = f"a0: &a0 [{','.join('x' * 9)}]\n{LEVELS}"
DEEP = "[" * 5000


Refused = Callable[[Callable[[], object]], list[str]]


@pytest.fixture
def refused(within: Within) -> Refused:
    """The lines of a refusal, which takes far below a second: what hostile input could cost is minutes."""

    def lines(call: Callable[[], object]) -> list[str]:
        with within(1.0), pytest.raises(Problems) as found:
            call()
        return found.value.lines

    return lines


def a_run(here: Path) -> Path:
    run = here / "runs" / "p" / "theirs"
    run.mkdir(parents=True)
    spec = to_yaml(resolve([*BASE, "trainer.experiment_name=theirs"]))
    for name, text in {"spec.yaml": spec, "lock.json": "{}", "events.jsonl": ""}.items():
        (run / name).write_text(text)
    return run


STORED: list[tuple[str, str | None, str]] = [
    ("spec.yaml", BOMB, "stands for more than 20,000 values"),
    ("spec.yaml", f"seed: {DEEP}", "more than 64 deep"),
    ("spec.yaml", "algorithm: {_target_: os.system}\n", "os.system is not of class Algorithm"),
    ("spec.yaml", "reward: {_target_: antigravity.x}\n", "antigravity.x is not of class Reward"),
    ("spec.yaml", "seed: x\n", "algorithm: has no value; "),
    ("spec.yaml", "[", "cannot be read, while parsing a flow node; start a new run"),
    ("spec.yaml", "", "holds no run; use the file of another run"),
    ("lock.json", DEEP, "nested too deeply"),
    ("lock.json", "[]", "holds no lock"),
    ("lock.json", '{"code": 5}', "holds no lock"),
    ("lock.json", '{"installed": [1]}', "holds no lock"),
    ("lock.json", "{", "cannot be read, "),
    ("lock.json", None, "cannot be read, no such file or directory; start a new run"),
    ("prepared.json", "", ""),
    ("prepared.json", "[]", ""),
    ("prepared.json", "{}", ""),
    ("prepared.json", '{"directory": "/", "model": {"_target_": "os.system"}}', ""),
]


@pytest.mark.parametrize(("name", "text", "line"), STORED, ids=[f"{name} {line[:20]}" for name, _, line in STORED])
def test_damaged_and_hostile_files_of_a_run(
    name: str, text: str | None, line: str, here: Path, refused: Refused
) -> None:
    run = a_run(here)
    (run / name).unlink() if text is None else (run / name).write_text(text)
    before = sorted(here.rglob("*"))
    lines = refused(lambda: start.resume(Folder(Path("runs/p/theirs")), [], lambda *_: None))
    assert any(found.startswith(f"{Path('runs/p/theirs', name)}: ") and line in found for found in lines), lines
    assert sorted(here.rglob("*")) == before


ENDED = to_line(Ended(how="finished"), seq=2) + "\n"
FILES = {
    "spec.yaml": to_yaml(resolve([*BASE, "trainer.experiment_name=theirs"])), "lock.json": "{}", "words.txt": "rlrun x",
    "events.jsonl": to_line(Started(run="p/theirs", algorithm="GRPO", processes=1)) + "\n" + ENDED, "prepared.json": "",
    "console.log": "x\n", ".lock": "{}", ".stop": "now", "slurm/job.json": '{"id": "1"}', "sweep.json": "",
    "logs/attempt_1/rank-0.log": "x\n",
    "checkpoints/step_000002/manifest.json": "{}", "checkpoints/step_000002/trainer.json": "{}",
}  # fmt: skip
COMMANDS = [
    ["runs"], ["show", "theirs", "--json"], ["logs", "theirs"], ["stop", "theirs"], ["checkpoints", "theirs", "--json"],
]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_whatever_stands_for_a_file_of_a_run_is_answered(name: str, here: Path) -> None:
    """A pipe or a device would be waited for, or read without end; a person gets an answer or a refusal."""
    asked, run = resolve(BASE), Folder(here / "runs" / "p" / "theirs")
    for kind in ("pipe", "folder", DEEP):
        for each, text in FILES.items():
            if text or each == name:
                (run.path / each).parent.mkdir(parents=True, exist_ok=True)
                (run.path / each).write_text(text)
        file = run.path / name
        file.unlink()
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            file.mkdir()
        else:
            file.write_text(kind)
        signal.alarm(20)  # ends this process where something is waited for
        for words in COMMANDS:
            ran = CliRunner().invoke(app, words)
            assert ran.exit_code in (0, 1, 2) and isinstance(ran.exception, SystemExit | None), (kind, words, ran)
        with suppress(Problems):
            supervise.newest_checkpoint(run)
            start.run_of(run, [])
        unheard_events(run)
        history.earlier(asked)
        read_exit(0, 1, run.path / "logs/attempt_1/rank-0.log")
        signal.alarm(0)
        shutil.rmtree(run.path)


@pytest.mark.parametrize("name", [".lock", "spec.yaml", "events.jsonl", "logs", "detached.log"])
def test_links_of_a_run_lead_nowhere(name: str, here: Path, refused: Refused) -> None:
    run = a_run(here)
    mine = here / "mine"
    mine.write_text((run / name).read_text() if (run / name).exists() else "dear to me")
    before = mine.read_text()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(mine)
    for resume in (lambda: start.resume(Folder(run), [], []), lambda: job.resume(Folder(run))):
        (line,) = refused(resume)
        assert name in line and "is a link" in line
    assert mine.read_text() == before


@pytest.mark.parametrize("link", ["runs/rlrun", "runs/rlrun/mine"])
def test_a_new_run_follows_no_link(link: str, here: Path, refused: Refused) -> None:
    (here / "elsewhere").mkdir()
    (here / link).parent.mkdir(parents=True)
    (here / link).symlink_to(here / "elsewhere")
    words = [*BASE, "trainer.experiment_name=mine"]
    assert "is a symbolic link" in str(plan.problems(resolve(words))[0])
    assert "is a link to another folder" in refused(lambda: take(here / "runs", "rlrun", "mine"))[0]  # made meanwhile
    assert not list((here / "elsewhere").iterdir())
