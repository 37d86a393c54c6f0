"""The process that watches a confined shell: `python -m launcher.sandbox.keeper`.

Its input is a `ShellCommand` as JSON. It starts the command and ends all its descendants when the command has ended or
a limit is reached, also those that have lost their parent. It prints a `ShellOutcome` as JSON. When the process that
started it dies, it ends them, too.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.sandbox import confine

CPU_S, CPU_OF_A_PROGRAM_S = 1.0, 0.01  # of all processes of a run; launch scripts take a tenth of it
WALL_S = 20.0  # enough on a busy machine, too; scripts that wait for something are ended earlier, by IDLE
IDLE = 25  # polls in a row without any activity: the script waits forever
PROCESSES, MEMORY_BYTES, FILE_BYTES, FILES_BYTES, RECORDS = 64, 2**29, 2**24, 2**26, 300
LIMITS = {"cpu_s": 4, "memory_bytes": MEMORY_BYTES, "file_bytes": FILE_BYTES}
POLL_S = 0.005  # at first; later ten times as long
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ShellCommand:
    command: Sequence[str]
    folder: str
    """Working directory of the command."""
    environment: Mapping[str, str]
    sandbox: str
    """The folder that it may change: what it writes and records, with `stdin` and `stderr`."""
    read: Sequence[str]
    execute: Sequence[str]
    confined: bool = True


@dataclass(frozen=True)
class ShellOutcome:
    code: int
    stopped: str
    """The limit that it reached; empty where it ended by itself."""
    cpu_s: float


@dataclass(frozen=True)
class ShellProcess:
    pid: int
    state: str
    parent: int
    ticks: int
    """Processor time of it and of its children that have ended."""
    pages: int


def main() -> None:
    command = ShellCommand(**json.load(sys.stdin))
    confine.adopt_orphans()
    confine.die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: _end_and_exit())
    json.dump(asdict(_run(command)), sys.stdout)


def _run(command: ShellCommand) -> ShellOutcome:
    """Raises `OSError` where the command cannot be started, or not be confined."""
    rules = confine.ruleset(command.read, command.execute, [command.sandbox]) if command.confined else None
    profile = confine.shell_profile(confine.landlock_version())

    def restrict() -> None:
        # No limit of processes binds root: the process that watches must come first, so that a fork bomb ends soon.
        os.nice(5)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, and does not kill
        confine.confine(profile, LIMITS, rules)

    stdin, stderr = Path(command.sandbox, "stdin"), Path(command.sandbox, "stderr")
    with stdin.open("rb") as source, stderr.open("wb") as error_file:
        process = subprocess.Popen(
            command.command, cwd=command.folder, env=dict(command.environment), stdin=source, stdout=subprocess.DEVNULL,
            stderr=error_file, start_new_session=True, preexec_fn=restrict, pass_fds=[rules] if rules else [],
        )  # fmt: skip
    if rules is not None:
        os.close(rules)
    try:
        code, stopped = _watch(process, Path(command.sandbox))
    finally:
        with suppress(ProcessLookupError):  # before they are listed: a fork bomb would go on meanwhile
            os.killpg(process.pid, signal.SIGKILL)
        end_descendants()
    times = os.times()
    return ShellOutcome(code, stopped, times.children_user + times.children_system)


def _watch(process: subprocess.Popen[bytes], sandbox: Path) -> tuple[int, str]:
    """Waits until the command and its descendants have ended, or a limit is reached; exit code and limit, or ""."""
    started_at = time.monotonic()
    last_activity, idle, pause = (0, 0, set[int]()), 0, POLL_S
    while True:
        time.sleep(pause)
        pause = min(1.5 * pause, 10 * POLL_S)
        now, processes = time.monotonic(), _reap(process)
        if not processes:
            return process.returncode, ""
        times = os.times()
        ticks = sum(one.ticks for one in processes) + round((times.children_user + times.children_system) * TICK)
        activity = ticks, _size(sandbox / "trace"), {one.pid for one in processes}
        idle = 0 if activity != last_activity or any(one.state in "RD" for one in processes) else idle + 1
        last_activity = activity
        programs = _count(sandbox / "records")
        reasons = {
            f"used more than {CPU_S:g} s of processor time": ticks > (CPU_S + programs * CPU_OF_A_PROGRAM_S) * TICK,
            f"took more than {WALL_S:g} s": now - started_at > WALL_S,
            "waits for what does not come": idle > IDLE,
            f"started more than {PROCESSES} processes at a time": len(processes) > PROCESSES,
            "used more memory than a launch script needs":
                sum(one.pages for one in processes) * os.sysconf("SC_PAGE_SIZE") > 2 * MEMORY_BYTES,
            "wrote more than a launch script needs": _bytes_below(sandbox) > FILES_BYTES,
            f"started more than {RECORDS} programs": programs > RECORDS,
        }  # fmt: skip
        if reached := next((reason for reason, exceeded in reasons.items() if exceeded), ""):
            return process.poll() or 0, reached


def _reap(process: subprocess.Popen[bytes]) -> list[ShellProcess]:
    """Collects the exit status of the command and of orphans that were adopted, where they have ended. Returns the
    processes that are left."""
    process.poll()
    remaining = list[ShellProcess]()
    for one in _descendants():
        if one.state == "Z" and one.parent == os.getpid() and one.pid != process.pid:
            with suppress(ChildProcessError):
                os.waitpid(one.pid, os.WNOHANG)
        else:
            remaining.append(one)
    return remaining


def _descendants() -> list[ShellProcess]:
    processes, parents = list[ShellProcess](), [os.getpid()]
    while parents and len(processes) <= 2 * PROCESSES:  # enough to see that there are too many
        for pid in _children(parents.pop()):
            with suppress(OSError):  # it has ended
                fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
                ticks = sum(map(int, fields[11:15]))
                processes.append(ShellProcess(pid, fields[0], int(fields[1]), ticks, int(fields[21])))
                parents.append(pid)
    return processes


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    if os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
        return []
    children = []  # a kernel without these lists
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            stat = Path("/proc", name, "stat").read_text(errors="replace")
            children += [int(name)] if stat.rpartition(")")[2].split()[1] == str(pid) else []
    return children


def end_descendants(within_s: float = math.inf) -> None:
    """Kills all descendants and waits for each, for `within_s` at most: one that hangs in a driver cannot be killed.
    Whole groups are killed at once, so that none can start another while the list is read. Those that are not in it yet
    become children of this process once their parents are gone."""
    deadline, killed = time.monotonic() + within_s, list[int]()
    while time.monotonic() < deadline:
        pids, groups = [one.pid for one in _descendants() if one.state != "Z"], set[int]()
        for pid in pids:
            with suppress(ProcessLookupError):
                if (group := os.getpgid(pid)) == os.getpgrp():  # it has not left ours yet
                    os.kill(pid, signal.SIGKILL)
                else:
                    groups.add(group)
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(POLL_S if pids == killed else 0)  # at once, where others have been started since
        killed = pids


def _end_and_exit() -> None:
    end_descendants()
    os._exit(1)


def _bytes_below(folder: Path) -> int:
    """Bytes on disk of all files below `folder`; links are not followed."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def _size(path: Path) -> int:
    with suppress(OSError):
        return os.lstat(path).st_size
    return 0


def _count(folder: Path) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


if __name__ == "__main__":
    main()
