"""Checks the trackers of `trainer.logger`: their libraries, and W&B's key. Training never depends on them, but their
curves would be missing."""

from __future__ import annotations

import netrc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.core.check_result import CheckResult
from launcher.preflight.checks.context import Context
from launcher.spec.trackers import LOGGER, install_hint, trackers_of

WANDB_HOST = "api.wandb.ai"


def check(context: Context) -> Iterator[CheckResult]:
    """A failure for a missing library, a warning for what only delays the curves."""
    names = trackers_of(context.run.trainer.logger)
    missing = {name: fix for name in names if (fix := install_hint(name))}
    for name, fix in missing.items():
        message = f"{name} needs the package {name}, which is not installed"
        yield CheckResult(context.missing_level, LOGGER, message, f"{fix}, or leave {name} out")
    if "wandb" in names and not _wandb_has_key():
        message = "wandb has no key: WANDB_API_KEY is not set, and wandb login was not run"
        fix = "export WANDB_API_KEY=KEY (https://wandb.ai/authorize), or WANDB_MODE=offline"
        yield CheckResult("WARN", LOGGER, message, fix)
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
