"""`python -m launcher.clusters.ray.job_client ADDRESS ID ENTRYPOINT [CLAIM]`: submits a job, prints its output as it
comes, and ends with its exit code (`remote`).

Without CLAIM the job is stopped when this process ends early. With CLAIM, a file that the job removes when it begins,
it goes on, and this process ends with NOT_RUN where it did not begin.

Source: Ray's Jobs API, ray.job_submission.JobSubmissionClient, which asks the head at the cluster's address where the
server is.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from ray.dashboard.utils import get_address_for_submission_client
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from launcher.clusters.nodes.reach import COPY
from launcher.clusters.ray.remote import ASKED, ERRORS, EXIT, INSTALL, NO_FOLDER, NO_RLRUN, NOT_RUN, OUTPUT
from launcher.core import machine
from launcher.core.problems import Problem
from launcher.core.user_code import CallFailure, try_call

T = TypeVar("T")
ANSWER_S, SUBMIT_S = 20.0, 90.0
SILENT_S = 20.0  # without output; then the head is asked whether it is still there
ANSWERED_S = 60.0  # after which a job that only asked is forgotten
ENDED_S = 10.0  # for a job whose output has ended to be counted as ended
MOST = 20  # lines of what Ray says of a job that failed
LOOKS = (f"{ASKED}watch-", f"{ASKED}logs-")  # which end well whenever they are ended
LOST = "ask again once it answers"


class NotRun(Exception):
    """Why the command was not run, or is not heard any more."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))


def main(address: str, job: str, entrypoint: str, claim: Path | None) -> int:
    """The exit code of the command."""
    try:
        return _run(address, job, entrypoint, claim)
    except NotRun as why:
        not_begun = claim is not None and _taken_back(claim)
        print(f"✗ {why}" if claim is None else f"the cluster starts no job: {why}", file=sys.stderr)
        return NOT_RUN if not_begun else 1
    except BrokenPipeError:  # `| head` has read what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _taken_back(claim: Path) -> bool:
    """Whether the command has not begun; then it never will."""
    try:
        claim.unlink()
    except FileNotFoundError:
        return False
    return True


def _run(address: str, job: str, entrypoint: str, claim: Path | None) -> int:
    server = _client(address)
    _forget(server)
    code: int | None = None
    try:
        submitted = answer(partial(server.submit_job, entrypoint=entrypoint, submission_id=job), SUBMIT_S)
        if isinstance(submitted, CallFailure):
            raise NotRun(Problem(address, submitted.reason, LOST))
        if claim:
            print(f"submitted as Ray job {job}", flush=True)
        with closing(_lines(server, job)) as lines:
            code = _passed_on(lines, job)
        return code if code is not None else _ended(server, address, job)
    except BrokenPipeError:
        code = code if claim is None else 0  # whoever only listened is gone
        raise
    finally:
        if code is None:
            answer(partial(server.stop_job, job))


def _passed_on(lines: Iterator[str], job: str) -> int | None:
    """Print the command's output and errors; its exit code, None where the log ends without one."""
    to, held = None, ""
    for line in lines:
        mark, _, what = line.partition(" ")
        if mark == job and what == OUTPUT:
            to, held = sys.stdout, ""
        elif mark == job and what == ERRORS:
            to, held = sys.stderr, ""
        elif mark == job and what.startswith(EXIT):
            return int(what.split()[1])
        elif to:
            to.write(held)
            to.flush()
            if line:
                to.write(f"{line}\n")
                to.flush()
            held = "" if line else "\n"  # a mark has an empty line before it
    return None


def _client(address: str) -> JobSubmissionClient:
    host = address.rpartition(":")[0]
    for name in ("no_proxy", "NO_PROXY"):  # what goes there is the token, too
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), host]))
    found = answer(partial(_submission_client, address, host))
    if isinstance(found, Problem):
        raise NotRun(found)
    if isinstance(found, CallFailure):
        if found.kind == "AuthenticationError":
            fix = f"set RAY_AUTH_TOKEN_PATH to a file with {COPY}"
            raise NotRun(Problem(address, "the cluster refuses this token, or none", fix, "not-permitted"))
        raise NotRun(Problem(address, f"its head has no job server ({found.reason})", INSTALL, "not-installed"))
    return found


