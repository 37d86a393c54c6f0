"""`rlrun watch`: the picture of a run that somebody else writes, on a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from launcher.core.events import Ended, Event, Loaded, Phase, Started, Step, to_line
from launcher.runs.folder import Folder

BEGUN: list[Event] = [
    Started(at=time.time(), run="p/r", algorithm="GRPO", processes=1),
    Loaded(rows=8, refused=0, val_rows=0, val_refused=0, steps_per_epoch=5, steps=5),
    Phase(name="rollout"),
]


class Written:
    """A run's folder, and its writer, which holds its lock until it is closed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = Folder(folder)
        self.folder.spec.write_text("")
        self.lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.tell(*BEGUN)

    def tell(self, *events: Event) -> None:
        with self.folder.events.open("a") as log:
            log.write("".join(to_line(event) + "\n" for event in events))

    def close(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path / "runs" / "p" / "r")
    yield made
    made.close()


class Watching:
    """`rlrun watch` on a terminal; what it draws is read as it comes."""

    def __init__(self, rlrun: Any, name: str) -> None:
        self.terminal, inside = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        streams = {"stdin": inside, "stdout": inside, "stderr": inside}
        self.process: subprocess.Popen[str] = rlrun.begin("watch", name, env=env, **streams)
        os.close(inside)
        self.drawn = ""

    def sees(self, text: str) -> bool:
        """Whether it has been drawn since the last time that something was."""
        while select.select([self.terminal], [], [], 0.1)[0]:
            try:
                self.drawn += os.read(self.terminal, 65536).decode(errors="replace")
            except OSError:  # it has ended
                break
        return text in self.drawn

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.fixture
def watching(run: Written, tmp_path: Path, commands: Any) -> Iterator[Watching]:
    with closing(Watching(commands(tmp_path), "r")) as made:
        yield made


def test_it_draws_what_happens_until_the_run_ends(run: Written, watching: Watching, until: Callable[..., None]) -> None:
    until(lambda: watching.sees("rollout"))
    for step in (1, 2):
        run.tell(Step(step=step, metrics={"critic/score/mean": 0.5}))
        until(lambda step=step: watching.sees(f"{step}/5"))
    assert watching.process.poll() is None
    run.tell(Ended(how="failed", why="rank 0: killed"))
    run.close()
    until(lambda: watching.sees("rank 0: killed"))
    assert watching.process.wait(600) == 0, "it did what it was asked to, however the run did"


def test_ctrl_c_ends_the_watching_alone(run: Written, watching: Watching, until: Callable[..., None]) -> None:
    until(lambda: watching.sees("rollout"))
    watching.process.send_signal(signal.SIGINT)
    assert watching.process.wait(600) == 0
    assert "Traceback" not in watching.drawn and not (run.folder.path / ".stop").exists()


def test_a_log_is_drawn_with_what_is_appended(tmp_path: Path, commands: Any, until: Callable[..., None]) -> None:
    (log := tmp_path / "verl.log").write_text("step:20 - critic/score/mean:0.5\n")
    with closing(Watching(commands(tmp_path), "verl.log")) as watching:
        until(lambda: watching.sees("20/"))
        with log.open("a") as file:
            file.write("step:21 - critic/score/mean:0.5\n\rTraining Progress:  50%|█ | 21/42 [1:00<1:00, 2.0s/it]")
        until(lambda: watching.sees("21/42"))


def test_where_there_is_no_terminal_lines_are_printed(run: Written, tmp_path: Path, commands: Any) -> None:
    run.folder.console.write_text("step:1 - x:1.0\nfinished\n")
    run.close()
    ran = commands(tmp_path)("watch", "r")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "step:1 - x:1.0\nfinished\n", "")
