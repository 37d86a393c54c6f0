"""Which Ray cluster is meant, and its nodes as its head lists them.

The head is asked by a subprocess, `python -m launcher.clusters.ray.listing HOST:PORT`, which loads Ray and may hang or
abort. This machine need not be a node of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from launcher.core import machine
from launcher.core.problems import Problem, Problems, error_message
from launcher.core.user_code import CallFailure, shorten, try_call

CONNECT_S, ANSWER_S = 3.0, 20.0
START = "use ray start --head on one machine, and its address"
TOKEN = "set RAY_AUTH_MODE=token and the cluster's RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH)"
ALIVE = 0  # GcsNodeInfo.state


@dataclass(frozen=True)
class RayNode:
    """A node as Ray lists it."""

    alive: bool
    address: str
    cpus: float
    gpus: float


def head_address(address: str) -> str:
    """HOST:PORT of the head at `address`; of `auto` that of RAY_ADDRESS, else of the cluster that this machine is a
    node of. Raises `Problems` where there is none, or the shell's token cannot be read."""
    wanted = (os.environ.get("RAY_ADDRESS") or "auto") if address == "auto" else address
    if wanted == "auto":
        file = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray", "ray_current_cluster")
        try:
            wanted = file.read_text(encoding="utf-8").strip()  # written by `ray start`
        except (OSError, ValueError) as error:
            raise Problems(Problem("cluster", "this machine is in no cluster", START)) from error
    _check_token()
    return wanted


def _check_token() -> None:
    """Raises `Problems` where the shell's token cannot be read: Ray would abort."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    needs_token = path or os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    if os.environ.get("RAY_AUTH_TOKEN") or not needs_token:
        return
    file = Path(path or "~/.ray/auth_token").expanduser()
    try:
        why = "" if file.read_text(encoding="utf-8").strip() else "holds no token"
    except (OSError, ValueError) as error:
        why = error_message(error)
    if why:
        raise Problems(Problem("RAY_AUTH_TOKEN_PATH", f"{file}: {why}", "use a copy of the head's token", "bad-file"))


def is_node() -> bool:
    """Whether this machine is a node of any Ray cluster; where it is none, Ray would search for one for a minute."""
    return any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))


def check_address(address: str) -> None:
    """Raises `Problems` where nothing listens at `address`; Ray itself takes two minutes to find that out."""
    port = address.rpartition(":")[2]
    if "/" in address or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise Problems(Problem("cluster", f"{address} is not an address", "expected HOST:PORT"))
    try:
        machine.check_listening(address, CONNECT_S)
    except OSError as error:
        raise Problems(Problem("cluster", f"{address}: {error_message(error)}", START, "not-reachable")) from error


def list_nodes(address: str) -> list[RayNode]:
    """The nodes of the cluster at `address`. Raises `Problems` where the head does not answer in `ANSWER_S` seconds."""
    check_address(address)
    command = [sys.executable, "-P", "-m", __name__, address]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except subprocess.TimeoutExpired as error:
        why = f"{address}: no Ray head answered within {ANSWER_S:g} s"
        raise Problems(Problem("cluster", why, START, "not-reachable")) from error
    if completed.returncode:
        why = (completed.stderr.strip().splitlines() or [f"the listing ended with {completed.returncode}"])[-1]
        raise Problems(Problem("cluster", f"{address}: {shorten(why)}", START, "not-reachable"))
    answer = json.loads(completed.stdout.splitlines()[-1])
    if "nodes" in answer:
        return [RayNode(**node) for node in answer["nodes"]]
    if answer["kind"] == "AuthenticationError":
        why = f"{address}: this token, or none, is not the cluster's"
        raise Problems(Problem("cluster", why, TOKEN, "not-permitted"))
    raise Problems(Problem("cluster", f"{address}: {answer['reason']}", START, "not-reachable"))


def main(address: str) -> None:
    nodes = try_call(partial(_query_nodes, address))
    print(json.dumps(asdict(nodes) if isinstance(nodes, CallFailure) else {"nodes": nodes}))


def _query_nodes(address: str) -> list[dict[str, Any]]:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # noqa: PLC0415  # late: the other side of the pipe does not load Ray

    infos = GcsClient(address=address).get_all_node_info(timeout=ANSWER_S).values()
    return [
        {
            "alive": info.state == ALIVE, "address": info.node_manager_address,
            "cpus": info.resources_total.get("CPU", 0.0), "gpus": info.resources_total.get("GPU", 0.0),
        }
        for info in infos
    ]  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
