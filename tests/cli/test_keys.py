"""The key of the live view, on a real terminal: it shows what the numbers mean, and the terminal stays as it was."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from launcher.cli.live_view import EXPLAIN, Keys, meanings
from launcher.core.metrics import HeldOut
from launcher.core.state import RunState

ROOT = Path(__file__).parents[2]
STATE = RunState(
    run="p/a", status="running", step=3, steps=9, started_at=0.0,
    metrics={"critic/score/mean": 0.5, "actor/entropy": 0.3, "my/own": 1.0, "timing_s/step": 1.0},
    last=HeldOut(3, "val-core/openai/gsm8k/reward/mean@1", 0.5),
)  # fmt: skip
VIEW = """
import os, sys, termios, time
from launcher.cli.live_view import watching
from launcher.core.events import Ended
from launcher.core.state import RunState
before = termios.tcgetattr(0)
state = RunState(run="p/a", status="running", steps=9, started_at=0.0, metrics={"actor/entropy": 0.3})
try:
    with watching() as view:
        print("RAW" if not termios.tcgetattr(0)[3] & termios.ICANON else "COOKED", flush=True)
        while not os.path.exists(sys.argv[1]):
            view.write(state, [], [])
            time.sleep(0.01)
        if sys.argv[2] == "error":
            raise ValueError("an error of the run")
        from dataclasses import replace
        view.write(replace(state, status="finished"), [Ended(how="finished")], [])
except (ValueError, KeyboardInterrupt) as error:
    print(type(error).__name__)
print("SAME" if termios.tcgetattr(0) == before else "CHANGED", flush=True)
"""


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.text = ""
        self.pid, self.fd = pty.fork()
        if not self.pid:
            env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
            os.execve(sys.executable, [sys.executable, "-c", VIEW, *arguments], env)

    def until(self, text: str) -> None:
        """Read until the terminal shows `text` after what was waited for before."""
        while text not in self.text:
            assert select.select([self.fd], [], [], 60)[0], f"no {text!r} in {self.text!r}"
            with suppress(OSError):  # Linux: the other end is closed
                if more := os.read(self.fd, 65536).decode(errors="replace"):
                    self.text += more
                    continue
            raise AssertionError(f"no {text!r} in {self.text!r}")
        self.text = self.text.partition(text)[2]

    def press(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def close(self) -> None:
        os.close(self.fd)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    held = list[Terminal]()

    def open_one(*arguments: str) -> Terminal:
        held.append(Terminal(*arguments))
        return held[-1]

    yield open_one
    for each in held:
        each.close()


def test_a_key_shows_meanings_and_hides_them(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    end = tmp_path / "end"
    shown = terminal(str(end), "well")
    shown.until("RAW")
    shown.until("what the numbers mean")
    shown.press(b"xy\x1b[A" + EXPLAIN.encode())  # other keys do nothing
    shown.until("mean entropy of the policy per token")
    shown.until("back to the run")
    shown.press(EXPLAIN.encode())
    shown.until("what the numbers mean")
    end.touch()
    shown.until("finished")
    shown.until("SAME")


@pytest.mark.parametrize("how", ["error", "interrupt"])
def test_the_terminal_is_as_it_was_however_it_ends(how: str, terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    end = tmp_path / "end"
    shown = terminal(str(end), how)
    shown.until("RAW")
    shown.until("what the numbers mean")
    if how == "error":
        end.touch()
        shown.until("ValueError")
    else:
        shown.press(b"\x03")  # Ctrl-C is still Ctrl-C
        shown.until("KeyboardInterrupt")
    shown.until("SAME")


def test_a_terminal_of_another_process_is_left_alone() -> None:
    """In the background to change a terminal, or to read from it, would stop the process."""
    ours, theirs = pty.openpty()
    try:
        before = termios.tcgetattr(theirs)
        with os.fdopen(os.dup(theirs)) as stream:
            keys = Keys(stream)
            os.write(ours, b"m\n")
            assert not keys.readable and keys.pressed() == ""
            keys.close()
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


def test_where_no_keys_can_be_typed_there_are_none(tmp_path: Path) -> None:
    closed = (tmp_path / "file").open("w")
    closed.close()
    with (tmp_path / "file").open() as file:
        for stream in (None, io.StringIO(), closed, file):
            keys = Keys(stream)
            assert not keys.readable and keys.pressed() == ""
            keys.close()


def test_meanings_name_what_the_picture_shows() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(meanings(STATE))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("p/a  3/9", "entropy", "in nats", "openai/gsm8k", "mean score over n answers", "critic/score/mean"):
        assert part in text
    assert "my/own" not in text
    console.print(meanings(RunState()))  # before the first step


def test_a_small_screen_takes_them() -> None:
    console = Console(file=io.StringIO(), width=20, height=5)
    console.print(meanings(STATE))
