"""Forks of a nursery are what `Popen` would have started, sooner; where there is none, `Popen` starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launcher.clusters import spare
from launcher.clusters.spare import MODULE, Fork, Process, Spare, begin

BORN = """
import os, signal, sys, time
LOADED = []
def preload():
    LOADED.append(os.getpid())
def main():
    if sys.argv[1] == "tell":
        os.write(int(os.environ["RLRUN_TOLD"]), b"in the file")
        print(sys.argv, os.getcwd(), os.environ["WORD"], os.getsid(0) == os.getpid(), os.nice(0))
        print("by a nursery" if LOADED and LOADED[0] != os.getpid() else "by itself", file=sys.stderr)
        print(sys.stdin.readline())
        return 3
    if sys.argv[1] == "raise":
        raise ValueError("of its own")
    if sys.argv[1] == "exit":
        sys.exit("no way")
    print("ready", flush=True)
    time.sleep(60)
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (tmp_path / "born.py").write_text(BORN)
    short = Path("/tmp") / f"rl-{os.getpid()}-{time.monotonic_ns() % 10**9}"  # a socket's path may have 107 characters
    short.mkdir()
    monkeypatch.setattr(spare.tempfile, "gettempdir", lambda: str(short))
    monkeypatch.setattr(spare, "AFTER_S", 0.0)
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths, "WORD": "as given"}


def words(*more: str) -> list[str]:
    return [sys.executable, *MODULE, "born", *more]


def nurseries() -> list[psutil.Process]:
    every = [(one, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    here = spare.tempfile.gettempdir()
    return [one for one, argv in every if "launcher.clusters.nursery" in argv and here in argv[4]]


def until(true: Callable[[], object], seconds: float = 20) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.fixture
def nursery(env: dict[str, str]) -> Iterator[psutil.Process]:
    Spare(words(), env).look()
    until(lambda: any(path.is_socket() for path in Path(spare.tempfile.gettempdir()).glob("*/*")))
    until(lambda: len(nurseries()) == 1)  # what began it has ended
    yield nurseries()[0]
    for one in nurseries():
        one.kill()


def told(env: dict[str, str], tmp_path: Path) -> tuple[Process, str, str]:
    """All that a process says: on its output, on its error output and in an open file."""
    kept, errors = os.open(tmp_path / "kept", os.O_RDWR | os.O_CREAT), os.open(tmp_path / "err", os.O_RDWR | os.O_CREAT)
    process = begin(
        words("tell"), {**env, "RLRUN_TOLD": str(kept), "RANK": "1"}, subprocess.PIPE, errors, (kept,), str(tmp_path)
    )
    assert process.stdin and process.stdout
    process.stdin.write(b"a line\n")
    process.stdin.close()
    said = process.stdout.read().decode()
    assert process.wait(20) == 3
    for file in (kept, errors):
        os.close(file)
    assert (tmp_path / "kept").read_text() == "in the file"
    return process, said, (tmp_path / "err").read_text()


@pytest.mark.usefixtures("nursery")
def test_a_fork_is_what_popen_would_have_started(env: dict[str, str], tmp_path: Path) -> None:
    process, said, by = told(env, tmp_path)
    assert isinstance(process, Fork) and by == "by a nursery\n"
    assert said == f"['born', 'tell'] {tmp_path} as given True {os.nice(0)}\na line\n\n"


@pytest.mark.usefixtures("nursery")
def test_who_wants_none_has_none(env: dict[str, str]) -> None:
    process = begin(words("exit"), env, subprocess.PIPE, 2, (), spare=False)
    assert isinstance(process, subprocess.Popen)
    process.communicate()


def test_without_a_nursery_it_is_started_as_ever(env: dict[str, str], tmp_path: Path) -> None:
    process, said, by = told(env, tmp_path)
    assert isinstance(process, subprocess.Popen) and by == "by itself\n"
    assert said.endswith(f"{tmp_path} as given True {os.nice(0)}\na line\n\n")


def test_what_a_nursery_left_behind_is_no_nursery(nursery: psutil.Process, env: dict[str, str], tmp_path: Path) -> None:
    nursery.kill()
    nursery.wait()
    assert isinstance(told(env, tmp_path)[0], subprocess.Popen)
    Spare(words(), env).look()  # the next one takes its place
    until(lambda: isinstance(told(env, tmp_path)[0], Fork))


@pytest.mark.usefixtures("nursery")
@pytest.mark.parametrize(("what", "code", "says"), [("raise", 1, "ValueError: of its own"), ("exit", 1, "")])
def test_what_it_ends_with(what: str, code: int, says: str, env: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "err").open("w") as errors:
        assert begin(words(what), env, errors.fileno(), errors.fileno(), (), spare=True).wait(20) == code
    assert says in (tmp_path / "err").read_text()


@pytest.mark.usefixtures("nursery")
def test_signals_reach_it_and_it_may_be_killed(env: dict[str, str]) -> None:
    process = begin(words("wait"), env, subprocess.PIPE, 2, (), spare=True)
    assert isinstance(process, Fork) and process.stdout and process.stdout.readline() == b"ready\n"
    assert process.poll() is None
    assert " ".join(psutil.Process(process.pid).cmdline()).strip().endswith("-P -m born wait")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL == process.poll()
    process.send_signal(signal.SIGKILL)  # nobody's number by now


def test_a_fork_outlives_its_nursery(nursery: psutil.Process, env: dict[str, str]) -> None:
    process = begin(words("wait"), env, subprocess.PIPE, 2, (), spare=True)
    assert isinstance(process, Fork) and process.stdout and process.stdout.readline() == b"ready\n"
    nursery.kill()
    nursery.wait()
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == -signal.SIGKILL  # with what it ended nobody knows


@pytest.mark.usefixtures("nursery")
def test_another_environment_is_not_answered(env: dict[str, str], tmp_path: Path) -> None:
    assert isinstance(told({**env, "OMP_NUM_THREADS": "7"}, tmp_path)[0], subprocess.Popen)


@pytest.mark.usefixtures("nursery")
def test_there_is_one_for_all(env: dict[str, str]) -> None:
    Spare(words(), env).look()
    until(lambda: len(nurseries()) == 1)


def test_a_folder_that_others_may_write_is_not_used(env: dict[str, str], tmp_path: Path) -> None:
    (Path(spare.tempfile.gettempdir()) / f"rlrun-spare-{os.getuid()}").mkdir(mode=0o777)
    os.chmod(Path(spare.tempfile.gettempdir()) / f"rlrun-spare-{os.getuid()}", 0o777)
    Spare(words(), env).look()
    assert isinstance(told(env, tmp_path)[0], subprocess.Popen) and not nurseries()


def test_it_ends_when_nobody_needs_it(env: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "n"
    code = "import sys, pathlib; from launcher.clusters import nursery as n; n.IDLE_S = 0.5; "
    code += "n.main(pathlib.Path(sys.argv[1]), 'born')"
    assert subprocess.run([sys.executable, "-c", code, str(place)], env=env, timeout=30).returncode == 0
    until(place.exists)
    until(lambda: not place.exists())
