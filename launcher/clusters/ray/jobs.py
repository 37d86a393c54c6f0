"""`python -m launcher.clusters.ray.jobs ADDRESS FILE`: submit the command in FILE, as `handed` says, and end as it
does.

Source: Ray's Jobs API, ray.job_submission.JobSubmissionClient. It finds the cluster's job server at the head's address.
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from launcher import machine
from launcher.clusters.ray.handed import NO_JOBS
from launcher.foreign import Fault, attempt
from launcher.problems import said

T = TypeVar("T")
KNOCK_S, LOOK_S, ANSWER_S, SUBMIT_S, SILENT_S = 3.0, 0.5, 20.0, 90.0, 60.0
NO_FILE = 66  # exit code of a job whose command is not to be read
MOST = 20  # lines of what Ray says of a job that failed
BEGIN = """\
[ -r {file} ] || exit {no_file}
python={python}; [ -x "$python" ] || python=python3
exec "$python" -P -m launcher.clusters.ray.handed {file}"""

_asked: list[int] = []


def main(address: str, file: Path) -> int:
    """The job's exit code."""
    signal.signal(signal.SIGTERM, lambda number, _: _asked.append(number))
    signal.signal(signal.SIGALRM, _too_long)
    try:
        return _handed(address, file)
    finally:
        file.unlink(missing_ok=True)


def _handed(address: str, file: Path) -> int:
    client = _client(address)
    if isinstance(client, Fault):
        return _none(address, client.reason)
    if _asked:
        return 128 + _asked[0]
    folder, job = file.parent, _id(file)
    entrypoint = BEGIN.format(file=shlex.quote(str(file)), no_file=NO_FILE, python=shlex.quote(sys.executable))
    told = {"run": f"{folder.parent.name}/{folder.name}", "folder": str(folder)}
    submit = partial(client.submit_job, entrypoint=entrypoint, submission_id=job, metadata=told)
    submitted = _answer(submit, SUBMIT_S)
    if isinstance(submitted, Fault) and _taken_back(file):
        return _none(address, submitted.reason)
    print(f"handed over as Ray job {job}")
    code = _followed(client, job)
    if code == NO_FILE:
        return _none(address, f"its head cannot read {folder}")
    return _none(address, "the job did not begin") if code == 1 and _taken_back(file) else code


def _taken_back(file: Path) -> bool:
    """Whether the command has not begun; then it never will."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def _too_long(*_: object) -> None:
    raise TimeoutError("no answer")


def _answer(ask: Callable[[], T], seconds: float = ANSWER_S) -> T | Fault:
    """Ray's client waits for an answer without end, and may take the first alarm for an error of its own."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        return attempt(ask)
    except TimeoutError as error:
        return Fault(str(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _client(address: str) -> JobSubmissionClient | Fault:
    try:  # where nothing listens, Ray takes two minutes to say so
        machine.knock(address, KNOCK_S)
    except (OSError, ValueError) as error:
        return Fault(said(error))
    return _answer(partial(JobSubmissionClient, address))


def _none(address: str, why: str) -> int:
    print(f"the cluster at {address} takes no such job: {why}")
    return NO_JOBS


def _id(file: Path) -> str:
    """Tells which run it is, and stands in addresses."""
    folder = file.parent
    return "-".join(re.findall("[A-Za-z0-9_]+", f"rlrun/{folder.parent.name}/{folder.name}/{file.stem[-8:]}"))


def _followed(client: JobSubmissionClient, job: str) -> int:
    heard, stopped = time.monotonic(), False
    while True:
        if _asked and not stopped:
            stopped = not isinstance(_answer(partial(client.stop_job, job)), Fault)
        found: JobDetails | Fault = _answer(partial(client.get_job_info, job))
        if not isinstance(found, Fault):
            heard = time.monotonic()
            if found.status.is_terminal():
                return _ended(found)
        elif time.monotonic() - heard > SILENT_S:
            print(f"the cluster does not tell any more how Ray job {job} stands: {found.reason}; rlrun status tells")
            return 1
        time.sleep(LOOK_S)


def _ended(found: JobDetails) -> int:
    code = found.driver_exit_code
    if found.status == JobStatus.STOPPED:
        return 128 + signal.SIGTERM
    if found.status == JobStatus.FAILED and (code is None or code < 0):  # not by its own doing
        print("\n".join((found.message or "the job failed").splitlines()[-MOST:]))
    if code is None:
        return 0 if found.status == JobStatus.SUCCEEDED else 1
    return machine.shell_code(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
