"""The keeper of a node: `python -m launcher.clusters.nodes.keeper FOLDER`, in a session of its own.

It runs `ray start --block` and starts it again when it ends: a head at the same port, so that the nodes find it; any
other node once the head answers. It never loads Ray. A head that was restarted does not know its nodes, so a node whose
head has died is started again as well. SIGTERM ends the node and the keeper.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from launcher.clusters.nodes import processes
from launcher.clusters.nodes.home import Home, Node, Phase, State
from launcher.clusters.nodes.processes import UP, start_argv, start_env
from launcher.core import machine
from launcher.core.problems import error_message

POLL_S, CONNECT_S, EVERY_S = 0.1, 2.0, 0.5
START_S = 90.0  # for Ray to start; it gives up itself where the node has not registered after 30 s
TRIES = 4  # until it is up for the first time, as Ray may time out on a busy machine; afterwards without limit
LEAST_S, MOST_S = 0.5, 10.0  # between two starts; doubled with each that fails
GRACE_S = 8.0
LOG_BYTES = 4 * 2**20
ADOPT = 36  # PR_SET_CHILD_SUBREAPER
FINAL = {
    "Unauthenticated": "the token is not the cluster's; use the head's, by --token-file",
    "InvalidAuthToken": "the token is not the cluster's; use the head's, by --token-file",
    "Version mismatch": "Ray or Python is of another version than the head's; use the same",
    "No such option": "ray start does not know one of the options that are passed to it; use others after --",
}
"""Messages of Ray after which a second try is pointless."""


class Keeper:
    def __init__(self, home: Home, node: Node) -> None:
        self.home, self.node = home, node
        self.stopping = False
        self.starts, self.up, self.was_up = 0, False, False
        self.state = State("starting")
        self.checked_at, self.answered_at = 0.0, time.monotonic()

    def run(self) -> int:
        """Keep Ray running until SIGTERM, or until its first start has failed for good. Returns the exit code."""
        pause, why = LEAST_S, ""
        while not self.stopping:
            if not self.node.head and not self._head_answers():
                no_answer = f"the head at {self.node.address} does not answer"
                if time.monotonic() - self.answered_at > (self.node.leave_after_s or math.inf):
                    self._set_state("failed", no_answer)
                    return 0
                self._set_state("waiting", no_answer)
                self._sleep(EVERY_S)
                continue
            self._set_state("starting", why)
            why = self._run_ray()
            if self.stopping:
                break
            if not self.was_up and (self.starts >= TRIES or why in FINAL.values()):
                self._set_state("failed", why)
                return 1
            pause = LEAST_S if self.up else min(pause * 2, MOST_S)
            self._set_state("waiting", why)
            self._sleep(pause)
        return 0

    def _run_ray(self) -> str:
        """Start Ray and wait for its end; returns why it ended."""
        self.starts, self.up = self.starts + 1, False
        try:
            self._remove_leftovers()
            with self.home.ray_log.open("ab") as log:
                log_start = log.tell()
                ray = subprocess.Popen(
                    start_argv(self.node), env=start_env(self.node, self.home.token), stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        except OSError as error:  # a full disk, too many processes: it may pass
            return error_message(error)
        try:
            return self._watch(ray, log_start)
        finally:
            # Ray itself is ended first, as it then tells the head that the node leaves; a dead one cannot
            first = ray.pid if self.stopping and ray.poll() is None else None
            processes.end(self.node, first, GRACE_S, os.getpid())
            ray.wait()

    def _watch(self, ray: subprocess.Popen[bytes], log_start: int) -> str:
        started_at = time.monotonic()
        while not self.stopping:
            if (code := ray.poll()) is not None:
                return self._why_ended(log_start, code)
            if not self.up and (self.node.ray_temp / UP).exists():
                self.up = self.was_up = True
                self._set_state("up")
            if not self.up and time.monotonic() - started_at > START_S:
                return f"it was not up after {START_S:g} s"
            _reap(ray.pid)
            if self._head_died():
                return f"the head at {self.node.address} has died"
            time.sleep(POLL_S)
        return ""

    def _head_died(self) -> bool:
        """Whether the head's machine answers and nothing listens there: a new head will not know this node. A machine
        that does not answer at all is left to Ray's own timeout."""
        if self.node.head or time.monotonic() - self.checked_at < EVERY_S:
            return False
        return self._head_answers() is False

    def _head_answers(self) -> bool | None:
        """Whether the head accepts connections; None where its machine does not answer."""
        self.checked_at = time.monotonic()
        try:
            machine.check_listening(self.node.address, CONNECT_S)
        except ConnectionRefusedError:
            return False
        except OSError:
            return None
        self.answered_at = time.monotonic()
        return True

    def _why_ended(self, log_start: int, code: int) -> str:
        """Why Ray ended, from its output since the position `log_start`."""
        with self.home.ray_log.open("rb") as log:
            log.seek(log_start)
            text = log.read().decode("utf-8", "replace")
        for mark, reason in FINAL.items():
            if mark in text:
                return reason
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"ray ended with {code}: {lines[-1][:200] if lines else 'it printed nothing'}"

    def _remove_leftovers(self) -> None:
        """Remove what earlier starts left: the mark that Ray is up, old session logs, and too long logs of the node."""
        temp = self.node.ray_temp
        for folder in (temp.parent, temp):
            folder.mkdir(mode=0o700, exist_ok=True)
        (temp / UP).unlink(missing_ok=True)
        for old in sorted(path for path in temp.glob("session_*") if not path.is_symlink())[:-1]:
            shutil.rmtree(old, ignore_errors=True)
        for log in (self.home.ray_log, self.home.keeper_log):
            if log.exists() and log.stat().st_size > LOG_BYTES:
                os.truncate(log, 0)

    def _set_state(self, phase: Phase, why: str = "") -> None:
        if (phase, why) == (self.state.phase, self.state.why) and self.state.pid:
            return
        self.state = State(phase, why, self.starts, os.getpid())
        with suppress(OSError):  # a full disk must not end a node
            print(time.strftime("%Y-%m-%d %H:%M:%S"), phase, why, flush=True)
            self.home.write_state(self.state)

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < end:
            time.sleep(POLL_S)

    def stop(self, _: int, __: FrameType | None) -> None:
        self.stopping = True


def _become_subreaper() -> None:
    """Orphans of Ray become children of this process, so that they can be ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)


def _reap(but: int) -> None:
    """Reap adopted children that have ended, but not `but`."""
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == but:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def main(folder: str) -> int:
    home = Home(Path(folder))
    node = home.node()
    if node is None:
        return 2
    _become_subreaper()
    os.umask(0o077)  # also of what Ray writes
    keeper = Keeper(home, node)
    signal.signal(signal.SIGTERM, keeper.stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    code = keeper.run()
    shutil.rmtree(node.temp, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
