"""The process that has joined a Ray cluster, from our side of the pipe: no wait on it is without an end."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any

from launcher.clusters.nodes.processes import NO_NODE
from launcher.core import machine
from launcher.core.problems import Problems, error_message
from launcher.tools.doctor.loading import reason, tail

MODULE = "launcher.clusters.ray.ask"
JOIN_S, KNOCK_S, GRACE_S, LISTEN_S = 20.0, 3.0, 10.0, 0.25
TOLD = {
    "Unauthenticated": "this token, or none, is not the cluster's",
    "Failed to connect to GCS at address": "nothing answers where Ray believes its head to be",
}
"""What Ray writes to its log while it goes on to try, and what that means."""
WHERE = "cluster"
START = "ray start --head on one machine, and its address"
JOIN = "rlrun cluster join"


@dataclass(frozen=True)
class Node:
    """A node as Ray lists it."""

    id: str
    alive: bool
    address: str
    hostname: str
    cpus: float
    gpus: float
    free_cpus: float = 0.0
    free_gpus: float = 0.0


@dataclass(frozen=True)
class Reply:
    """What a node's process said, or why there is nothing: it is `lost`."""

    code: int = 0
    out: str = ""
    err: str = ""
    lost: str = ""


class Bridge:
    """Joins the cluster when it is made. Raises `Problems` where that does not come about in `JOIN_S`."""

    def __init__(self, address: str | None, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """`more` goes to the environment of the process that joins, such as where the token is."""
        self.address = address or os.environ.get("RAY_ADDRESS") or "auto"
        if find_spec("ray") is None:
            raise Problems([f"{WHERE}: ray is not installed here; pip install ray would do"])
        _knock(self.address)
        self._err, self._half = TemporaryFile(), b""  # noqa: SIM115  # open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, self.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._err,
            env={**os.environ, **more},
        )
        try:
            self.nodes = self._joined()
        except BaseException:
            self.close()
            raise

    def _joined(self) -> list[Node]:
        """Ray tries again for longer than anyone waits; what it says meanwhile is listened to."""
        give_up, told, why = time.monotonic() + JOIN_S, None, ""
        while told is None and not why and time.monotonic() < give_up:
            told = self._read(min(time.monotonic() + LISTEN_S, give_up))
            if told is None:
                log, code = tail(self._err), self._process.poll()
                why = next((says for mark, says in TOLD.items() if mark in log), "")
                why = why or ("" if code is None else f"the process that joins it ended: {reason(log, code)}")
        if told and "nodes" in told:
            return [Node(**node) for node in told["nodes"]]
        why = told["refused"] if told else why or f"it did not take us in within {JOIN_S:g} s"
        raise Problems([f"{WHERE}: {self.address}: {why}; {_cure(why)} would do"])

    def ask(self, module: str, texts: Mapping[str, str], seconds: float) -> Iterator[tuple[str, Reply]]:
        """What `python -m module` says on each node to the text that it is given, as it comes."""
        asked = {node: {"module": module, "text": text} for node, text in texts.items()}
        self._write({"seconds": seconds, "asked": asked})
        missing, give_up = set(texts), time.monotonic() + seconds + GRACE_S
        while missing:
            told = self._read(give_up)
            if told is None:
                yield from ((node, Reply(lost="the connection to the cluster was lost")) for node in sorted(missing))
                return
            node = told.pop("node")
            missing.discard(node)
            yield node, Reply(**told)

    def _write(self, node: Any) -> None:
        if self._process.stdin:
            try:
                self._process.stdin.write(json.dumps(node).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                return  # the process has ended, which the next read finds out

    def _read(self, give_up: float) -> dict[str, Any] | None:
        """The next line; None where there is none until `give_up`, or none any more."""
        if not self._process.stdout:
            return None
        file = self._process.stdout.fileno()
        while b"\n" not in self._half:
            left = give_up - time.monotonic()
            if left <= 0 or not select.select([file], [], [], left)[0]:
                return None
            if not (came := os.read(file, 1 << 16)):
                self._process.wait(GRACE_S)
                return None
            self._half += came
        line, _, self._half = self._half.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        """End the process; the cluster goes on."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._err):
            if pipe:
                pipe.close()


def _knock(address: str) -> None:
    """Where nothing listens, Ray takes two minutes to say so. Raises `Problems`."""
    if address == "auto" or address.startswith("ray://"):
        return
    port = address.rpartition(":")[2]
    if "/" in address or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise Problems([f"{WHERE}: {address} is no address; HOST:PORT, as ray start prints it, would do"])
    try:
        machine.check_listening(address, KNOCK_S)
    except OSError as error:
        raise Problems([f"{WHERE}: {address}: {error_message(error)}; {START} would do"]) from error


def _cure(why: str) -> str:
    low = why.lower()
    if "version mismatch" in low:
        return "ray and Python of the cluster's versions"
    if "auth" in low or "token" in low:
        return "RAY_AUTH_MODE=token and the cluster's RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH)"
    return JOIN if NO_NODE in why else START
