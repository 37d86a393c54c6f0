"""Joining a Ray cluster, or starting one of this machine's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import ray

from launcher.clusters.ray.job import Asked
from launcher.core import machine
from launcher.core.user_code import CallFailure, try_call

KNOCK_S = 2.0
STORE = 100 * 2**20  # bytes of Ray's object store where it is ours: nothing goes through it


def join(asked: Asked) -> Any | CallFailure:
    """One try."""
    quiet = partial(ray.init, log_to_driver=False, logging_level="ERROR")
    if not asked.address:
        cpus = max(machine.cpu_count(), round(asked.cpus * len(asked.processes) + 0.5))
        alone = {"include_dashboard": False, "object_store_memory": STORE, "_temp_dir": asked.temp}
        return try_call(partial(quiet, "local", num_cpus=cpus, **alone))
    if not _answers(asked.address):
        return CallFailure("nothing answers there")
    joined = try_call(partial(quiet, address=asked.address))
    if isinstance(joined, CallFailure):
        try_call(ray.shutdown)
    return joined


def _answers(address: str) -> bool:
    """Whether somebody listens there: where nobody does, Ray takes minutes to say so."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return True
    try:
        machine.check_listening(address, KNOCK_S)
    except OSError:
        return False
    return True
