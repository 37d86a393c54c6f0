"""`python -m launcher.clusters.ray.job_client ADDRESS ID ENTRYPOINT [CLAIM]`: submits a job, prints its output, and
ends with its exit code (`remote`).

Without CLAIM the job is stopped when this process ends early. With CLAIM, a file that the job removes when it begins,
the job continues.

Source: Ray's Jobs API, ray.job_submission.JobSubmissionClient, which asks the head at the cluster's address where the
server is.
"""

from __future__ import annotations

import asyncio
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from ray.dashboard.utils import get_address_for_submission_client
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from launcher.clusters.nodes.home import COPY
from launcher.clusters.ray.remote import ASKED, ERRORS, EXIT, INSTALL, NO_FOLDER, NO_RLRUN, OUTPUT
from launcher.core import machine
from launcher.core.problems import Problem, Problems
from launcher.core.user_code import CallFailure, try_call

T = TypeVar("T")
ANSWER_S, SUBMIT_S = 20.0, 90.0
SILENT_S = 20.0  # without output; then the head is asked whether it is still there
ANSWERED_S = 60.0  # after which a job of a query is deleted
ENDED_S = 10.0  # for Ray to notice the end of a job whose output has ended
MOST = 20  # lines of what Ray says of a job that failed
LOOKS = (f"{ASKED}watch-", f"{ASKED}logs-")  # ids of queries that end by Ctrl-C


def main(address: str, job: str, entrypoint: str, claim: Path | None) -> int:
    """Submit the job and print its output. Returns the exit code of the command; 1 where no job could be started."""
    try:
        return _run(address, job, entrypoint, claim)
    except Problems as problems:
        if claim is None:
            print(f"✗ {problems}", file=sys.stderr)
            return 1
        print(f"the cluster starts no job: {problems}", file=sys.stderr)
        claim.unlink(missing_ok=True)  # the command can no longer begin
        return 1
    except BrokenPipeError:  # `| head` has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _run(address: str, job: str, entrypoint: str, claim: Path | None) -> int:
    server = _connect(address)
    _delete_old_queries(server)
    code: int | None = None
    try:
        _ask(address, partial(server.submit_job, entrypoint=entrypoint, submission_id=job), SUBMIT_S)
        if claim:
            print(f"submitted as Ray job {job}", flush=True)
        code = _print_output(_log_lines(server, job), job)
        return code if code is not None else _wait_for_end(server, address, job)
    except BrokenPipeError:
        code = code if claim is None else 0  # the reader is gone, the job goes on
        raise
    finally:
        if code is None:
            answer(partial(server.stop_job, job))


def _print_output(lines: Iterator[str], job: str) -> int | None:
    """Print the command's output and errors; its exit code, None where the log ends without one."""
    stream, pending = None, ""
    for line in lines:
        mark, _, kind = line.partition(" ")
        if mark == job and kind == OUTPUT:
            stream, pending = sys.stdout, ""
        elif mark == job and kind == ERRORS:
            stream, pending = sys.stderr, ""
        elif mark == job and kind.startswith(EXIT):
            return int(kind.split()[1])
        elif stream:
            stream.write(pending)
            stream.flush()
            if line:
                stream.write(f"{line}\n")
                stream.flush()
            pending = "" if line else "\n"  # a mark has an empty line before it
    return None


def _connect(address: str) -> JobSubmissionClient:
    host = address.rpartition(":")[0]
    for name in ("no_proxy", "NO_PROXY"):  # the token goes there, and must not go through a proxy
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), host]))
    url = answer(partial(get_address_for_submission_client, address))
    served_here = isinstance(url, str) and machine.is_this_machine(urlsplit(url).hostname or "")
    if served_here and not machine.is_this_machine(host.strip("[]")):  # a head without --dashboard-host: 127.0.0.1
        got, fix = "its job server answers on its head alone", "use ray start --dashboard-host there"
        raise Problems(Problem(address, got, fix, "not-reachable"))
    client = url if isinstance(url, CallFailure) else answer(partial(JobSubmissionClient, url))
    if isinstance(client, JobSubmissionClient):
        return client
    if client.kind == "AuthenticationError":
        fix = f"set RAY_AUTH_TOKEN_PATH to a file with {COPY}"
        raise Problems(Problem(address, "the cluster refuses this token, or none", fix, "not-permitted"))
    raise Problems(Problem(address, f"its head has no job server ({client.reason})", INSTALL, "not-installed"))