def _submission_client(address: str, host: str) -> JobSubmissionClient | Problem:
    """A problem where it would be another's: a head that was told no other host says `127.0.0.1` to all."""
    url: str = get_address_for_submission_client(address)
    if machine.is_this_machine(urlsplit(url).hostname or "") and not machine.is_this_machine(host.strip("[]")):
        text = "its job server answers on its head alone"
        return Problem(address, text, "use ray start --dashboard-host there", "not-reachable")
    return JobSubmissionClient(url)


def answer(ask: Callable[[], T], seconds: float = ANSWER_S) -> T | CallFailure:
    """Ray's client waits for an answer without end, and may take the first alarm for an error of its own."""
    signal.signal(signal.SIGALRM, _too_long)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        return try_call(ask)
    except TimeoutError as error:
        return CallFailure(str(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: object) -> None:
    raise TimeoutError("no answer")


def _forget(server: JobSubmissionClient) -> None:
    """Have the head forget jobs that only asked, and have been answered."""
    jobs: list[JobDetails] | CallFailure = answer(server.list_jobs)
    for one in [] if isinstance(jobs, CallFailure) else jobs:
        ended_s = (one.end_time or math.inf) / 1000
        if (one.submission_id or "").startswith(ASKED) and time.time() - ended_s > ANSWERED_S:
            answer(partial(server.delete_job, one.submission_id))


def _lines(server: JobSubmissionClient, job: str) -> Generator[str]:
    """Of the job's log, as they come, until it ends. Raises `NotRun` where the head is gone."""
    chunks: AsyncIterator[str] = server.tail_job_logs(job)
    half = ""
    with asyncio.Runner() as runner:
        while True:
            coming = runner.get_loop().create_task(_next(chunks))
            while not (chunk := try_call(partial(runner.run, _for_a_while(coming)))) and not coming.done():
                there = answer(partial(server.get_job_info, job))
                if isinstance(there, CallFailure):
                    raise NotRun(Problem("cluster", f"its head is gone: {there.reason}", LOST))
            if isinstance(chunk, CallFailure):
                raise NotRun(Problem("cluster", f"its head is gone: {chunk.reason}", LOST))
            if not chunk:
                return
            *whole, half = (half + chunk).split("\n")
            yield from whole


async def _next(chunks: AsyncIterator[str]) -> str:
    """Empty at the end."""
    return await anext(chunks, "")


async def _for_a_while(coming: asyncio.Task[str]) -> str:
    """Empty where it does not come in that time."""
    done, _ = await asyncio.wait([coming], timeout=SILENT_S)
    return coming.result() if done else ""


def _ended(server: JobSubmissionClient, address: str, job: str) -> int:
    """The exit code of a job that has said none. Raises `NotRun` where the command was not run."""
    give_up = time.monotonic() + ENDED_S
    while True:
        found: JobDetails | CallFailure = answer(partial(server.get_job_info, job))
        if isinstance(found, CallFailure):
            raise NotRun(Problem(address, found.reason, LOST))
        if found.status.is_terminal():
            break
        if time.monotonic() > give_up:
            raise NotRun(Problem(address, f"Ray job {job} tells nothing any more", LOST))
        time.sleep(0.2)
    if found.driver_exit_code == NO_RLRUN:
        raise NotRun(Problem(address, "its head has no rlrun", "install the same version there", "not-installed"))
    if found.driver_exit_code == NO_FOLDER:
        raise NotRun(Problem(address, "its head does not see the run's folder", "use a shared disk", "not-found"))
    if found.status == JobStatus.STOPPED:
        return 128 + signal.SIGTERM
    why = " ".join((found.message or "the job failed").splitlines()[-MOST:])
    raise NotRun(Problem(address, f"Ray job {job} ended: {why}", LOST))


def _leave(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the job ends, too
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    try:
        code = main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]) if sys.argv[4:] else None)
    except KeyboardInterrupt:
        code = 0 if sys.argv[2].startswith(LOOKS) else 130
    sys.stderr.flush()
    os._exit(code)  # Ray's threads may wait for what never comes
