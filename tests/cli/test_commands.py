"""Looking at runs from the command line: nothing is trained here, the folders are made by hand."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from launcher import __version__
from launcher.cli import log_view
from launcher.cli.commands.runs import fitting_columns
from launcher.cli.main import app
from launcher.core.events import Ended, Event, Loaded, Phase, Saved, Started, Step, Waiting, to_line

LOADED = Loaded(at=2.0, rows=8, refused=0, val_rows=0, val_refused=0, steps_per_epoch=4, steps=4)
LINES = [f"step:{step} - train/loss:{5 - step}.0" for step in range(1, 5)]


def make(folder: Path, name: str, *events: Event, lines: list[str] = LINES) -> Path:
    path = folder / "runs" / name
    path.mkdir(parents=True)
    (path / "spec.yaml").write_text("")
    (path / "events.jsonl").write_text("".join(to_line(event) + "\n" for event in events))
    (path / "console.log").write_text("".join(line + "\n" for line in lines))
    return path


def life(run: str, *, loss: float = 1.5, end: Event | None = None) -> list[Event]:
    started = Started(at=1.0, run=run, algorithm="SFT", processes=1)
    metrics = {"train/loss": loss, "val-core/maths/reward/mean@1": 0.25}
    saved = Saved(at=4.0, step=2, path="checkpoints/step_000002")
    return [started, LOADED, Phase(at=2.0, name="update"), Step(at=3.0, step=2, metrics=metrics), saved,
            end or Ended(at=5.0, how="finished")]  # fmt: skip


Look = Callable[..., Result]


@pytest.fixture
def rlrun(tmp_path: Path, commands: Any) -> Any:
    """The command in a process of its own, which costs half a second."""
    return commands(tmp_path)


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """The same words inside this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *words: CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.fixture
def some(tmp_path: Path) -> Path:
    """A finished run, a stopped one whose loss is no number, and one that was killed."""
    make(tmp_path, "p/done", *life("p/done"))
    make(tmp_path, "p/nan", *life("p/nan", loss=math.nan, end=Ended(at=5.0, how="stopped", why="SIGTERM")))
    make(tmp_path, "q/killed", *life("q/killed")[:-1])
    for age, name in enumerate(("p/done", "p/nan", "q/killed")):
        os.utime(tmp_path / "runs" / name / "events.jsonl", (1000 - age, 1000 - age))
    return tmp_path / "runs"


def test_the_version_is_the_packages_and_no_word_at_all_shows_the_usage(look: Look) -> None:
    assert look("--version").stdout == f"rlrun {__version__}\n"
    assert "Usage" in look().output


def test_runs_are_listed_the_latest_first(look: Look, some: Path) -> None:
    output = look("runs")
    assert (output.exit_code, output.stderr) == (0, "")
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(1.0)).split()
    more = ["SFT", "0.25", "at", "2", "0.25"]
    head = "run status step outcome held out training took started algorithm best at first"
    assert [line.split() for line in output.stdout.splitlines()] == [
        head.split(),
        ["p/done", "finished", "2/4", "maths", "0.25", "loss", "1.5", "00:04", *started, *more],
        ["p/nan", "stopped", "2/4", "maths", "0.25", "loss", "nan", "00:04", *started, *more],
        ["q/killed", "failed", "2/4", "maths", "0.25", "loss", "1.5", "00:03", *started, *more],
    ]


def test_no_runs(look: Look) -> None:
    assert look("runs").stdout == "no runs in runs\n"
    assert look("runs", "--root", "[/no markup]").stdout == "no runs in [/no markup]\n"
    assert look("runs", "--json").stdout == "[]\n"


def test_hostile_names_are_shown_as_text(look: Look, tmp_path: Path) -> None:
    for name in ("p/\x1b[2J[bold]", os.fsdecode(b"p/\xff")):
        make(tmp_path, name, *life(name))
    output = look("runs")
    assert output.exit_code == 0 and "\x1b" not in output.stdout
    assert "p/\\x1b[2J[bold]" in output.stdout and "p/\\udcff" in output.stdout
    assert {node["run"] for node in json.loads(look("runs", "--json").stdout)} == {"p/\x1b[2J[bold]", "p/\\udcff"}
    assert "\x1b" not in look("show", "p/\x1b[2J[bold]").stdout
    assert json.loads(look("stop", "p/\udcff", "--json").stdout) == {"run": "p/\\udcff", "became": "was not running"}
    assert look("stop", "p/\x1b[2J[bold]").stdout == "p/\\x1b[2J[bold]: was not running\n"