def _ask(subject: str, call: Callable[[], T], seconds: float = ANSWER_S) -> T:
    """What `call` returns. Raises `Problems` about `subject` where it fails or takes longer than `seconds`."""
    result = answer(call, seconds)
    if isinstance(result, CallFailure):
        raise _unreachable(subject, result.reason)
    return result


def _unreachable(subject: str, got: str) -> Problems:
    return Problems(Problem(subject, got, "ask again once it answers", "not-reachable"))


def answer(ask: Callable[[], T], seconds: float = ANSWER_S) -> T | CallFailure:
    """What `ask` returns, or why it failed. It runs in a thread, as Ray's client has no timeout."""
    results = queue.SimpleQueue[T | CallFailure]()
    threading.Thread(target=lambda: results.put(try_call(ask)), daemon=True).start()
    try:
        return results.get(timeout=seconds)
    except queue.Empty:
        return CallFailure("no answer")


def _delete_old_queries(server: JobSubmissionClient) -> None:
    """Have the head delete the jobs of earlier queries."""
    jobs: list[JobDetails] | CallFailure = answer(server.list_jobs)
    for job in [] if isinstance(jobs, CallFailure) else jobs:
        ended_s = (job.end_time or math.inf) / 1000
        if (job.submission_id or "").startswith(ASKED) and time.time() - ended_s > ANSWERED_S:
            answer(partial(server.delete_job, job.submission_id))


def _log_lines(server: JobSubmissionClient, job: str) -> Iterator[str]:
    """Lines of the job's log, as they are written, until it ends. Raises `Problems` where the head is gone."""
    chunks = queue.SimpleQueue[str | CallFailure | None]()

    async def tail() -> None:
        async for chunk in server.tail_job_logs(job):
            chunks.put(chunk)

    threading.Thread(target=lambda: chunks.put(try_call(lambda: asyncio.run(tail()))), daemon=True).start()
    partial_line = ""
    while True:
        try:
            chunk = chunks.get(timeout=SILENT_S)
        except queue.Empty:
            info = answer(partial(server.get_job_info, job))
            chunk = info if isinstance(info, CallFailure) else ""
        if isinstance(chunk, CallFailure):
            raise _unreachable("cluster", f"its head is gone: {chunk.reason}")
        if chunk is None:
            return
        *complete, partial_line = (partial_line + chunk).split("\n")
        yield from complete


def _wait_for_end(server: JobSubmissionClient, address: str, job: str) -> int:
    """The exit code of a job whose log has none. Raises `Problems` where the command was not run."""
    deadline = time.monotonic() + ENDED_S
    while not (details := _ask(address, partial(server.get_job_info, job))).status.is_terminal():
        if time.monotonic() > deadline:
            raise _unreachable(address, f"Ray job {job} does not report its end")
        time.sleep(0.2)
    if details.driver_exit_code == NO_RLRUN:
        raise Problems(Problem(address, "its head has no rlrun", "install the same version there", "not-installed"))
    if details.driver_exit_code == NO_FOLDER:
        raise Problems(Problem(address, "its head does not see the run's folder", "use a shared disk", "not-found"))
    if details.status == JobStatus.STOPPED:
        return 128 + signal.SIGTERM
    why = " ".join((details.message or "the job failed").splitlines()[-MOST:])
    raise _unreachable(address, f"Ray job {job} ended: {why}")


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the job ends, too
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        code = main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]) if sys.argv[4:] else None)
    except KeyboardInterrupt:
        code = 0 if sys.argv[2].startswith(LOOKS) else 130
    sys.stderr.flush()
    os._exit(code)  # Ray's threads may hang
