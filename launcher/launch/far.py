"""A command of ours on the head of a Ray cluster, for a machine that does not see the run's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from launcher import machine
from launcher.clusters.nodes.reach import reach
from launcher.problems import Problems, said

MODULE = "launcher.clusters.ray.far"
KNOCK_S = 3.0
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_server_request_timeout_seconds": "5",  # for which it looks for a node on this machine
}


def run(address: str, words: Sequence[str], columns: int) -> int:
    """`rlrun` with these words there; its output is ours. Raises `Problems` where nobody answers at `address`."""
    reached = reach(address)
    try:  # where nothing listens, Ray takes two minutes to say so
        machine.knock(reached.address, KNOCK_S)
    except (OSError, ValueError) as error:
        why = said(error) if isinstance(error, OSError) else "is no address"
        raise Problems([f"--cluster: {reached.address}: {why}; HOST:PORT of a cluster's head would do"]) from error
    env = {**os.environ, **reached.env, **QUIET, "COLUMNS": str(columns)}
    process = subprocess.Popen([sys.executable, "-P", "-m", MODULE, reached.address, *words], env=env)
    while True:
        with suppress(KeyboardInterrupt):  # which it gets, too, and ends by
            return machine.shell_code(process.wait())