def test_a_run_is_one_line_or_a_page(look: Look, some: Path, tmp_path: Path) -> None:
    page = look("show", "killed").stdout
    assert "q/killed" in page and "failed  its processes are gone; --resume continues it" in page
    assert page.endswith("runs/q/killed\n")
    assert look("status", "done").stdout == (
        "p/done: finished; step 2/4; 00:04; loss 1.5; held out maths 0.25 at step 2\n"
    )
    assert json.loads(look("show", "p/nan", "--json").stdout)["metrics"]["train/loss"] == "NaN"
    ended = Ended(at=5.0, how="finished", why="the loss rose; use optim.lr=1", following=("rerun", "optim.lr=1"))
    make(tmp_path, "p/bad", *life("p/bad", end=ended))
    assert look("status", "bad").stdout.startswith("p/bad: doubtful; ")
    assert look("show", "bad").stdout.splitlines()[-1] == "next: rlrun rerun runs/p/bad optim.lr=1"


def test_a_run_that_is_not_there(look: Look, some: Path) -> None:
    for command in ("show", "logs", "stop"):
        output = look(command, "kiled", "--json")
        assert (output.exit_code, output.stdout) == (2, "")
        assert output.stderr.startswith("✗ 'kiled': no ") and output.stderr.endswith("did you mean q/killed?\n")


def test_logs(look: Look, some: Path) -> None:
    assert look("logs", "done").stdout.splitlines() == LINES
    assert look("logs", "done", "-n", "2").stdout.splitlines() == LINES[-2:]
    assert look("logs", "done", "-n", "0").stdout == ""
    assert look("logs", "done", "-f").stdout.splitlines() == LINES  # it has ended
    events = [json.loads(line) for line in look("logs", "nan", "--json").stdout.splitlines()]
    assert [event["kind"] for event in events] == ["Started", "Loaded", "Phase", "Step", "Saved", "Ended"]
    assert look("logs", "done", "-n", "-1").exit_code == 2


def test_a_log_cannot_steer_the_terminal_and_a_half_line_waits(look: Look, some: Path) -> None:
    (some / "p" / "done" / "console.log").write_bytes(b"a \x1b[2J\r\xff\nhalf a li")
    assert look("logs", "done").stdout == "a \\x1b[2J\\x0d\ufffd\n"


def test_a_reader_that_leaves_early_is_no_error(rlrun: Any, some: Path) -> None:
    (some / "p" / "done" / "console.log").write_text("line\n" * 100_000)
    process = rlrun.begin("logs", "done", stdout=subprocess.PIPE)
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.wait(timeout=600) == 0
    assert (rlrun.folder / "said").read_text() == ""


def test_a_log_is_followed_by_whole_lines_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_view, "LOOK_S", 0.0)
    (log := tmp_path / "console.log").write_text("one\ntwo\n")
    pieces = iter(["half of", " é\n", "last\n"])

    def alive() -> bool:
        with log.open("a") as file:
            return bool(file.write(next(pieces, "")))

    assert list(log_view.tail(log, alive, 1)) == ["two", "half of é", "last"]


def test_a_row_that_a_reward_hangs_on_is_found(look: Look, tmp_path: Path) -> None:
    begun = life("p/hangs")[:3]
    make(tmp_path, "p/hangs", *begun, Waiting(at=9.0, text="reward my.py:3: sleep(60), row a.csv:29", for_s=5.0))
    make(tmp_path, "p/goes", *begun, Waiting(at=9.0, text="reward my.py", for_s=5.0), Waiting(at=9.5, text=""))
    hangs, goes = (look("diagnose", "--profile", "measured", f"p/{name}").output for name in ("hangs", "goes"))
    assert "it waits for reward my.py:3: sleep(60), row a.csv:29" in hangs and "it waits" not in goes


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["nan"], ["p/nan"]),
        (["SFT", "--sort", "run"], ["p/done", "p/nan", "q/killed"]),
        (["--status", "failed"], ["q/killed"]),
        (["--sort", "took"], ["p/done", "p/nan", "q/killed"]),
        (["nothing"], []),
    ],
)
def test_runs_are_picked_and_sorted(words: list[str], names: list[str], look: Look, some: Path) -> None:
    assert [node["run"] for node in json.loads(look("runs", "--json", *words).stdout)] == names
    assert "--status: got 'faild'; did you mean failed?" in look("runs", "--status", "faild").stderr


WIDE = {
    "run": "quickstart/a-rather-long-name-of-a-run", "status": "finished", "step": "400/400", "outcome": "not learned",
    "held out": "reverse 0.879 [0.833–0.913]", "training": "score 0.805", "took": "03:00",
    "started": "2026-11-22 19:24", "algorithm": "GRPO", "best": "0.879 [0.833–0.913] at 400",
    "at first": "0.176 [0.134–0.227]",
}  # fmt: skip


@pytest.mark.parametrize("width", range(60, 201, 10))
def test_the_table_of_runs_fits_its_terminal(width: int) -> None:
    row = dict(WIDE)
    columns = fitting_columns([row], width)
    assert {"run", "status", "step", "outcome"} <= {*columns}
    assert sum(max(len(row[name]), len(name)) + 2 for name in columns) <= width + 2
    assert ("held out" in columns) == (width >= 100) and ("best" in columns) == (width >= 180)
