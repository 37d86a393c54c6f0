"""What a process says is in its log, without secrets, however it says it and however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from launcher.clusters.local import EVENT_LOG, Local, LocalJob
from launcher.core.log_redactor import LogRedactor
from launcher.spec.engine import Plan, Process

SECRET = "correct-Horse 77"
SIEVE = [sys.executable, "-P", "-m", "launcher.core.log_redactor"]


def sieved(talk: list[bytes], log: Path, signals: Iterable[signal.Signals] = ()) -> bytes:
    """The log when all of `talk` was written to the pipe, before the last piece the signals were sent, and the pipe's
    end was closed."""
    source, output = os.pipe()
    environment = {**os.environ, "MY_PASSWORD": SECRET}
    process = subprocess.Popen([*SIEVE, str(source), str(log)], pass_fds=[source], env=environment)
    os.close(source)
    for piece in talk[:-1]:
        os.write(output, piece)
    while signals and not (log.exists() and log.read_bytes()):  # until it runs
        assert process.poll() is None
    for number in signals:
        process.send_signal(number)
    os.write(output, talk[-1])
    os.close(output)
    assert process.wait(timeout=600) == 0
    return log.read_bytes()


def test_lines(tmp_path: Path) -> None:
    secret = SECRET.encode()
    talk = [b"a\nb\n", b"x ", secret[:8], secret[8:], b" y\n"]  # in pieces
    talk += [b"1/3\r2/3 " + secret + b"\r3/3\n"]  # a progress bar
    talk += [b"\xff\xfe " + secret + b"\n"]  # bytes that are no text stay
    log = sieved([*talk, b"no end " + secret], tmp_path / "log")
    assert log == b"a\nb\nx [secret] y\n1/3\r2/3 [secret]\r3/3\n\xff\xfe [secret]\nno end [secret]"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_it_outlives_what_ends_the_others(tmp_path: Path) -> None:
    """Ctrl-C and a stop reach it, too; the last words of the others are still to come."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    assert sieved([b"first\n", b"last\n"], tmp_path / "log", signals) == b"first\nlast\n"


KILLED = "import os, signal; os.write(1, b'told'); os.write(2, b' and cut'); os.kill(os.getpid(), signal.SIGKILL)"


def begun(program: str, logs: Path) -> LocalJob:
    """As the cluster starts it: through a job's pipes, which only the process holds."""
    with (logs / "lock").open("w") as lock:
        return Local().start(Plan((Process(0, (sys.executable, "-c", program)),)), logs, lock.fileno())


def exit_code(job: LocalJob) -> int:
    while (code := job.exit_code()) is None:
        pass
    return code


def test_what_a_killed_process_said_last_is_kept(tmp_path: Path) -> None:
    assert exit_code(begun(KILLED, tmp_path)) == -signal.SIGKILL
    assert (tmp_path / "rank-0.log").read_bytes() == b"told and cut"


def test_an_event_is_in_the_log_though_the_sieve_is_gone(tmp_path: Path) -> None:
    """It is the truth about a run, so nothing stands between it and the disk."""
    job = begun(f"input(); import os; os.write(int(os.environ['{EVENT_LOG}']), b'event\\n')", tmp_path)
    job._redactor.kill()
    job._redactor.wait()
    (process,) = job._processes.values()
    process.communicate(b"go\n")
    assert exit_code(job) == 0 and (tmp_path / "rank-0.log").read_bytes() == b"event\n"


@pytest.mark.parametrize(("talk", "written"), [
    ([b"a\nb", b"c\n"], [b"a\n", b"a\nbc\n", b"a\nbc\n"]), ([b"a\rb"], [b"a\r", b"a\rb"]),
    ([b"ab", b"c"], [b"", b"", b"abc"]),
    ([b"a\r", b"\nb\n"], [b"a\r", b"a\r\nb\n", b"a\r\nb\n"]), ([b"a\nb\rc"], [b"a\nb\r", b"a\nb\rc"]),
    ([b"a b " + b"c" * 65532] + [b"c" * 65536] * 3 + [b"c"], [b""] * 4 + [b"a b "] + [b"a b " + b"c" * 262141]),
    ([b"c" * 65536] * 4 + [b"c"], [b""] * 4 + [b"c" * 262145] * 2),
])  # fmt: skip
def test_whole_lines_are_written_as_they_come(talk: list[bytes], written: list[bytes], tmp_path: Path) -> None:
    source, output = os.pipe()
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    redactor, found = LogRedactor(source, log), list[bytes]()
    for piece in talk:
        os.write(output, piece)
        assert redactor.read()
        found.append((tmp_path / "log").read_bytes())
    os.close(output)
    assert not redactor.read()
    assert [*found, (tmp_path / "log").read_bytes()] == written
    os.close(source)
    os.close(log)
