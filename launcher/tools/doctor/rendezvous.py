"""Whether nodes reach each other by TCP, each the others; and by that, how far their clocks are apart."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from threading import Event, Thread

from pydantic.dataclasses import dataclass

from launcher.core.check_result import CheckResult
from launcher.core.problems import error_message

SECONDS, AGAIN_S, TRIES = 20.0, 0.2, 3
APART_S = 1.0
_TIME = struct.Struct("!d")


@dataclass(frozen=True)
class Met:
    """How one node found another."""

    trip_s: float = 0.0
    """There and back."""
    ahead_s: float = 0.0
    """The other's clock minus ours, known to half of `trip_s`."""
    why: str = ""
    """Why it could not be reached; empty where it was."""


def meet(port: int, peers: Mapping[str, tuple[str, int]], seconds: float = SECONDS) -> dict[str, Met]:
    """Listens at `port` and connects to each of `peers` (address and port by name) until that worked or `seconds` are
    over; goes on to listen until as many have come. Raises `OSError` where it cannot listen."""
    give_up = time.monotonic() + seconds
    with socket.create_server(("", port), backlog=128) as server:
        came, ended = set[str](), Event()
        Thread(target=_listen, args=(server, came, len(peers), ended), daemon=True).start()
        found = {name: _reach(where, give_up) for name, where in peers.items()}
        ended.wait(max(give_up - time.monotonic(), 0))
    return found


def _listen(server: socket.socket, came: set[str], wanted: int, ended: Event) -> None:
    """Tell everyone who comes the time, as often as it is asked for."""
    while True:
        try:
            peer, (host, *_) = server.accept()
        except OSError:  # it was closed
            return
        Thread(target=_tell, args=(peer, host, came, wanted, ended), daemon=True).start()


def _tell(peer: socket.socket, host: str, came: set[str], wanted: int, ended: Event) -> None:
    with peer:
        try:
            peer.settimeout(SECONDS)
            while peer.recv(1):
                peer.sendall(_TIME.pack(time.time()))
        except OSError:
            return
    came.add(f"{host}:{id(peer)}")
    if len(came) >= wanted:
        ended.set()


def _reach(where: tuple[str, int], give_up: float) -> Met:
    why = "there was no time left"
    while (left := give_up - time.monotonic()) > 0:
        try:
            with socket.create_connection(where, left) as peer:
                peer.settimeout(left)
                return min((_ask(peer) for _ in range(TRIES)), key=lambda met: met.trip_s)
        except OSError as error:
            why = error_message(error)
            time.sleep(min(AGAIN_S, left))
    return Met(why=why)


def _ask(peer: socket.socket) -> Met:
    asked = time.time()
    began = time.perf_counter()
    peer.sendall(b"?")
    told = peer.recv(_TIME.size, socket.MSG_WAITALL)
    trip = time.perf_counter() - began
    if len(told) < _TIME.size:
        raise ConnectionError("it hung up")
    return Met(trip, _TIME.unpack(told)[0] - (asked + trip / 2))


def judged(met: Mapping[str, Mapping[str, Met]]) -> list[CheckResult]:
    """`met`: of each node, how it found each other."""
    apart = [f"{one} cannot reach {other} ({found.why})" for one, others in met.items()
             for other, found in others.items() if found.why]  # fmt: skip
    pairs = sum(map(len, met.values()))
    if apart:
        more = f" and {len(apart) - 3} more" if len(apart) > 3 else ""
        fix = "a firewall that lets all ports pass between the nodes would do"
        ports = CheckResult("FAIL", "ports between nodes", "; ".join(apart[:3]) + more, fix)
    else:
        slowest = max(found.trip_s for others in met.values() for found in others.values())
        message = (
            f"each of {len(met)} reaches every other ({pairs} ways, there and back in {slowest * 1e3:.2f} ms at most)"
        )
        ports = CheckResult("OK", "ports between nodes", message)
    return [ports, *_clocks(met)]


def _clocks(met: Mapping[str, Mapping[str, Met]]) -> list[CheckResult]:
    """By the clock of the first node that reached any."""
    for first, others in met.items():
        ahead = {other: found.ahead_s for other, found in others.items() if not found.why}
        if not ahead:
            continue
        wrong = [
            f"{other} is {abs(by):.1f} s {'ahead of' if by > 0 else 'behind'} {first}"
            for other, by in ahead.items()
            if abs(by) > APART_S
        ]
        if wrong:
            fix = "one time server for all (timedatectl set-ntp true) would do"
            return [CheckResult("WARN", "clocks", "; ".join(wrong), fix)]
        return [CheckResult("OK", "clocks", f"at most {max(map(abs, ahead.values())) * 1e3:.1f} ms apart")]
    return []
