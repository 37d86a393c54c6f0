"""`rlrun track`: send a run to a tracker, during the run or after it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.arguments import Root, RunName
from launcher.cli.output import CommandAnswer, say, tell
from launcher.core.problems import Problem, Problems
from launcher.logger.dual_logger import PLATFORM_URL
from launcher.logger.log_following import report_log
from launcher.runs import store
from launcher.runs.folder import Folder, holder
from launcher.spec.trackers import TRACKERS, install_hint, unknown_trackers
from launcher.trackers.sending import Sender, Sent

To = Annotated[str | None, typer.Option(metavar="TRACKER", help=f"{', '.join(TRACKERS)}.")]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Send what comes, too, until the run ends or Ctrl-C.")]
Job = Annotated[
    str | None, typer.Option(metavar="UUID", help="Job of rlrun serve that gets the log of another program; JOB_UUID.")
]
Url = Annotated[str | None, typer.Option(metavar="URL", help=f"Of rlrun serve; PLATFORM_URL, else {PLATFORM_URL}.")]


def track(
    name: RunName,
    to: To = None,
    job: Job = None,
    platform_url: Url = None,
    root: Root = Path("runs"),
    follow: Follow = False,
) -> CommandAnswer:
    """What was sent before is not sent again. Exit code 1 where not everything has arrived: the same command sends the
    rest.

    With --job, RUN is the log of another program, such as verl: its console log, or what its file logger writes.
    """
    url = platform_url or os.environ.get("PLATFORM_URL") or PLATFORM_URL
    if to is None:
        return _report_log(name, job or os.environ.get("JOB_UUID", ""), url, follow)
    if job:
        raise Problems(Problem("--job", "cannot go with --to", "use one of them"))
    if unknown := unknown_trackers([to], "--to"):
        raise Problems(unknown)
    if fix := install_hint(to):
        raise Problems(Problem("--to", f"{to} is not installed", fix, "not-installed"))
    folder = store.find(name, root)
    sent = _send(to, folder, follow)
    view = {"run": folder.name, "tracker": to, **asdict(sent)}
    return CommandAnswer(view, lambda: say(_summarize(to, sent)), exit_code=int(bool(sent.failure)))


def _report_log(name: str, job: str, url: str, follow: bool) -> CommandAnswer:
    """Report the log of another program to a job; with --follow until Ctrl-C, or SIGTERM, as background processes of a
    shell get no Ctrl-C."""
    asked = list[int]()
    if not job:
        raise Problems(Problem("--to", "is missing", f"use one of {', '.join(TRACKERS)}, or --job for a log"))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: asked.append(number))  # the current report is completed
    steps, arrived = report_log(Path(name), job, url, lambda: follow and not asked)
    became = f"reported to job {job}" if arrived else "read, not all have arrived: run the same command again"
    view = {"job": job, "steps": steps, "arrived": arrived}
    return CommandAnswer(view, lambda: say(f"{steps} steps of {name} {became}"), exit_code=int(not arrived))


def _send(to: str, folder: Folder, follow: bool) -> Sent:
    """Send a run to a tracker until all is sent; with `follow` until the run ends or Ctrl-C."""
    stopped = list[bool]()

    def is_alive() -> bool:
        return follow and not stopped and holder(folder) is not None

    def pause(seconds: float) -> None:
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            stopped.append(True)

    return Sender(to, folder.path, is_alive, tell, pause).run()


def _summarize(to: str, sent: Sent) -> str:
    counts = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((sent.steps, "step"), (sent.alerts, "alert"), (sent.samples, "sample"))
        if count
    ]
    done = f"{', '.join(counts)} sent to {sent.where}" if counts else f"nothing new for {sent.where or to}"
    return f"{to}: {done}" if not sent.failure else f"{to}: not everything has arrived; run the same command again"
