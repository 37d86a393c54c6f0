"""`DualLogger`: what a training script calls. Only `finish` waits for the network, and no method raises."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launcher.core.user_code import CallFailure, try_call
from launcher.logger.spool import JOB, SpoolWriter, text_of

PLATFORM_URL = "http://localhost:8000"
FINISH_S = 5.0
"""Seconds that `finish` and the end of a script wait while no row arrives; RLRUN_FINISH_S overrides it."""
_ROOT = str(Path(__file__).parents[2])


def finish_s(warn: Callable[[str], None] = lambda _: None) -> float:
    """RLRUN_FINISH_S, or FINISH_S where that is no number of seconds, which `warn` then reports."""
    text = os.environ.get("RLRUN_FINISH_S") or str(FINISH_S)
    seconds = try_call(lambda: float(text))
    if not isinstance(seconds, CallFailure) and seconds >= 0:
        return seconds
    warn(f"RLRUN_FINISH_S: got {text!r}, so it is {FINISH_S:g}; use a number of seconds, such as 30")
    return FINISH_S


class DualLogger:
    """Sends what a script logs to the platform (`rlrun serve`), to W&B, or to both.

    Each logger has its own session. What a forked process logs belongs to the session of its parent, which should wait
    for it. The platform's token is `token`, else RLRUN_TOKEN. Raises `ValueError` for an invalid `job_uuid`.
    """

    def __init__(
        self,
        job_uuid: str,
        platform_url: str = PLATFORM_URL,
        platform_enabled: bool = True,
        wandb_project: str | None = None,
        wandb_run_name: str | None = None,
        wandb_entity: str | None = None,
        wandb_config: Mapping[str, Any] | None = None,
        wandb_tags: Sequence[str] | None = None,
        wandb_enabled: bool = True,
        *,
        token: str | None = None,
    ) -> None:
        if job_uuid is None or not JOB.fullmatch(str(job_uuid)):
            fix = "use 1 to 128 letters, digits, `-`, `_` and `.`, of which `-` and `.` are not the first"
            raise ValueError(f"job_uuid: got {job_uuid!r}; {fix}")
        self.job_uuid, self.platform_url = str(job_uuid), platform_url.rstrip("/") if platform_enabled else ""
        self._token, self._status = token, ("", "")
        self._spool: SpoolWriter | None = None
        self._sender: subprocess.Popen[bytes] | None = None
        self._pid = os.getpid()
        self.arrived = True
        """After `finish`: whether every row was received."""
        self._wandb: dict[str, Any] | None = None
        if wandb_enabled and find_spec("wandb") is None:
            self._warn("W&B is not installed, so it gets nothing; use pip install wandb, or wandb_enabled=False")
        elif wandb_enabled:
            name, tags = wandb_run_name or self.job_uuid, list(wandb_tags or ())
            self._wandb = {
                "project": wandb_project, "name": name, "entity": wandb_entity, "config": dict(wandb_config or {}),
                "tags": tags,
            }  # fmt: skip
        self._start_session()
        atexit.register(self._at_exit)

    def log_metrics(self, step: int, metrics: Mapping[str, Any], epoch: float | None = None) -> None:
        """Log metrics of a step; values that are not numbers go to W&B only."""
        row = {"kind": "metrics", "at": time.time(), "step": step, "metrics": metrics}
        self._append(row if epoch is None else {**row, "epoch": epoch})

    def log_gpu_usage(
        self,
        gpu_index: int = 0,
        utilization: float | None = None,
        memory_used: float | None = None,
        memory_total: float | None = None,
        temperature: float | None = None,
    ) -> None:
        """Log the usage of a GPU: utilization in percent, memory in GB, temperature in degrees Celsius."""
        self._append({
            "kind": "gpu", "at": time.time(), "gpu_index": gpu_index, "utilization": utilization,
            "memory_used": memory_used, "memory_total": memory_total, "temperature": temperature,
        })  # fmt: skip

    def log_checkpoint(
        self, step: int, checkpoint_path: str | os.PathLike[str], eval_results: Mapping[str, Any] | None = None
    ) -> None:
        """Log a complete checkpoint, with scores on held-out data by name."""
        at, row = time.time(), {"kind": "checkpoint", "step": step, "path": text_of(checkpoint_path)}
        scores = {"kind": "metrics", "at": at, "step": step, "metrics": {}, "held_out": eval_results}
        self._append(*([scores] if eval_results else []), {**row, "at": at})

    def log_status(self, status: str, message: str = "") -> None:
        """Log an alert. After `failed`, `error`, `stopped` or `cancelled`, `finish` ends the job with that outcome."""
        self._status = text_of(status), text_of(message)
        self._append({"kind": "status", "at": time.time(), "status": self._status[0], "message": self._status[1]})

    def log_config(self, config: Mapping[str, Any]) -> None:
        self._append({"kind": "config", "config": config})

    def log_summary(self, summary: Mapping[str, Any]) -> None:
        self._append({"kind": "summary", "summary": summary})

    def finish(self) -> None:
        """End the session. Waits while rows arrive, and `finish_s()` seconds where none does; rows that remain are
        reported on standard error."""
        how = {"failed": "failed", "error": "failed", "stopped": "stopped", "cancelled": "stopped"}
        status, message = self._status
        self._end_session(how.get(status.lower(), "finished"), message if status.lower() in how else "")

    def _end_session(self, how: str, why: str) -> None:
        if self._spool is None or self._pid != os.getpid():  # no session, or that of the process which forked this one
            return
        spool, self._spool = self._spool, None
        spool.append({"kind": "finish", "at": time.time(), "how": how, "why": text_of(why)})
        if spool.refused:
            self._warn(f"rows were lost: {spool.refused}")
        spool.close()
        self.arrived = self._sender is not None and self._sender.wait() == 0  # the sender ends by itself

    def _at_exit(self) -> None:
        """End the session of a script that did not call `finish`."""
        if error := getattr(sys, "last_value", None):
            how = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            self._end_session(how, f"{type(error).__name__}: {error}".removesuffix(": "))
        elif self._status[0]:
            self.finish()
        else:
            self._end_session("stopped", "the script ended without finish()")

    def _append(self, *rows: Mapping[str, Any]) -> None:
        if spool := self._spool:
            was_refused = spool.refused
            spool.append(*rows)
            if spool.refused and not was_refused:
                self._warn(f"rows are lost: {spool.refused}")

    def _start_session(self) -> None:
        """Open a session of this process, and start the process that sends it."""
        if not (self.platform_url or self._wandb):
            return None
        spool = try_call(lambda: SpoolWriter(self.job_uuid))
        if isinstance(spool, CallFailure):
            return self._warn(f"nothing is logged: {spool.reason}; use a folder that takes files as RLRUN_SPOOL")
        self._spool = spool
        finish_s(self._warn)
        program = os.path.abspath(sys.argv[0]) if sys.argv[:1] not in ([], [""], ["-c"]) else "python"
        spool.append({"kind": "wandb", "init": self._wandb})
        spool.append({"kind": "begin", "at": time.time()})
        extra_env = {"PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))}
        extra_env |= {} if self._token is None else {"RLRUN_TOKEN": self._token}
        command = [sys.executable, "-P", "-m", "launcher.logger.sender", str(spool.path), self.platform_url]
        sender = try_call(
            lambda: subprocess.Popen(
                command, env={**os.environ, "WANDB_PROGRAM": program, **extra_env}, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, start_new_session=True,
            )
        )  # fmt: skip
        if isinstance(sender, CallFailure):
            return self._warn(f"what is logged waits in {spool.path}: {sender.reason}")
        self._sender = sender
        return None

    def _warn(self, text: str) -> None:
        with suppress(OSError, ValueError, AttributeError):  # standard error may be closed
            print(f"rlrun: {self.job_uuid}: {text}", file=sys.stderr, flush=True)


def init_logging(job_uuid: str, wandb_project: str | None = None, **more: Any) -> DualLogger:
    """Make a `DualLogger`; `more` are its other arguments."""
    return DualLogger(job_uuid=job_uuid, wandb_project=wandb_project, **more)
