"""Checks the trackers of `trainer.logger`: their libraries, keys and ports. Training never depends on them, but their
curves would be missing."""

from __future__ import annotations

import netrc
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.core.check_result import CheckResult
from launcher.core.problems import error_message
from launcher.preflight.checks.context import Context
from launcher.spec.trackers import LOGGER, TRACKERS, trackers_of

WANDB_HOST = "api.wandb.ai"


def check(context: Context) -> Iterator[CheckResult]:
    """A failure for a missing library, a warning for what only delays the curves."""
    names = trackers_of(context.run.trainer.logger)
    missing = [name for name in names if not TRACKERS[name].installed]
    for name in missing:
        message = f"{name} needs the package {TRACKERS[name].package}, which is not installed"
        yield CheckResult(context.missing_level, LOGGER, message, f"{TRACKERS[name].fix}, or leave {name} out")
    if "wandb" in names and not _wandb_has_key():
        message = "wandb has no key: WANDB_API_KEY is not set, and wandb login was not run"
        fix = "export WANDB_API_KEY=KEY (https://wandb.ai/authorize), or WANDB_MODE=offline"
        yield CheckResult("WARN", LOGGER, message, fix)
    if "swanlab" in names and not _swanlab_has_key():
        message = "swanlab has no key: SWANLAB_API_KEY is not set, and swanlab login was not run"
        yield CheckResult("WARN", LOGGER, message, "export SWANLAB_API_KEY=KEY, or SWANLAB_MODE=offline")
    if "prometheus" in names:
        yield from _check_prometheus_port(os.environ.get("RLRUN_PROMETHEUS_PORT", ""))
    if names and not missing:
        yield CheckResult("OK", LOGGER, ", ".join(names))


def _wandb_has_key() -> bool:
    """Whether wandb has a key, or needs none; the key itself is not read."""
    if os.environ.get("WANDB_MODE", "online") in ("offline", "disabled", "dryrun") or os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "").partition("://")[2].strip("/") or WANDB_HOST
    with suppress(OSError, netrc.NetrcParseError, RuntimeError):
        return host in netrc.netrc(os.environ.get("NETRC") or Path("~/.netrc").expanduser()).hosts
    return False


def _swanlab_has_key() -> bool:
    """Whether swanlab has a key, from a login or the environment, or needs none; the key itself is not read."""
    if os.environ.get("SWANLAB_MODE", "online") != "online" or os.environ.get("SWANLAB_API_KEY"):
        return True
    data_folder = os.environ.get("SWANLAB_ROOT") or os.environ.get("SWANLAB_SAVE_DIR") or "~/.swanlab"
    with suppress(RuntimeError):  # there is no home folder
        return any((Path(folder).expanduser() / ".netrc").is_file() for folder in (".swanlab", data_folder))
    return False


def _check_prometheus_port(address: str) -> Iterator[CheckResult]:
    """Check that `[HOST:]PORT` can be bound; without an address, a free port of the loopback is used."""
    host, _, port = address.rpartition(":")
    if not address:
        message = "prometheus takes a free port, which logs/tracker-prometheus.log names"
        yield CheckResult("WARN", LOGGER, message, "export RLRUN_PROMETHEUS_PORT=9400 for a fixed one")
        return
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host or "127.0.0.1", int(port)))
    except (OSError, ValueError, OverflowError) as error:
        message = f"got {address!r}, {error_message(error)}"
        yield CheckResult("WARN", "RLRUN_PROMETHEUS_PORT", message, "use another port, as PORT or HOST:PORT")
