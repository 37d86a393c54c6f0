"""Makes this machine the head or a node of a cluster, and removes it from there."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from launcher.clusters.nodes import processes
from launcher.clusters.nodes.home import COPY, Home, Node, State, here
from launcher.clusters.nodes.processes import port_error
from launcher.core import machine
from launcher.core.problems import OnMessage, Problem, Problems, error_message
from launcher.core.redaction import register_secret

PORT = 6379
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
UP_S, DOWN_S, CONNECT_S, POLL_S = 400.0, 30.0, 5.0, 0.1
SHORT = 38  # characters of the folder around Ray's: 67 more are added to it, and the path of a socket may have 107

EXPECTED = "expected HOST:PORT, as rlrun cluster up prints it"


def up(port: int | None, address: str | None, token: str | None, words: Sequence[str], tell: OnMessage) -> Node:
    """Make this machine the head of a cluster, by default with a new `token`, and wait for it. Raises `Problems`."""
    home = _free_home("up")
    ip = address or own_address()
    if port is not None and (error := port_error(port)):
        fix = f"use {machine.free_ports(1)[0]}"
        raise Problems(Problem("--port", f"{port}: {error_message(error)}", fix, "in-use"))
    chosen_port = port or (PORT if port_error(PORT) is None else machine.free_ports(1)[0])
    host = f"[{ip}]" if ":" in ip else ip
    node = Node(f"{host}:{chosen_port}", ip, True, secrets.token_hex(8), _temp(), tuple(words))
    return _start_node(home, node, token or secrets.token_hex(32), tell)


def join(
    address: str, token: str, ip: str | None, words: Sequence[str], tell: OnMessage, leave_after_s: float | None = None
) -> Node:
    """Add this machine to the cluster whose head is at `address`, unless it is in it already. Raises `Problems`."""
    if (present := here().node()) and present.address == address and here().has_keeper():
        return present
    home = _free_home("join")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise Problems(Problem(address, "is not an address", EXPECTED))
    try:
        machine.check_listening(address, CONNECT_S)
    except OSError as error:
        fix = "use rlrun cluster up there, and its address"
        raise Problems(Problem(address, error_message(error), fix, "not-reachable")) from error
    node = Node(address, ip or own_address(host), False, secrets.token_hex(8), _temp(), tuple(words), leave_after_s)
    return _start_node(home, node, token, tell)


def read_head(head: str, file: str | None, stdin: TextIO) -> tuple[str, str]:
    """Address and token of a head given as HOST:PORT or, on a shared disk, by its folder."""
    if not Path(head).is_dir():
        return head, read_token(file, stdin)
    home = Home(Path(head))
    if (node := home.node()) is None or not node.head:
        raise Problems(Problem(head, "is not the folder of a cluster's head", EXPECTED, "not-found"))
    return node.address, read_token(str(home.token), stdin)


def read_token(file: str | None, stdin: TextIO) -> str:
    """The cluster's token from `file`, from `stdin` for `-`, by default from this machine's earlier cluster."""
    path = Path(file or here().token)
    try:
        token = stdin.readline() if file == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        got = f"{path}: {error_message(error)}"
        raise Problems(Problem("--token-file", got, f"use {COPY}", "bad-file")) from error
    if not token.strip():
        raise Problems(Problem("--token-file", "holds no token", f"use {COPY}", "bad-file"))
    register_secret(token.strip())
    return token.strip()


@contextmanager
def hold(block: bool) -> Iterator[None]:
    """With `block`, for containers and steps of Slurm: this process and the node that is started in the context end
    together, and a signal ends both."""
    signals: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        signals.append(number)
        for ending in ENDING:
            signal.signal(ending, signal.SIG_IGN)
        raise SystemExit(128 + number)

    if not block:
        yield
        return
    for ending in ENDING:
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, end)
    try:
        yield
        while here().has_keeper():
            time.sleep(POLL_S)
        raise SystemExit(1)
    finally:
        if signals:
            down(lambda _: None)


def down(tell: OnMessage) -> str:
    """End this machine's node; returns a line on what has ended. Processes left by a keeper that was killed are found
    by their mark."""
    home = here()
    node = home.node()
    if node is None:
        return "nothing of a cluster was up"
    tell("ending Ray")
    if home.has_keeper() and (keeper := home.keeper_pid()):
        processes.send(keeper, signal.SIGTERM)
        if not _wait_until(lambda: not home.has_keeper(), DOWN_S):
            processes.send(keeper, signal.SIGKILL)
            _wait_until(lambda: not home.has_keeper(), DOWN_S)
    processes.end(node, None, 0)
    shutil.rmtree(node.temp, ignore_errors=True)
    home.clear()
    return f"the cluster at {node.address} has ended" if node.head else f"left the cluster at {node.address}"


def _free_home(doing: str) -> Home:
    """The folder for a new node. Raises `Problems` where this machine has a node."""
    home = here()
    node = home.node()
    if node and home.has_keeper():
        got = f"this machine {'is the head of' if node.head else 'is in'} the cluster at {node.address}"
        raise Problems(Problem(doing, got, "end it by rlrun cluster down", "in-use"))
    if node and (remaining := processes.find(node)):
        got = f"{len(remaining)} processes of the cluster at {node.address} have lost their keeper"
        raise Problems(Problem(doing, got, "end them by rlrun cluster down", "in-use"))
    if node:  # the machine was switched off, or its keeper gave up
        shutil.rmtree(node.temp, ignore_errors=True)
        home.clear()
    return home


def _start_node(home: Home, node: Node, token: str, tell: OnMessage) -> Node:
    lock = home.lock()
    if lock is None:
        shutil.rmtree(node.temp)
        raise Problems(Problem(str(home.path), "another rlrun cluster command runs there", "wait for it", "in-use"))
    try:
        _wait_up(home, _start_keeper(home, node, token, lock), tell)
    except BaseException:
        down(lambda _: None)
        shutil.rmtree(node.temp, ignore_errors=True)
        raise
    return node


def _start_keeper(home: Home, node: Node, token: str, lock: int) -> subprocess.Popen[bytes]:
    """Writes the node's files and starts its keeper, which holds `lock` as long as it lives."""
    try:
        home.token.unlink(missing_ok=True)
        with os.fdopen(os.open(home.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as token_file:
            token_file.write(token)
        home.write_node(node)
        home.write_state(State("starting"))
        with os.fdopen(os.open(home.keeper_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "launcher.clusters.nodes.keeper", str(home.path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=(lock,),
            )  # fmt: skip
    finally:
        os.close(lock)


def _wait_up(home: Home, keeper: subprocess.Popen[bytes], tell: OnMessage) -> None:
    deadline, shown = time.monotonic() + UP_S, ""
    while time.monotonic() < deadline:
        state = home.state() or State("starting")
        if state.phase == "up":
            return
        status = f"{state.phase} Ray" + (f", start {state.starts}: {state.why}" if state.why else "")
        if status != shown:
            tell(status)
            shown = status
        if keeper.poll() is not None:
            why = state.why or f"its keeper ended with {keeper.returncode}"
            log = home.ray_log if state.why else home.keeper_log
            failed_log = log.rename(log.with_suffix(".failed.log"))
            raise Problems(Problem("ray start", why, "" if "; " in why else f"see {failed_log}", "not-reachable"))
        time.sleep(POLL_S)
    raise Problems(Problem("ray start", f"was not up after {UP_S:g} s", f"see {home.ray_log}", "not-reachable"))


def _temp() -> str:
    """A new folder that only this user may enter, with a random name."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="rlrun-", dir=usual if len(usual) <= SHORT - len("/rlrun-12345678") else "/tmp")


def own_address(towards: str = "192.0.2.1") -> str:
    """Address of the network interface by which this machine would reach `towards`; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards.strip("[]"), 9))
            return str(probe.getsockname()[0])
        except OSError:
            pass
    addresses = (ip for ip in machine.interface_of_addresses() if ":" not in ip and ip != machine.LOOPBACK)
    return next(addresses, machine.LOOPBACK)


def _wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until `done`; False where that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not (is_done := done()) and time.monotonic() <= deadline:
        time.sleep(POLL_S)
    return is_done
