"""A command of ours on the head of a Ray cluster, for a machine that does not see the run's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from launcher.clusters.nodes.reach import ELSEWHERE, reach
from launcher.core import machine
from launcher.core.problems import Problems, error_message

MODULE = "launcher.clusters.ray.far"
KNOCK_S = 3.0
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_server_request_timeout_seconds": "5",  # for which it looks for a node on this machine
}


def become(address: str, words: Sequence[str], columns: int) -> NoReturn:
    """This process ends as `rlrun` with these words there does, whose output is its own. Raises `Problems` where nobody
    answers at `address`."""
    reached = reach(address)
    try:  # where nothing listens, Ray takes two minutes to say so
        machine.check_listening(reached.address, KNOCK_S)
    except (OSError, ValueError) as error:
        why = error_message(error) if isinstance(error, OSError) else "is no address"
        raise Problems([f"--cluster: {reached.address}: {why}; HOST:PORT of a cluster's head would do"]) from error
    ours = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    env = {**ours, **reached.asking, **QUIET, "COLUMNS": str(columns)}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", MODULE, reached.address, *words], env)
