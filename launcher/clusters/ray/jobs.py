"""`python -m launcher.clusters.ray.jobs ADDRESS FILE`: submit the command in FILE, as `handed` says, and end as it
does."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import time
from functools import partial
from pathlib import Path

from ray.job_submission import JobDetails, JobSubmissionClient

from launcher.clusters.ray.handed import NO_JOBS
from launcher.clusters.ray.job_server import NO_RLRUN, SUBMIT_S, answer, client, ended, entrypoint
from launcher.core.user_code import CallFailure

LOOK_S, SILENT_S = 0.5, 60.0
NO_FILE = 66  # exit code of a job whose command is not to be read

_asked: list[int] = []


def main(address: str, file: Path) -> int:
    """The job's exit code."""
    signal.signal(signal.SIGTERM, lambda number, _: _asked.append(number))
    try:
        return _handed(address, file)
    finally:
        file.unlink(missing_ok=True)


def _handed(address: str, file: Path) -> int:
    server = client(address)
    if isinstance(server, CallFailure):
        return _none(address, server.reason)
    if _asked:
        return 128 + _asked[0]
    folder, job = file.parent, _id(file)
    command = f"[ -r {shlex.quote(str(file))} ] || exit {NO_FILE}\n"
    command += entrypoint("launcher.clusters.ray.handed", str(file))
    told = {"run": f"{folder.parent.name}/{folder.name}", "folder": str(folder)}
    submit = partial(server.submit_job, entrypoint=command, submission_id=job, metadata=told)
    submitted = answer(submit, SUBMIT_S)
    if isinstance(submitted, CallFailure) and _taken_back(file):
        return _none(address, submitted.reason)
    print(f"handed over as Ray job {job}")
    code = _followed(server, job)
    if code == NO_FILE:
        return _none(address, f"its head cannot read {folder}")
    if code in (1, NO_RLRUN) and _taken_back(file):
        return _none(address, "its head has no rlrun" if code == NO_RLRUN else "the job did not begin")
    return code


def _taken_back(file: Path) -> bool:
    """Whether the command has not begun; then it never will."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def _none(address: str, why: str) -> int:
    print(f"the cluster at {address} takes no such job: {why}")
    return NO_JOBS


def _id(file: Path) -> str:
    """Tells which run it is, and stands in addresses."""
    folder = file.parent
    return "-".join(re.findall("[A-Za-z0-9_]+", f"rlrun/{folder.parent.name}/{folder.name}/{file.stem[-8:]}"))


def _followed(server: JobSubmissionClient, job: str) -> int:
    heard, stopped = time.monotonic(), False
    while True:
        if _asked and not stopped:
            stopped = not isinstance(answer(partial(server.stop_job, job)), CallFailure)
        found: JobDetails | CallFailure = answer(partial(server.get_job_info, job))
        if not isinstance(found, CallFailure):
            heard = time.monotonic()
            if found.status.is_terminal():
                code, why = ended(found)
                if why:
                    print(why)
                return code
        elif time.monotonic() - heard > SILENT_S:
            print(f"the cluster does not tell any more how Ray job {job} stands: {found.reason}; rlrun status tells")
            return 1
        time.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
