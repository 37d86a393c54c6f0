"""Forks of a nursery are what `Popen` would have started, sooner; where there is none, `Popen` starts it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launcher.clusters import spare
from launcher.clusters.spare import MODULE, Fork, Process, Spare, begin
from launcher.clusters.usage import Meter
from launcher.core.events import Usage

BORN = """
import os, signal, sys, time
LOADED = []
def preload():
    LOADED.append(os.getpid())
    if "IDLE" in os.environ:
        sys.modules["__main__"].IDLE_S = float(os.environ["IDLE"])
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
    sys.stdin.readline()
    return 5
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    (tmp_path / "born.py").write_text(BORN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spare, "AFTER_S", 0.0)
    monkeypatch.setattr(spare, "EVERY_S", 0.0)
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rl-") as short:  # a socket's path is short
        monkeypatch.setattr(spare.tempfile, "gettempdir", lambda: short)
        yield {**os.environ, "PYTHONPATH": paths, "WORD": "as given"}
        for one in nurseries():
            one.kill()


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


def there() -> bool:
    listens = any(path.is_socket() for path in Path(spare.tempfile.gettempdir()).glob("*/*"))
    return listens and len(nurseries()) == 1  # what began it has ended


@pytest.fixture
def nursery(env: dict[str, str]) -> psutil.Process:
    Spare(words(), env).look()
    until(there)
    return nurseries()[0]


def waiting(env: dict[str, str]) -> Fork:
    """A fork that waits for a line, then ends with 5."""
    process = begin(words("wait"), env, subprocess.PIPE, 2, (), spare=True)
    assert isinstance(process, Fork) and process.stdout and process.stdout.readline() == b"ready\n"
    return process


def told(env: dict[str, str], tmp_path: Path) -> tuple[Process, str, str]:
    """All that a process says: on its output, on its error output and in an open file, whose number is high."""
    low, errors = os.open(tmp_path / "kept", os.O_RDWR | os.O_CREAT), os.open(tmp_path / "err", os.O_RDWR | os.O_CREAT)
    kept = fcntl.fcntl(low, fcntl.F_DUPFD, 205)
    own = {**env, "RLRUN_TOLD": str(kept), "RANK": "1"}
    process = begin(words("tell"), own, subprocess.PIPE, errors, (kept,), spare=True)
    assert process.stdin and process.stdout
    process.stdin.write(b"a line\n")
    process.stdin.close()
    said = process.stdout.read().decode()
    assert process.wait(20) == 3
    for file in (low, kept, errors):
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
@pytest.mark.parametrize(("what", "says"), [("raise", "ValueError: of its own"), ("exit", "no way\n")])
def test_what_it_ends_with(what: str, says: str, env: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "err").open("w") as errors:
        process = begin(words(what), env, errors.fileno(), errors.fileno(), (), spare=True)
        assert isinstance(process, Fork) and process.wait(20) == 1
    assert says in (tmp_path / "err").read_text()


@pytest.mark.usefixtures("nursery")
def test_signals_reach_it_and_it_may_be_killed(env: dict[str, str]) -> None:
    process = waiting(env)
    assert process.poll() is None
    assert " ".join(psutil.Process(process.pid).cmdline()).strip().endswith("-P -m born wait")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL == process.poll()
    process.send_signal(signal.SIGKILL)  # nobody's number by now


@pytest.mark.parametrize("end", [5, -signal.SIGKILL])
def test_a_fork_outlives_its_nursery_and_says_what_it_ends_with(
    end: int, nursery: psutil.Process, env: dict[str, str]
) -> None:
    process = waiting(env)
    nursery.kill()
    nursery.wait()
    time.sleep(0.1)
    assert process.poll() is None and process.stdin
    process.send_signal(signal.SIGKILL) if end < 0 else process.stdin.close()
    assert process.wait(20) == end


@pytest.mark.usefixtures("nursery")
def test_what_a_fork_uses_is_known(env: dict[str, str], tmp_path: Path) -> None:
    process = waiting(env)
    meter, found = Meter({3: process.pid}, {3: ""}, tmp_path, 0.05), list[Usage]()
    until(lambda: found.extend(meter.take()) or found)
    meter.close()
    process.send_signal(signal.SIGKILL)
    assert found[0].rank == 3 and found[0].memory_bytes > 2**20


@pytest.mark.usefixtures("nursery")
@pytest.mark.parametrize("other", [{"OMP_NUM_THREADS": "7"}, {"WORD": "another"}])
def test_another_environment_is_not_answered(other: dict[str, str], env: dict[str, str], tmp_path: Path) -> None:
    """Libraries are loaded by it."""
    assert isinstance(told({**env, **other}, tmp_path)[0], subprocess.Popen)


@pytest.mark.usefixtures("nursery")
def test_another_folder_is_not_answered(env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path of Python's begins there."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert isinstance(told(env, tmp_path)[0], subprocess.Popen)


@pytest.mark.usefixtures("nursery")
def test_there_is_one_for_all(env: dict[str, str]) -> None:
    again = Spare(words(), env)
    again._begin(spare._place(words(), env, None))
    assert again._begun and again._begun.wait(20) == 0
    until(lambda: len(nurseries()) == 1)


def test_it_stays_as_long_as_it_is_held(env: dict[str, str]) -> None:
    """However long a run goes well: a fault may come any day."""
    held = Spare(words(), {**env, "IDLE": "0.3"})
    held.look()
    until(there)
    until(lambda: held.look() or held._line)
    [nursery] = nurseries()
    time.sleep(1.5)
    assert nursery.is_running()
    held.close()
    until(lambda: not nursery.is_running())
    assert not any(path.is_socket() for path in Path(spare.tempfile.gettempdir()).glob("*/*"))


def test_one_that_was_killed_is_replaced(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "PATIENCE_S", 0.0)
    held = Spare(words(), env)
    held.look()
    until(there)
    until(lambda: held.look() or held._line)
    [nursery] = nurseries()
    nursery.kill()
    nursery.wait()
    until(lambda: held.look() or (there() and nurseries() != [nursery]))
    held.close()


def test_a_folder_that_others_may_write_is_not_used(env: dict[str, str], tmp_path: Path) -> None:
    folder = Path(spare.tempfile.gettempdir()) / f"rlrun-spare-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    Spare(words(), env).look()
    assert isinstance(told(env, tmp_path)[0], subprocess.Popen) and not nurseries()


def test_a_module_that_does_not_load_leaves_nothing(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "born.py").write_text("def preload():\n    raise ImportError\n")
    begun = Spare(words(), env)
    begun.look()
    assert begun._begun and begun._begun.wait(20) == 0
    until(lambda: not nurseries())
