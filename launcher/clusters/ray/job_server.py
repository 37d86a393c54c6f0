"""A cluster's job server (ray[default]), which begins commands on the head.

Source: Ray's Jobs API, ray.job_submission.JobSubmissionClient. It finds the server at the head's address.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from launcher import machine
from launcher.clusters.nodes.ray_start import PYTHON
from launcher.foreign import Fault, attempt
from launcher.problems import said

T = TypeVar("T")
KNOCK_S, ANSWER_S, SUBMIT_S = 3.0, 20.0, 90.0
NO_RLRUN = 67  # exit code of a job on a head without it
MOST = 20  # lines of what Ray says of a job that failed
BEGIN = """\
for python in {here} "${name}" python3; do
    "$python" -P -c "import launcher" 2> /dev/null && exec "$python" -P -m {words}
done
exit {no_rlrun}"""


def client(address: str) -> JobSubmissionClient | Fault:
    try:  # where nothing listens, Ray takes two minutes to say so
        machine.knock(address, KNOCK_S)
    except (OSError, ValueError) as error:
        return Fault(said(error))
    return answer(partial(JobSubmissionClient, address))


def answer(ask: Callable[[], T], seconds: float = ANSWER_S) -> T | Fault:
    """Ray's client waits for an answer without end, and may take the first alarm for an error of its own."""
    signal.signal(signal.SIGALRM, _too_long)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        return attempt(ask)
    except TimeoutError as error:
        return Fault(str(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: object) -> None:
    raise TimeoutError("no answer")


def entrypoint(*words: str) -> str:
    """`python -m words`, by this Python where the head has it, too, else by that of its own rlrun."""
    here = shlex.quote(sys.executable)
    return BEGIN.format(here=here, name=PYTHON, words=shlex.join(words), no_rlrun=NO_RLRUN)


def ended(found: JobDetails) -> int:
    """The exit code of a job that has; where it is not by its own doing, Ray's reason is printed."""
    code = found.driver_exit_code
    if found.status == JobStatus.STOPPED:
        return 128 + signal.SIGTERM
    if found.status == JobStatus.FAILED and (code is None or code < 0):
        print("\n".join((found.message or "the job failed").splitlines()[-MOST:]))
    if code is None:
        return 0 if found.status == JobStatus.SUCCEEDED else 1
    return machine.shell_code(code)
