"""`python -m launcher.clusters.ray.jobs ADDRESS FOLDER`: submit what `handed` has written, and end as it does.

Source: Ray's Jobs API, ray.job_submission.JobSubmissionClient. It finds the cluster's job server at the head's address.
"""

from __future__ import annotations

import re
import secrets
import shlex
import signal
import sys
import time
from functools import partial
from pathlib import Path

from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from launcher import machine
from launcher.clusters.ray.handed import NO_FOLDER, NO_JOBS
from launcher.foreign import Fault, attempt

KNOCK_S, LOOK_S, SILENT_S = 3.0, 0.5, 30.0
MOST = 20  # lines of what Ray says of a job that failed


def main(address: str, folder: Path) -> int:
    """The job's exit code."""
    client = _client(address)
    if isinstance(client, Fault):
        return _none(address, client)
    script, name = shlex.quote(str(folder / "detached.sh")), f"{folder.parent.name}/{folder.name}"
    entrypoint = f"test -r {script} || exit {NO_FOLDER}; exec sh {script}"
    told = {"run": name, "folder": str(folder)}
    submit = partial(client.submit_job, entrypoint=entrypoint, submission_id=_id(name), metadata=told)
    job = attempt(submit)
    if isinstance(job, Fault):
        return _none(address, job)
    print(f"handed over as Ray job {job}")
    signal.signal(signal.SIGTERM, lambda *_: attempt(partial(client.stop_job, job)))
    return _followed(client, job)


def _client(address: str) -> JobSubmissionClient | Fault:
    try:  # where nothing listens, Ray takes two minutes to say so
        machine.knock(address, KNOCK_S)
    except (OSError, ValueError) as error:
        return Fault(str(error))
    return attempt(partial(JobSubmissionClient, address))


def _none(address: str, fault: Fault) -> int:
    print(f"the cluster at {address} takes no jobs: {fault.reason}")
    return NO_JOBS


def _id(name: str) -> str:
    """Tells which run it is, and stands in addresses."""
    return f"rlrun-{re.sub('[^A-Za-z0-9_-]+', '-', name)}-{secrets.token_hex(3)}"


def _followed(client: JobSubmissionClient, job: str) -> int:
    heard = time.monotonic()
    while True:
        found: JobDetails | Fault = attempt(partial(client.get_job_info, job))
        if not isinstance(found, Fault):
            heard = time.monotonic()
            if found.status.is_terminal():
                return _ended(client, job, found)
        elif time.monotonic() - heard > SILENT_S:
            print(f"the cluster does not tell any more how Ray job {job} stands: {found.reason}")
            return 1
        time.sleep(LOOK_S)


def _ended(client: JobSubmissionClient, job: str, found: JobDetails) -> int:
    code = found.driver_exit_code
    if found.status == JobStatus.STOPPED:
        return 128 + signal.SIGTERM
    if found.status == JobStatus.FAILED and code is None:  # not by its own doing
        said = attempt(partial(client.get_job_logs, job))
        lines = [found.message or "", *("" if isinstance(said, Fault) else said).splitlines()[-MOST:]]
        print("\n".join(filter(None, lines)))
    return (0 if found.status == JobStatus.SUCCEEDED else 1) if code is None else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
